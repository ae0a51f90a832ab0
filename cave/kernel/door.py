"""The host's side of the door: descriptors to and from the kernel, and files in memory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_LIMIT = 30.0
_ALIGN = 64
_SLICE = 64 << 20
_GET_SEALS = 1034
_SEALED = 0x000E  # F_SEAL_SHRINK | GROW | WRITE


class Given(mmap.mmap):
    """A file that the kernel gave and cannot change any more, mapped.

    `file` is its descriptor for a process that is to read it, too, until `let_go`; `layout`
    tells where each part lies in it.
    """

    file: int | None = None
    layout: Sequence[Sequence[int]] = ()

    def let_go(self) -> None:
        """Close the descriptor; the memory stays."""
        file, self.file = self.file, None
        if file is not None:
            os.close(file)

    __del__ = let_go


class DoorError(OSError):
    """The kernel did not answer at the door, or gave what cannot be trusted."""


def give(door: Path, *fds: int) -> str:
    """Pass descriptors to the kernel (ours stay open); the token that they lie under."""
    token = secrets.token_hex(8)
    with _visit(door) as connection:
        request = json.dumps({"op": "give", "token": token, "count": len(fds)}).encode()
        socket.send_fds(connection, [request], list(fds))
        if not connection.recv(4096):
            raise DoorError("the kernel refused the descriptor")
    return token


def take(door: Path, token: str) -> int:
    """The descriptor that the kernel holds under `token`; the caller closes it."""
    (fd,) = take_all(door, token, 1)
    return fd


def take_all(door: Path, token: str, count: int) -> list[int]:
    """The `count` descriptors that the kernel holds under `token`; the caller closes them."""
    with _visit(door) as connection:
        connection.send(json.dumps({"op": "take", "token": token}).encode())
        _, fds, _, _ = socket.recv_fds(connection, 4096, count)
    if len(fds) != count:
        for fd in fds:
            os.close(fd)
        raise DoorError(f"the kernel gave {len(fds)} descriptors, not {count}")
    return fds


@contextlib.contextmanager
def _visit(door: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_LIMIT)
        connection.connect(os.fspath(door))
        yield connection


@contextlib.contextmanager
def parcel(
    buffers: Sequence[memoryview], folder: Path | None
) -> Iterator[tuple[int, list[list[int]]]]:
    """A file in memory with `buffers`, and where each lies in it (offset, size).

    Where there are no such files it is one in `folder`, or where temporary files are.
    """
    fd = _file(folder)
    try:
        layout, end = [], 0
        for buffer in buffers:
            offset = -(-end // _ALIGN) * _ALIGN
            _write(fd, buffer, offset)
            layout.append([offset, buffer.nbytes])
            end = offset + buffer.nbytes
        os.ftruncate(fd, max(end, 1))
        yield fd, layout
    finally:
        os.close(fd)


def _file(folder: Path | None) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cave", os.MFD_CLOEXEC)
    fd, name = tempfile.mkstemp(dir=folder)
    Path(name).unlink()
    return fd


def _write(fd: int, buffer: memoryview, offset: int) -> None:
    view, done = buffer.cast("B"), 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done : done + _SLICE], offset + done)


def unpack(fd: int, layout: Sequence[Sequence[int]]) -> list[memoryview]:
    """Map what the kernel gave (`fd` is closed), as parts of one `Given`.

    Raises `DoorError` unless it is sealed.
    """
    if not hasattr(os, "memfd_create"):  # nothing is sealed: only a copy stays as it is
        return _parts(memoryview(bytearray(whole(fd))), layout)
    kept = os.dup(fd)
    try:
        view = whole(fd, access=mmap.ACCESS_COPY)
    except BaseException:
        os.close(kept)
        raise
    assert isinstance(view.obj, Given)
    view.obj.file, view.obj.layout = kept, layout
    return _parts(view, layout)


def _parts(view: memoryview, layout: Sequence[Sequence[int]]) -> list[memoryview]:
    size = view.nbytes
    if not all(offset >= 0 and 0 <= length <= size - offset for offset, length in layout):
        raise DoorError("the kernel described a file wrongly")
    return [view[offset : offset + length] for offset, length in layout]


def given(parts: Sequence[Any]) -> Given | None:
    """The file whose parts, all but the first, these are; None when they are of no one file."""
    owners = [memoryview(part).obj for part in parts]
    if not owners or not isinstance(owner := owners[0], Given) or owner.file is None:
        return None
    whole = len(owner.layout) == len(owners) + 1 and all(each is owner for each in owners)
    return owner if whole else None


def whole(fd: int, *, access: int = mmap.ACCESS_READ) -> memoryview:
    """All of a file that the kernel gave (`fd` is closed). Raises `DoorError` unless sealed."""
    try:
        if hasattr(os, "memfd_create"):
            try:
                seals = fcntl.fcntl(fd, _GET_SEALS)
            except OSError:  # no file in memory
                seals = 0
            if seals & _SEALED != _SEALED:
                raise DoorError("the kernel gave a file that it could still change")
        size = os.fstat(fd).st_size
        if not size:
            raise DoorError("the kernel gave an empty file")
        return memoryview(Given(fd, size, access=access))
    finally:
        os.close(fd)
