"""What the system's faults of disks mean, in one place for journal and blobs."""

from __future__ import annotations

import errno

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
