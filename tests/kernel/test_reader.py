"""What a kernel sent is read elsewhere first: that process may crash, hang or starve over it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from cave.errors import NotPortable
from cave.kernel import door, reader, values
from cave.kernel.values import Parcel
from tests.kernel import _armed, _arrow
from tests.kernel._crossing import got, kernel

TABLE = pa.table({"a": ["x", None]})


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Readers that parcels have in their power; none is left."""
    reader.close()
    monkeypatch.setattr(reader, "_PROGRAM", [_armed.__file__, *reader._PROGRAM])
    yield
    reader.close()


def fetch(tag: str) -> Any:
    """What a parcel gives that has the reader do something."""
    header = json.dumps(["cave", 1, [tag]]).encode()
    return values.unpack(Parcel("safe", header, [b""]), name="v")


@pytest.mark.parametrize(
    ("tag", "why", "limits"),
    [
        ("pa.crash", "ended by SIGSEGV", {}),
        ("pa.spin", "ended because it took too long", {"_SECONDS": 1, "_CLOCK": 120}),
        ("pa.sleep", "did not come to an end in 2 seconds", {"_SECONDS": 1}),
        ("pa.eat", "takes more than 134 MB of memory", {"_MEMORY": 1 << 27}),
    ],
)
@pytest.mark.usefixtures("armed")
def test_what_the_reader_does_not_survive_is_refused(
    tag: str, why: str, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told by name, the host goes on, and the next value comes."""
    with monkeypatch.context() as patch:
        for name, number in limits.items():
            patch.setattr(reader, name, number)
        with pytest.raises(NotPortable, match=f"'v' .*{why}"):
            fetch(tag)
    assert got(TABLE).equals(TABLE)
    assert len(reader._all) == 1


@pytest.mark.usefixtures("armed")
def test_streams_that_kill_a_reader_of_arrow_kill_no_host() -> None:
    """Mutated streams are read without validation, until one has killed its reader for real."""
    _, header, (small, stream) = kernel.dump("v", pa.table(_arrow.columns()), allow_pickle=False)
    said = ""
    for number in range(2000):
        changed = _arrow.mutated(random.Random(number), bytes(stream))
        try:
            values.unpack(Parcel("safe", header, [bytes(small), changed]), name="v")
        except NotPortable as error:
            said = str(error)
        if "ended by SIG" in said:
            break
    print(number, said)
    assert "ended by SIG" in said
    assert got(TABLE).equals(TABLE)


def test_some_bytes_that_ask_for_all_memory_get_little() -> None:
    """A stream of two hundred bytes, of which polars makes a column of 34 GB, is refused."""
    rows = (1 << 31) - 1
    schema = pa.schema([("a", pa.null())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.nulls(rows)], schema))
    data = sink.getvalue().to_pybytes()
    frame = ["pl.frame", [["a", "String"]], rows, ["pa.table", [0, 0, len(data)]]]
    with pytest.raises(NotPortable, match="'v' "):
        values.unpack(Parcel("safe", json.dumps(["cave", 1, frame]).encode(), [data]), name="v")
    assert got(TABLE).equals(TABLE)


@pytest.mark.usefixtures("armed")
def test_the_reader_has_nothing_and_may_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of the host's environment, no socket of it; no file, no network, no signal."""
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    with pytest.raises(NotPortable) as caught:
        fetch("pa.tell")
    found = json.loads(str(caught.value).partition("whole: ")[2])
    assert found == [False, 1, [], *["PermissionError"] * 4]


def test_what_is_small_and_plain_needs_no_reader() -> None:
    """Numbers, texts, lists and dicts come without a process; a hidden tag does not."""
    reader.close()
    for value in (1, "text", {"a": [1, {2}, (b"3", None)]}, np.float64(0.5), np.datetime64(1, "s")):
        assert got(value) == value
    assert not reader._all
    _, header, buffers = kernel.dump("v", TABLE, allow_pickle=False)
    hidden = header.replace(b'"pa.table"', rb'"p\u0061.table"')
    assert hidden != header
    parts = [bytes(buffer) for buffer in buffers]
    assert values.unpack(Parcel("safe", hidden, parts), name="v").equals(TABLE)
    assert len(reader._all) == 1
    with pytest.raises(values.Elsewhere):
        values.unpack(Parcel("safe", header, parts), name="v", at_once=True)


def test_what_came_through_the_door_is_read_as_it_is() -> None:
    """The reader gets the sealed file itself, and no descriptor of it stays."""
    _, header, buffers = kernel.dump("v", TABLE, allow_pickle=False)
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    layout, end = [], 0
    for part in (header, *buffers):
        layout.append([end, os.pwrite(fd, part, end)])
        end += -(-len(part) // 64) * 64
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x000E)
    first, *parts = door.unpack(fd, layout)
    owner = door.given(parts)
    assert owner is not None
    assert owner.file is not None
    assert door.given([*parts, b"another"]) is None
    assert door.given(parts[1:]) is None
    assert values.unpack(Parcel("safe", bytes(first), parts), name="v").equals(TABLE)
    assert owner.file is None


def test_threads_read_at_the_same_time() -> None:
    """None waits for another; one reader is kept."""
    ready, came = threading.Barrier(4), []

    def work() -> None:
        ready.wait(60)
        came.append(got(TABLE).equals(TABLE))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert came == [True] * 4
    assert len(reader._idle) == len(reader._all) == 1


HOST = """
import os, sys, threading, time
from cave.kernel import reader, values
def fetch(node):
    header = b'["cave",1,' + node + b']'
    return values.unpack(values.Parcel("safe", header, [bytes(8)]), name="v")
ARRAY = b'["np.array","<i8",[1],"C",[0,0,8]]'
assert fetch(ARRAY) == [0]
(idle,) = reader._idle
fork = os.fork()
if not fork:
    assert fetch(ARRAY) == [0]
    assert reader._idle[0].pid != idle.pid
    print("fork", os.getpid(), flush=True)
    time.sleep(600)
reader._idle.clear()
reader._PROGRAM.insert(0, sys.argv[1])
threading.Thread(target=fetch, args=[b'["pa.spin"]']).start()
while len(reader._all) < 2:
    time.sleep(0.01)
print("readers", *(one.pid for one in reader._all), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system ends it by a signal of Linux")
def test_readers_end_with_a_host_that_is_killed() -> None:
    """The idle one and one that hangs, even while a fork of the host lives on."""
    done = subprocess.Popen(
        [sys.executable, "-c", HOST, _armed.__file__],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    assert done.stdout is not None
    told = dict(done.stdout.readline().strip().partition(" ")[::2] for _ in range(2))
    processes = [psutil.Process(int(pid)) for pid in told["readers"].split()]
    fork = psutil.Process(int(told["fork"]))
    try:
        done.kill()
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert not alive
        assert fork.is_running()
    finally:
        children = fork.children()
        fork.kill()
        with contextlib.closing(done.stdout):
            done.wait(60)
    assert not psutil.wait_procs(children, timeout=60)[1]
