"""Disks: folders whose names last, and what the system's faults mean."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from cave.errors import StoreError


def explain_os(fault: OSError, path: object) -> StoreError:
    """The `StoreError` for a fault of the system at `path`."""
    name = repr(str(path))
    match fault.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreError(full(name))
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return StoreError(
                f"{name} cannot be written ({fault.strerror}): set CAVE_HOME to a folder that is "
                f"yours"
            )
        case errno.EIO:
            return StoreError(
                f"{name}: the disk failed ({fault.strerror}); nothing of this was written: look at "
                f"the system's log, then try again"
            )
        case _:
            return StoreError(f"{name}: {fault}")


def full(name: str) -> str:
    """The sentence for a full disk."""
    return (
        f"the disk that holds {name} is full; nothing of this was written: make room on it and "
        f"do the same again"
    )


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durable in its parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
