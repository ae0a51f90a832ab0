"""What is kept: the rule of retention, the key of a home, a reserve of disk."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cave.errors import StoreError
from cave.store.disk import explain_os, make_folder, sync_folder

from .retire import Retired

T = TypeVar("T")

DAY = 86400.0
KEY = 32


@dataclass(frozen=True, slots=True)
class Retention:
    """Which snapshots stay: all that have a name, the newest, and ever fewer of the older."""

    last: int = 100
    """So many of the newest."""
    every: int = 10
    """Of older ones the first in each so many cells."""
    span: int = 1000
    """So many cells back."""
    turns: int = 100
    """The last of so many turns."""
    always: int = 2
    """However the others are set, so many of the newest."""

    def keep(self, snapshots: Iterable[tuple[str, int, str, bool]]) -> set[str]:
        """Ids of those to keep, of (id, cell, name, whether it is the last of a turn) in the
        order in which they were taken."""
        given = list(snapshots)
        ends = [id for id, _, _, end in given if end]
        kept = {id for id, _, name, _ in given if name}
        kept.update(_tail(ends, self.turns))
        kept.update(id for id, *_ in _tail(given, max(self.last, self.always)))
        newest = given[-1][1] if given else 0
        first: dict[int, tuple[str, int]] = {}
        for id, cell, _, _ in given:  # the first of each ten cells: it stays the first
            first.setdefault(cell // self.every, (id, cell))
        kept.update(id for id, cell in first.values() if cell > newest - self.span)
        return kept


def _tail(values: list[T], count: int) -> list[T]:
    return values[-count:] if count > 0 else []


def home_key(folder: Path) -> bytes:
    """The key that signs a home's snapshots: made once, and never given to a kernel.

    Raises `StoreError`.
    """
    path = folder / "key"
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read_key(path)
        make_folder(folder)
        new = folder / f"key.{secrets.token_hex(8)}"
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, secrets.token_bytes(KEY))
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):  # another process was first: its key holds
            os.link(new, path)
        new.unlink()
        sync_folder(folder)
        return _read_key(path)
    except OSError as fault:
        raise explain_os(fault, path) from fault


def _read_key(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) != KEY:
        raise StoreError(
            f"{str(path)!r} is not a key of {KEY} bytes; bring the file back from a copy, or move "
            f"it away: snapshots that it signed cannot be read then"
        )
    return key


class Reserve:
    """Disk that is set aside, to be let go of when results of effects must be written."""

    def __init__(self, path: Path, size: int = 8 << 20) -> None:
        self.path = path
        self.size = size

    @property
    def held(self) -> bool:
        """Whether the space is set aside now."""
        with contextlib.suppress(OSError):
            found = self.path.stat()
            return found.st_size == self.size and found.st_blocks * 512 >= self.size
        return False

    def ensure(self) -> bool:
        """Set the space aside; False when there is not so much."""
        if self.held:
            return True
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _allocate(file, self.size)
            finally:
                os.close(file)
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Give the space back; False when there was none."""
        held = self.held
        self.path.unlink(missing_ok=True)
        return held


def _allocate(file: int, size: int) -> None:
    os.ftruncate(file, 0)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        for _ in range(0, size, 1 << 20):
            os.write(file, bytes(1 << 20))
    os.fsync(file)


def sweep(
    home: Path,
    kept: Mapping[str, Collection[str]],
    *,
    key: bytes,
    now: bool = False,
    dry_run: bool = False,
) -> Mapping[str, Retired | StoreError]:
    """Remove what sessions of a home no longer need: files that were never finished, and
    packs that no snapshot in `kept` (by session) refers to, when older than a day or `now`.

    A session whose snapshots cannot be read is left alone, and its fault given.
    """
    from .store import Snapshots

    found: dict[str, Retired | StoreError] = {}
    for session, keep in kept.items():
        folder = home / "sessions" / session / "snapshots"
        if folder.is_dir():
            store = Snapshots(folder, session=session, key=key)
            try:
                found[session] = store.retire(keep, older=0.0 if now else DAY, dry_run=dry_run)
            except StoreError as fault:
                found[session] = fault
    return found
