"""Which memory nobody else can change, by either way of asking the system."""

import ctypes
import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from tests._inkernel import load

maps = load("image.maps")
SIZE = 1 << 20


def range_of(memory: mmap.mmap) -> tuple[int, int]:
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return start, start + SIZE


def refuse(*_: Any) -> None:
    raise OSError(errno.ENOTTY, "an older system")


@pytest.mark.parametrize("asked", [True, False])
def test_memory_is_told_apart(
    *, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared memory and files of others can change; what is not mapped is nobody's."""
    if not asked:
        monkeypatch.setattr(fcntl, "ioctl", refuse)
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    own = os.memfd_create("cave")
    os.ftruncate(own, SIZE)
    with path.open("r+b") as file:
        private = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        shared = mmap.mmap(-1, SIZE)
        of_file = mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE)
        of_ours = mmap.mmap(own, SIZE, flags=mmap.MAP_PRIVATE)
    os.close(own)
    wanted = [range_of(one) for one in (private, shared, of_file, of_ours)]
    wanted.append((4096, 8192))
    assert maps.are_private(wanted, files=False) == [True, False, False, True, False]
    assert maps.are_private(wanted, files=True) == [True, False, True, True, False]
