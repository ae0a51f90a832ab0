"""Objects in and out of a real kernel: small inline, large through the door; faults named."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cave.errors import NotPortable, PutError, UnknownName
from cave.kernel import door, reader
from tests.kernel._host import Host, text


@pytest.mark.parametrize("rows", [3, 200_000])
def test_frames_cross_and_come_back_equal(
    host: Host, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame is the same object's equal after put and get, inline and through the door; the
    reader had it before, and what came through the door is not copied for it."""
    check, whole = reader.check, []

    def spied(header: bytes, buffers: Sequence[Any]) -> None:
        whole.append(door.given(buffers) is not None)
        check(header, buffers)

    monkeypatch.setattr(reader, "check", spied)
    frame = pd.DataFrame(
        {
            "a": np.arange(rows),
            "b": np.arange(rows) / 7,
            "c": ["x", "y", "z"] * (rows // 3) + ["w"] * (rows % 3),
        }
    )
    rows_told = host(host.kernel.put({"frame": frame, "n": rows}, lease=host.lease))
    assert {v.name for v in rows_told} == {"frame", "n"}
    assert next(v for v in rows_told if v.name == "frame").shape == (rows, 3)
    pd.testing.assert_frame_equal(host(host.kernel.get("frame", lease=host.lease)), frame)
    assert text(host.run("n == len(frame)")) == "True"
    assert whole == [rows > 3]


def test_what_was_shared_before_a_put_is_shared_after(host: Host) -> None:
    """Values of one put keep sharing their buffers."""
    array = np.zeros(100_000)
    host(host.kernel.put({"whole": array, "view": array[:10]}, lease=host.lease))
    assert text(host.run("whole[0] = 7; int(view[0])")) == "7"


def test_what_was_put_can_be_written_and_is_not_the_hosts(host: Host) -> None:
    """The kernel's copy is writable; writing to it changes nothing on the host."""
    array = np.zeros(1_000_000)
    host(host.kernel.put({"array": array}, lease=host.lease))
    assert text(host.run("array[:] = 5; float(array.sum())")) == "5000000.0"
    assert array.sum() == 0
    got = host(host.kernel.get("array", lease=host.lease))
    got[0] = 9
    assert text(host.run("float(array[0])")) == "5.0"


def test_memory_of_values_is_given_back(host: Host) -> None:
    """Repeated put, get and delete of 80 MB leaves neither memory nor descriptors behind."""
    array = np.ones(10_000_000)

    def fds(pid: int | str) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    def shared(pid: int | str) -> int:
        return Path(f"/proc/{pid}/maps").read_text().count("memfd:cave")

    kernel = host.kernel
    mapped = shared(kernel.facts.pid)
    for round_ in range(6):
        host(kernel.put({"big": array}, lease=host.lease))
        got = host(kernel.get("big", lease=host.lease))
        assert got[5] == 1
        del got
        host(kernel.delete(["big"], lease=host.lease))
        if round_ == 1:
            before = fds("self"), fds(kernel.facts.pid)
    assert shared(kernel.facts.pid) <= mapped
    assert shared("self") == 0
    assert fds("self") + fds(kernel.facts.pid) < sum(before) + 4  # one a round would be a leak


def test_a_large_put_is_at_memory_speed(host: Host) -> None:
    """50 MB go in within a small multiple of the time that one copy of them takes."""
    host.run("import numpy, pandas")
    frame = pd.DataFrame(np.random.default_rng(0).random((819_200, 8)))

    def seconds(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    copied = min(seconds(frame.copy) for _ in range(3))
    assert copied * 40 > min(
        seconds(lambda: host(host.kernel.put({"frame": frame}, lease=host.lease))) for _ in range(3)
    )
    assert text(host.run("frame.shape")) == "(819200, 8)"


def test_puts_wait_behind_a_running_cell(host: Host) -> None:
    """A put during a cell is bound after it, not under its hands."""

    async def during() -> str:
        cell = asyncio.ensure_future(
            host.send("import time\nvalue = 1\ntime.sleep(0.4)\nprint(value)")
        )
        await asyncio.sleep(0.1)
        await host.kernel.put({"value": 2}, lease=host.lease)
        return text(await cell)

    assert host(during()) == "1\n"
    assert text(host.run("value")) == "2"


def test_faults_name_the_variable(host: Host) -> None:
    """What cannot go in, is not there or cannot come out is named, and nothing changes."""
    kernel, lease = host.kernel, host.lease
    with pytest.raises(PutError, match="'bad'"):
        host(kernel.put({"fine": 1, "bad": (i for i in range(3))}, lease=lease))
    assert text(host.run("'fine' in globals()")) == "False"
    with pytest.raises(UnknownName, match="'nowhere'"):
        host(kernel.get("nowhere", lease=lease))
    host.run("one = 1; lock = __import__('threading').Lock()")
    with pytest.raises(UnknownName, match="'nowhere'"):
        host(kernel.delete(["one", "nowhere"], lease=lease))
    assert text(host.run("one")) == "1"
    with pytest.raises(NotPortable, match="'lock'"):
        host(kernel.get("lock", lease=lease))
    with pytest.raises(NotPortable, match="'lock'"):
        host(kernel.get("lock", lease=lease, allow_pickle=True))
    host(kernel.delete(["one"], lease=lease))
    assert "one" not in {v.name for v in host(kernel.variables(lease=lease))}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_a_full_memory_names_the_variables_and_the_session_goes_on(
    host: Host, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """ENOSPC and MemoryError of a put are a PutError with the names; the next put works."""

    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(door, "_write", full)
    with pytest.raises(PutError, match="'big'"):
        host(host.kernel.put({"big": np.zeros(100_000)}, lease=host.lease))
    monkeypatch.undo()
    host(host.kernel.put({"big": np.zeros(100_000)}, lease=host.lease))


def test_without_memfd_a_file_serves(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On systems without files in memory values cross through the runtime folder."""
    monkeypatch.delattr(os, "memfd_create")
    host = make_host()
    host.start()
    host.run("import os; del os.memfd_create")
    array = np.arange(100_000)
    host(host.kernel.put({"array": array}, lease=1))
    np.testing.assert_array_equal(host(host.kernel.get("array", lease=1)), array)
    assert not [p for p in Path(host.kernel.record.runtime).iterdir() if p.name.startswith("tmp")]


def test_a_file_that_the_kernel_could_still_change_is_refused(host: Host) -> None:
    """What comes through the door must be sealed, and its layout must fit."""
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.write(fd, b"x" * 100)
    with pytest.raises(door.DoorError, match="could still change"):
        door.unpack(os.dup(fd), [[0, 10]])
    import fcntl

    fcntl.fcntl(fd, 1033, 0xF)
    with pytest.raises(door.DoorError, match="wrongly"):
        door.unpack(os.dup(fd), [[0, 101]])
    with pytest.raises(door.DoorError, match="wrongly"):
        door.unpack(os.dup(fd), [[-1, 5]])
    assert bytes(door.unpack(fd, [[1, 2]])[0]) == b"xx"


def test_an_interrupt_during_a_put_loses_no_reply(host: Host) -> None:
    """SIGINT while objects are bound is told as a fault of the put, if it hits at all."""
    import random
    import signal

    async def storm() -> None:
        for _ in range(20):
            put = asyncio.ensure_future(host.kernel.put({"p": list(range(2000))}, lease=host.lease))
            await asyncio.sleep(random.random() * 0.004)
            host.kernel._process.send(signal.SIGINT)
            try:
                await put
            except PutError:
                continue

    host(storm())
    assert text(host.run("'well'")) == "'well'"


def test_a_module_that_the_kernel_lacks_is_named_with_the_cure(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PutError says which module, whose interpreter lacks it, and what to type."""
    (tmp_path / "only_here.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    thing = importlib.import_module("only_here").Thing()
    with pytest.raises(PutError) as refused:
        host(host.kernel.put({"thing": thing}, lease=host.lease))
    python = host.kernel.facts.executable
    for part in ("'thing'", "lacks the module 'only_here'", f"{python} -m pip install only_here"):
        assert part in str(refused.value)
