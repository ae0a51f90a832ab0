"""What a kernel puts where its host looks for files, descriptors and messages: never waited for,
never followed, never more than fits."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from cave.errors import SnapshotError
from cave.kernel import door, images, spool
from cave.kernel.cells import Tape
from cave.kernel.kernel import left
from cave.kernel.pending import item, pending, progress
from cave.kernel.wire import Codec, Message, Wire
from cave.ports import Death

TOKEN = "0" * 16
SEALS = 0x000E


def test_a_spool_of_pipes_links_and_folders_is_empty(tmp_path: Path) -> None:
    """Nothing in it is waited for or followed, and what may go does."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"cave")
    folder = tmp_path / "spool"
    folder.mkdir()
    os.mkfifo(folder / "1.spool")
    (folder / "2.spool").symlink_to(elsewhere)
    (folder / "3.spool").mkdir()
    (folder / "\u00b2.spool").touch()
    (folder / "4.spool").touch()
    assert left(Tape(folder, Codec("key")), after=0, death=Death(1, "died")) == []
    assert spool.size(folder) > 0
    spool.acknowledge(folder, 100)
    assert sorted(path.name for path in folder.iterdir()) == ["3.spool", "4.spool", "\u00b2.spool"]
    assert elsewhere.exists()


def test_an_image_that_is_no_file_or_full_of_holes_is_refused(tmp_path: Path) -> None:
    """A pipe, a link, a folder, and a file that is larger than the memory: typed trouble, and
    never the bytes of another file."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    folder = tmp_path / "kernels" / "1" / "pending"
    folder.mkdir(parents=True)

    def put(make: Callable[[Path], object]) -> None:
        for name in ("image", "progress", "item"):
            path = folder / name
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            make(path)

    def holes(path: Path) -> None:
        with path.open("wb") as file:
            file.write(b"CAVEIMG2" + (2).to_bytes(8, "little") + bytes(4) + b"{}")
            file.truncate(1 << 43)

    makers: list[Callable[[Path], object]] = [
        os.mkfifo, Path.mkdir, lambda path: path.symlink_to(secret), holes,
    ]  # fmt: skip
    for make in makers:
        put(make)
        with pytest.raises(SnapshotError, match="what the kernel left"):
            pending(tmp_path, 1)
        with pytest.raises(SnapshotError, match="what the kernel left"):
            progress(tmp_path, 1, 1)
        assert "hunter2" not in item(tmp_path, 1)


# -- the door --------------------------------------------------------------------------------


def memory(size: int, seals: int) -> int:
    fd = os.memfd_create("t", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, 1033, seals)
    return fd


GIVEN: dict[str, Callable[[], list[int]]] = {
    "nothing": list,
    "a pipe": lambda: [os.pipe()[0]],
    "a folder": lambda: [os.open("/", os.O_RDONLY)],
    "a device": lambda: [os.open("/dev/zero", os.O_RDONLY)],
    "not sealed": lambda: [memory(10, 0)],
    "still to grow": lambda: [memory(10, 0x8)],
    "empty": lambda: [memory(0, SEALS)],
}


def opened(files: list[str]) -> int:
    """How many descriptors of this process are of these files."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(entry.readlink()) in files
    return found


@pytest.fixture
def answered(tmp_path: Path) -> Iterator[Callable[[list[int]], Path]]:
    """Makes doors behind which somebody gives these descriptors to whoever comes."""
    listeners: list[socket.socket] = []

    def make(fds: list[int]) -> Path:
        path = tmp_path / f"d{len(listeners)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(os.fspath(path))
        listener.listen()
        listeners.append(listener)

        def give() -> None:
            with listener.accept()[0] as visitor:
                visitor.recv(4096)
                socket.send_fds(visitor, [b"+"], fds)
            for fd in fds:
                os.close(fd)

        threading.Thread(target=give, daemon=True).start()
        return path

    yield make
    for listener in listeners:
        listener.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")
@pytest.mark.parametrize("fds", GIVEN.values(), ids=GIVEN)
def test_only_a_sealed_file_comes_through_the_door(
    answered: Callable[[list[int]], Path], fds: Callable[[], list[int]]
) -> None:
    """Whatever else a kernel hands over is an error, and is closed."""
    given = fds()
    files = [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in given]
    before = opened(files)
    path = answered(given)
    with pytest.raises(OSError, match="kernel"):
        door.unpack(door.take(path, TOKEN), [[0, 10]])
    deadline = time.monotonic() + 30
    while opened(files) > before - len(given):  # who gave them closes them, too
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_fills_is_believed_by_its_byte_alone(tmp_path: Path) -> None:
    """A pipe with a byte means done; its end, or something that is no pipe, does not. Nobody
    waits for a byte that the kernel has taken back."""

    def pipe(data: bytes) -> int:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        return reading

    async def told(fd: int) -> bool:
        return await images._filled(fd, 20)

    (tmp_path / "plain").write_bytes(b"+")
    plain = os.open(tmp_path / "plain", os.O_RDONLY)
    found = [asyncio.run(told(fd)) for fd in (pipe(b"+"), pipe(b""), plain)]
    assert found == [True, False, False]


# -- a flood ---------------------------------------------------------------------------------

_SENDER = """
import sys, zmq
from cave.kernel.wire import Codec
socket = zmq.Context().socket(zmq.XPUB)
socket.set_hwm(0)
socket.bind("ipc://" + sys.argv[1] + "-2")
socket.recv()
frames = Codec("key").encode("stream", {"name": "stdout", "text": "x" * 100_000}, {}, "id")
for number in range(int(sys.argv[2])):
    socket.send_multipart([b"topic", b"%d" % number, *frames])
print("sent", flush=True)
sys.stdin.read()
"""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc")
def test_a_flood_waits_in_the_kernel(tmp_path: Path) -> None:
    """Of 200 MB that come while the host is busy it holds little; it gets all of them later."""
    count, base = 2_000, str(tmp_path / "k")
    came: list[int] = []

    async def read(sender: subprocess.Popen[bytes]) -> int:
        context = zmq.Context()
        wire = Wire(context, base, Codec("key"))
        try:
            before = resident()
            wire.subscribe()
            assert sender.stdout is not None
            assert sender.stdout.readline() == b"sent\n"  # the loop does nothing meanwhile
            grown = resident() - before
            done = asyncio.Event()

            def receive(message: Message) -> None:
                came.append(message.number)
                if len(came) == count:
                    done.set()

            wire.on("iopub", receive)
            await asyncio.wait_for(done.wait(), 60)
            return grown
        finally:
            wire.close()
            context.term()

    command = [sys.executable, "-c", _SENDER, base, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        try:
            grown = asyncio.run(read(sender))
        finally:
            sender.kill()
    assert came == list(range(count))
    assert grown < 64 << 20, grown
