"""Letting go: packs that no snapshot needs any more, and the dead parts of those that are.

A snapshot is retired by a rename, so that from then on nobody forks from it; then its pack
goes, if nothing else needs it. Where more than half of a pack is dead its pages are given
back to the file system (Linux), unless a fork has the same file under another name.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cave import failpoints
from cave.errors import SnapshotCorrupt

from .folder import Folder, LocalFolder
from .manifest import Manifest
from .pack import PAGE, TRAILER, Packs
from .refs import Ref, pack_name
from .tree import nodes

WORTH = 1 << 20
"""Dead bytes of a pack for which holes are punched."""


@dataclass(frozen=True, slots=True)
class Retired:
    """What was let go of (or would be)."""

    removed: tuple[str, ...] = ()
    """Packs that are gone."""
    held: tuple[str, ...] = ()
    """Packs of retired snapshots that others still need."""
    freed: int = 0
    """Bytes of disk."""


@dataclass(slots=True)
class Retiring:
    """One run over a session's folder."""

    folder: Folder
    read: Callable[[str], Manifest]
    reach: Mapping[str, Mapping[int, int]]
    """What each snapshot to keep needs of each pack."""
    older: float
    dry: bool
    _removed: list[str] = field(default_factory=list)
    _held: list[str] = field(default_factory=list)
    _freed: int = 0

    def run(self) -> Retired:
        """Remove what may go. Raises `OSError`."""
        needed = {pack_name(number) for used in self.reach.values() for number in used}
        gone = [
            (id, name)
            for id, name in self.folder.files().items()
            if id not in self.reach and self._old_enough(id)
        ]
        work = [(id, name) for id, name in gone if name.endswith(".pack") or id not in needed]
        if work and not self.dry:
            self.folder.stamp(new=True)
        sizes = {id: self.folder.stat(id)[0] for id, _ in work}
        for id, name in work:  # first: none is found any more when something that it needs is gone
            if name.endswith(".pack") and not self.dry:
                self.folder.retire(id)
                failpoints.hit("snapshot.mid_retire")
        for id, _ in work:
            self._let_go(id, sizes[id], needed=id in needed)
        self._punch_all(needed)
        return Retired(tuple(self._removed), tuple(self._held), self._freed)

    def _old_enough(self, id: str) -> bool:
        return self.older <= 0 or self.folder.stat(id)[1] >= self.older

    def _let_go(self, id: str, size: int, *, needed: bool) -> None:
        if needed:
            self._held.append(id)
            return
        if not self.dry:
            self.folder.remove(id)
            failpoints.hit("snapshot.mid_retire")
        self._removed.append(id)
        self._freed += size

    # -- holes -------------------------------------------------------------------------------

    def _punch_all(self, needed: set[str]) -> None:
        if not isinstance(self.folder, LocalFolder) or _fallocate() is None:
            return
        most: dict[int, int] = {}
        for used in self.reach.values():
            for number, size in used.items():
                most[number] = max(size, most.get(number, 0))
        worth = {n for n in most if pack_name(n) in needed and self._worth(n, most[n])}
        if worth:
            live = self._live(worth)
            for number in worth:
                self._punch(self.folder, number, live[number])

    def _worth(self, number: int, live: int) -> bool:
        try:
            size, _ = self.folder.stat(pack_name(number))
        except FileNotFoundError:
            return False
        return size - live > max(WORTH, size // 2)

    def _live(self, worth: set[int]) -> dict[int, list[tuple[int, int]]]:
        """Ranges that kept snapshots need of some packs."""
        live: dict[int, set[tuple[int, int]]] = {number: set() for number in worth}
        seen: set[bytes] = set()
        with Packs(self.folder) as packs:
            for id in self.reach:
                for ref in references(self.read(id), packs, seen):
                    if ref.pack in live:
                        live[ref.pack].add((ref.at, ref.at + ref.stored))
        return {number: sorted(ranges) for number, ranges in live.items()}

    def _punch(self, folder: LocalFolder, number: int, live: list[tuple[int, int]]) -> None:
        path = folder.path / folder.files().get(pack_name(number), "")
        found = path.stat()
        if found.st_nlink != 1:
            return
        own = pack_name(number) in self.reach
        holes = list(_holes(live, found.st_size, whole=own))
        dead = sum(end - at for at, end in holes) - (found.st_size - found.st_blocks * 512)
        if dead <= WORTH:
            return
        self._freed += dead
        if not self.dry:
            folder.stamp(new=True)
            punch(path, holes)


def references(manifest: Manifest, packs: Packs, seen: set[bytes]) -> Iterator[Ref]:
    """Every reference of a snapshot; trees that were seen are left out.

    Raises `SnapshotCorrupt`: of what cannot be read nobody knows what it needs.
    """
    for block in manifest.blocks:
        yield block.ref
    for group in manifest.groups:
        if group.damage:
            raise SnapshotCorrupt(group.damage)
        yield from group.stream
        for buffer in group.buffers:
            key = b"".join([ref.sha for ref in buffer.refs])
            if not buffer.depth or key not in seen:
                seen.add(key)
                yield from (ref for _, ref in nodes(buffer, packs))


def _holes(live: list[tuple[int, int]], size: int, *, whole: bool) -> Iterator[tuple[int, int]]:
    """Whole pages that nothing needs; manifest and trailer stay."""
    end = PAGE  # the header
    for at, stop in [*live, (size - TRAILER if not whole else size, size)]:
        begin, until = -(-end // PAGE) * PAGE, at // PAGE * PAGE
        if until > begin:
            yield begin, until
        end = max(end, stop)


def punch(path: Path, holes: list[tuple[int, int]]) -> None:
    """Give pages of a file back to the file system. Raises `OSError`."""
    fallocate = _fallocate()
    path.chmod(0o600)
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for at, end in holes:
            if fallocate(file, 3, at, end - at):  # PUNCH_HOLE | KEEP_SIZE
                return  # this file system has no holes
    finally:
        os.close(file)
        path.chmod(0o400)


@cache
def _fallocate() -> Any:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
