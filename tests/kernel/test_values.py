"""What crosses between host and kernel comes back equal, or is refused by name."""

import decimal
import socket
import sqlite3
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from cave.errors import NotPortable, PutError
from cave.kernel import values
from cave.kernel.values import Parcel
from tests.kernel._crossing import got, kernel, peer, put
from tests.kernel._kinds import KINDS, REFUSED, Point, deep, frame, same


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_get_gives_an_equal_object(kind: str, writable: bool) -> None:
    """Every kind that the safe codecs carry comes back equal, type by type."""
    assert same(KINDS[kind], got(KINDS[kind], writable=writable))


@pytest.mark.parametrize("kind", KINDS)
def test_put_gives_an_equal_object(kind: str) -> None:
    """Every kind arrives equal by pickle, when host and kernel have the same versions."""
    assert same(KINDS[kind], put(v=KINDS[kind])["v"])


@pytest.mark.parametrize("kind", KINDS)
def test_put_by_the_safe_codecs_gives_an_equal_object(kind: str) -> None:
    """The same kinds arrive equal when Python differs between the two."""
    assert same(KINDS[kind], put(peer("3.99.0"), v=KINDS[kind])["v"])


@pytest.mark.parametrize("kind", REFUSED)
def test_get_refuses_what_it_does_not_carry(kind: str) -> None:
    """The refusal names what is in the way and where, and what to type instead."""
    obj, why = REFUSED[kind]
    with pytest.raises(TypeError, match=why) as caught:
        kernel.dump("v", obj, allow_pickle=False)
    assert "s.get('v', allow_pickle=True)" in str(caught.value)


def test_shared_objects_stay_shared() -> None:
    """One list in two places is one list on the other side, on every road."""
    part = [1]
    arr = np.arange(3)
    both = {"a": part, "b": (part, arr), "c": [arr]}
    for back in (got(both), put(both=both)["both"], put(peer("3.99.0"), both=both)["both"]):
        assert back["a"] is back["b"][0]
        assert back["b"][1] is back["c"][0]
    two = put(x=part, y=[part])
    assert two["y"][0] is two["x"]


def test_an_array_and_its_view_share_memory_in_the_kernel() -> None:
    """Arrays that share memory and are put together share it there; others travel alone."""
    arr = np.arange(24.0).reshape(4, 6)
    made = put(a=arr, v=arr[1:3, ::2], t=arr.T, flat=arr.reshape(-1))
    made["a"][1, 2] = 99
    assert made["v"][0, 1] == made["t"][2, 1] == made["flat"][8] == 99
    assert same(made["v"], np.array([[6.0, 99, 10], [12, 14, 16]]))
    two = put(x=arr[:, 0], y=arr[:, :3])
    assert same(two["x"], np.ascontiguousarray(arr[:, 0]))
    two["y"][0, 0] = 7
    assert two["x"][0] == 7
    parcel = values.pack({"a": np.arange(10_000)[:2], "b": np.arange(3)}, peer=peer())
    assert sum(map(len, parcel.buffers)) < 1000


def test_a_put_that_the_kernel_cannot_make_names_the_variable() -> None:
    """Both roads say which of the values it was."""
    parcel = values.pack({"ok": 1, "bad": pd.Timestamp("2024")}, peer=peer("3.99.0"))
    header = parcel.header.replace(b"pd.timestamp", b"pd.timetable")
    with pytest.raises(TypeError, match="'bad'"):
        kernel.load("safe", header, list(parcel.buffers))
    parcel = values.pack({"ok": 1, "bad": decimal.Decimal(1)}, peer=peer())
    data = bytes(parcel.buffers[0]).replace(b"decimal", b"nowhere")
    with pytest.raises(TypeError, match=r"'bad'.*nowhere"):
        kernel.load("pickle", parcel.header, [data])


def test_repeated_tuples_do_not_explode() -> None:
    """A tuple of tuples that doubles sixty times is written once per tuple."""
    top: Any = (1,)
    for _ in range(60):
        top = (top, top)
    back = got(top)
    assert back[0] is back[1]


@pytest.mark.parametrize("writable", [False, True])
def test_what_comes_back_can_be_written(writable: bool) -> None:
    """Arrays, frames and series are the user's own, whatever memory they came in."""
    arr = got(np.arange(3), writable=writable)
    arr[0] = 7
    mixed = got(frame(a=[1, 2], b=[0.5, 1.5], s=["x", "y"]), writable=writable)
    mixed.iloc[0, 0] = 7
    mixed.loc[1, "b"] = 9.5
    mixed["s"] = mixed["s"].str.upper()
    series = got(pd.Series([1, 2]), writable=writable)
    series.iloc[0] = 7
    assert (arr[0], mixed.iloc[0, 0], mixed.iloc[1, 1], series.iloc[0]) == (7, 7, 9.5, 7)


def test_put_arrays_are_as_writable_as_they_were() -> None:
    """What could be written can be written in the kernel; a read-only flag survives."""
    arr = np.arange(100_000)
    df = frame(a=arr, b=arr)
    fixed = arr.copy()
    fixed.flags.writeable = False
    back = put(a=arr, f=fixed, df=df)
    back["a"][0] = 5
    back["df"].iloc[0, 0] = 5
    assert (arr[0], df.iloc[0, 0], back["a"][0], back["df"].iloc[0, 0]) == (0, 0, 5, 5)
    assert not back["f"].flags.writeable


