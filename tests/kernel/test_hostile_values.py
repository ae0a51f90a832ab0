"""Bytes from a kernel are data: whatever they are, the host gets a value or a typed error."""

import contextlib
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cave.errors import NotPortable
from cave.kernel import values
from cave.kernel.values import Parcel
from tests.kernel._crossing import got, kernel
from tests.kernel._kinds import ARRAYS, FRAMES, OTHERS, SCALARS, same

_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(),
    st.datetimes(), st.times(), st.timedeltas(), st.decimals(allow_nan=False), st.fractions(),
    st.uuids(), st.complex_numbers(), st.characters(categories=["Cs"]),
)  # fmt: skip
_keys = st.one_of(st.integers(), st.text(), st.booleans(), st.tuples(st.integers(), st.text()))
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(_keys, inner)
    ),
    max_leaves=20,
)


@given(_trees)
@settings(deadline=None)
def test_any_tree_round_trips(tree: Any) -> None:
    """Whatever is built of the plain kinds comes back the same on the safe road."""
    assert same(tree, got(tree))


def _parcels() -> list[Parcel]:
    objects = [ARRAYS, FRAMES, OTHERS, SCALARS["dict"], SCALARS["zones"]]
    many = [v for part in objects for v in (part.values() if isinstance(part, dict) else [part])]
    parcels = []
    for obj in many:
        kind, header, buffers = kernel.dump("v", obj, allow_pickle=False)
        parcels.append(Parcel(kind, header, [bytes(b) for b in buffers]))
    return parcels


PARCELS = _parcels()


def _mutated(data: bytes, draw: Any) -> bytes:
    if not data:
        return data
    at = draw(st.integers(0, len(data) - 1))
    match draw(st.sampled_from(["flip", "cut", "insert", "huge"])):
        case "flip":
            return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "insert":
            return data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]
    return data[:at] + b"\xff" * 8 + data[at + 8 :]


@given(st.data())
@settings(max_examples=500, deadline=10_000)
def test_mutated_parcels_raise_or_give_a_value(data: Any) -> None:
    """No bytes of a kernel end, hang or surprise the host: a value, or `NotPortable`."""
    parcel = data.draw(st.sampled_from(PARCELS))
    buffers = list(parcel.buffers)
    header = parcel.header
    for _ in range(data.draw(st.integers(1, 3))):
        target = data.draw(st.integers(-1, len(buffers) - 1))
        if target < 0:
            header = _mutated(header, data.draw)
        else:
            buffers[target] = _mutated(buffers[target], data.draw)
    with contextlib.suppress(NotPortable):
        _use(values.unpack(Parcel("safe", header, buffers), name="v"))


def _use(back: Any) -> None:
    """Look at what came, as a notebook would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            repr(back)
        except (ValueError, OverflowError, RuntimeError, TypeError, AttributeError):
            assert type(back).__module__ != "builtins"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'["cave",2,1]',
        b'["cave",1,["os.system","x"]]',
        b'["cave",1,["np.array","|O",[1],"C",[0,0,8]]]',
        b'["cave",1,["np.array","<f8",[1000000000000],"C",[0,0,0]]]',
        b'["cave",1,["np.array","|V0",[1000000000000],"C",[0,0,0]]]',
        b'["cave",1,["np.array","<U1",[0,-1],"C",[0,0,0]]]',
        b'["cave",1,["np.array",["struct",[["a","|O",0,null]],8,false],[1],"C",[0,0,8]]]',
        b'["cave",1,["list",[["ref",0]]]]',
        b'["cave",1,["bytes",[0,0,99]]]',
        b'["cave",1,["bytes",[0,-1,1]]]',
        b'["cave",1,["zone","../../etc/passwd"]]',
        b'["cave",1,["zone","/etc/passwd"]]',
        b'["cave",1,["defaultdict","eval",["dict",[],[]]]]',
        b'["cave",1,["set",[["list",[]]]]]',
        b'["cave",1,' + b"9" * 100_000 + b"]",
        b'["cave",1,["pd.frame",[],["pd.rangeindex",[0,5,1],null],["pd.rangeindex",[0,2,1],null],[null,true]]]',
        b'["cave",1,{"tree":[0,0,99]}]',
        b'{"cave":1}',
        b"\xff\xfe",
    ],
)
def test_malformed_headers_are_refused(header: bytes) -> None:
    """Each of these is typed trouble, nothing else."""
    with pytest.raises(NotPortable, match="'v' did not arrive whole"):
        values.unpack(Parcel("safe", header, [bytes(8)]), name="v")


def test_names_of_a_pickle_are_not_imported_by_the_safe_codecs() -> None:
    """A safe parcel cannot smuggle a pickle, nor an unknown kind a meaning."""
    for kind in ("pickle", "dill", "", "safe2"):
        with pytest.raises(NotPortable, match="'v' came as"):
            values.unpack(Parcel(kind, b"cos\nsystem\n(S'true'\ntR.", []), name="v")
