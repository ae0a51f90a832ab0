"""The image that a kernel left when its host was gone (see `cave/inkernel/image/pending.py`).

It is bytes of a kernel like any other: copied out of its reach, then checked like a message.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from pathlib import Path
from typing import Any

from cave.errors import SnapshotError
from cave.image import Image
from cave.kernel import launch
from cave.kernel.images import decode

_MAGIC = b"CAVEIMG1"
_LONGEST = 256 << 20
"""Bytes of the longest description that is read."""
_PAGE = 4096
_SLICE = 64 << 20


def pending(folder: Path, number: int) -> Image | None:
    """What kernel `number` of the session in `folder` left; None when it left nothing.

    Raises `SnapshotError` when it is not in order: then it is to be discarded.
    """
    try:
        fd = os.open(_path(folder, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SnapshotError(f"what the kernel left cannot be opened: {exc}") from exc
    try:
        told, blob = _read(fd)
    except (OSError, ValueError, RecursionError) as exc:
        raise SnapshotError(f"what the kernel left cannot be read: {exc}") from exc
    finally:
        os.close(fd)
    return decode(told, blob, id=str(told.get("id")), base=None)


def discard(folder: Path, number: int) -> None:
    """It is committed, or worth nothing."""
    _path(folder, number).unlink(missing_ok=True)


def _path(folder: Path, number: int) -> Path:
    return launch.home(folder, number) / "pending" / "image"


def _read(fd: int) -> tuple[dict[str, Any], memoryview]:
    facts = os.fstat(fd)
    head = os.pread(fd, len(_MAGIC) + 8, 0)
    length = int.from_bytes(head[len(_MAGIC) :], "little")
    start = -(-(len(head) + length) // _PAGE) * _PAGE
    if not stat.S_ISREG(facts.st_mode) or head[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no image")
    if length > _LONGEST or start >= facts.st_size:
        raise ValueError("its description is cut short")
    told = json.loads(os.pread(fd, length, len(head)))
    if not isinstance(told, dict):
        raise ValueError("it describes nothing")
    return told, _copied(fd, start, facts.st_size - start)


def _copied(fd: int, start: int, size: int) -> memoryview:
    """The parts, where no kernel can change them any more."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(memory)
    done = 0
    while done < size:
        got = os.preadv(fd, [view[done : done + _SLICE]], start + done)
        if not got:
            raise ValueError("it is cut short")
        done += got
    return view.toreadonly()