def test_buffers_are_not_copied() -> None:
    """What `dump` and `pack` give are views of the objects' own memory."""
    arr = np.arange(1_000_000.0)
    df = pd.DataFrame({"a": arr, "b": arr})
    _, header, buffers = kernel.dump("v", arr, allow_pickle=False)
    assert len(header) < 200
    assert np.shares_memory(np.frombuffer(buffers[1]), arr)
    _, _, buffers = kernel.dump("v", df, allow_pickle=False)
    assert any(np.shares_memory(np.frombuffer(b), df.iloc[:, 0]) for b in buffers if len(b))
    parcel = values.pack({"v": arr}, peer=peer())
    assert np.shares_memory(np.frombuffer(parcel.buffers[1]), arr)


def test_writable_buffers_are_used_in_place() -> None:
    """A private mapping becomes the array: nothing is copied on the host."""
    memory = bytearray(np.arange(100_000.0).tobytes())
    kind, header, buffers = kernel.dump("v", np.arange(100_000.0), allow_pickle=False)
    back = values.unpack(Parcel(kind, header, [buffers[0], memory]), name="v")
    assert np.shares_memory(back, np.frombuffer(memory))


def test_a_slice_does_not_carry_its_parent() -> None:
    """Two rows of a large table, frame or array are small on either road."""
    big = pa.table({"a": np.arange(1_000_000)})
    for part in (big.slice(5, 2), big.to_pandas().iloc[5:7], np.arange(1_000_000)[5:7]):
        kind, header, buffers = kernel.dump("v", part, allow_pickle=False)
        assert kind == "safe"
        assert len(header) + sum(map(len, buffers)) < 10_000
        parcel = values.pack({"v": part}, peer=peer())
        assert len(parcel.header) + sum(map(len, parcel.buffers)) < 10_000
        assert same(part, put(v=part)["v"])


def test_a_frame_of_floats_crosses_with_one_copy() -> None:
    """Dumping and unpacking floats takes the memory of one copy, and no second one at its peak."""
    df = pd.DataFrame(np.random.default_rng(1).random((125_000, 10)))
    tracemalloc.start()
    try:
        kind, header, buffers = kernel.dump("v", df, allow_pickle=False)
        parcel = Parcel(kind, header, [memoryview(b).toreadonly() for b in buffers])
        back = values.unpack(parcel, name="v")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 15e6
    pd.testing.assert_frame_equal(back, df)


# -- put -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: (i for i in ()), "list"),
        (threading.Lock, "in a cell"),
        (lambda: sqlite3.connect(":memory:"), "connect in a cell"),
        (socket.socket, "connect in a cell"),
        (lambda: Path(__file__).open(), "path"),  # noqa: SIM115
        (deep, "deep"),
    ],
)
def test_put_refuses_by_name(make: Any, advice: str) -> None:
    """What cannot be pickled is refused with its name, its type and what to do instead."""
    obj = make()
    try:
        with pytest.raises(PutError, match=f"'bad'.*{type(obj).__name__}.*{advice}"):
            values.pack({"good": 1, "bad": obj}, peer=peer())
    finally:
        if hasattr(obj, "close"):
            obj.close()


def test_put_refuses_a_memmap(tmp_path: Path) -> None:
    """A memmap would arrive as a copy that no longer writes to its file."""
    mapped = np.memmap(tmp_path / "m", mode="w+", shape=3)
    with pytest.raises(PutError, match=r"'m'.*file.*numpy\.array"):
        values.pack({"m": mapped}, peer=peer())


@pytest.mark.parametrize(
    ("packages", "obj", "kind"),
    [
        ({"pandas": "2.3.0"}, frame(a=[1]), "safe"),
        ({"pandas": "2.3.0"}, [1, Point(1)], "pickle"),
        ({"pandas": None}, pd.Timestamp("2024"), "safe"),
        ({"numpy": "1.26.4"}, np.arange(3), "safe"),
        ({"numpy": "1.26.4"}, np.float64(3), "safe"),
        ({"pyarrow": None}, {"a": 1}, "pickle"),
        ({"pyarrow": None}, frame(s=["x"] * 5000), "safe"),
    ],
)
def test_versions_decide_how_a_put_travels(packages: Any, obj: object, kind: str) -> None:
    """Pickle only when the libraries that a value is made of have the same major version."""
    parcel = values.pack({"v": obj}, peer=peer(**packages))
    assert parcel.kind == kind
    back = kernel.load(parcel.kind, parcel.header, list(map(bytearray, parcel.buffers)))
    assert same(obj, back["v"])


def test_a_put_that_needs_pickle_is_refused_for_another_python() -> None:
    """The refusal names the variable and both versions."""
    with pytest.raises(PutError, match=r"'p'.*Point.*3\.99"):
        values.pack({"ok": 1, "p": Point(1)}, peer=peer("3.99.0"))


def test_pickle_only_when_it_is_allowed() -> None:
    """Bytes of a pickle are not looked at unless the caller says so."""
    kind, header, buffers = kernel.dump("p", Point(3), allow_pickle=True)
    assert kind == "pickle"
    with pytest.raises(NotPortable, match="allow_pickle=True"):
        values.unpack(Parcel(kind, header, buffers), name="p")
    assert got(Point(3), allow_pickle=True) == Point(3)
