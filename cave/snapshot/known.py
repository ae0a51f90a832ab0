"""What lies in packs already, by its SHA-256: so that nothing is written twice.

It knows what the last snapshots that were written or looked through refer to. When packs were
removed since, by whomever, it forgets everything, for what it knows may be gone.
"""

from __future__ import annotations

import contextlib

from cave.errors import SnapshotCorrupt

from .folder import Folder
from .manifest import Manifest
from .pack import Packs
from .refs import ZERO, Ref, pack_name
from .tree import Buffer, nodes

MOST = 400_000
"""Chunks that are remembered: 25 GB in chunks of 64 KiB."""


class Known:
    """References by the SHA-256 of what they name."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._stamp = b""
        self._refs: dict[bytes, Ref] = {}
        self._seen: set[tuple[bytes, ...]] = set()
        self._learned = ""
        self._bad: set[tuple[int, int]] = set()
        self._new: dict[bytes, Ref] = {}
        self._sizes: dict[int, int] = {}

    def begin(self) -> None:
        """Before a snapshot is written."""
        self._new, self._sizes = {}, {}
        stamp = self._folder.stamp()
        if stamp != self._stamp or len(self._refs) > MOST:
            self._refs.clear()
            self._seen.clear()
            self._learned = ""
            self._stamp = stamp

    def learn(self, base: Manifest | None, packs: Packs) -> None:
        """Look through everything that a snapshot holds, unless that is known."""
        if base is None or base.id == self._learned:
            return
        for group in base.groups:
            self._refs.update({ref.sha: ref for ref in group.stream})
            for buffer in group.buffers:
                self._look_through(buffer, packs)
        self._learned = base.id

    def _look_through(self, buffer: Buffer, packs: Packs) -> None:
        key = tuple([ref.sha for ref in buffer.refs])
        if key in self._seen:
            return
        try:
            found = [ref for _, ref in nodes(buffer, packs)]
        except SnapshotCorrupt:
            return  # what cannot be read is written again
        self._refs.update({ref.sha: ref for ref in found if not ref.flags & ZERO})
        self._seen.add(key)

    def get(self, sha: bytes, size: int, before: Ref | None = None) -> Ref | None:
        """Where that content lies; `before` is where it lay in the base."""
        ref = self._new.get(sha) or self._refs.get(sha) or before
        if ref is None or ref.size != size or (ref.pack, ref.at) in self._bad:
            return None
        return ref if ref.sha in self._new or self._is_there(ref) else None

    def _is_there(self, ref: Ref) -> bool:
        """Whether the pack is, and is long enough."""
        if ref.pack not in self._sizes:
            try:
                with contextlib.closing(self._folder.open(pack_name(ref.pack))) as pack:
                    self._sizes[ref.pack] = pack.size
            except FileNotFoundError:
                self._sizes[ref.pack] = -1
        return ref.at + ref.stored <= self._sizes[ref.pack]

    def add(self, ref: Ref) -> Ref:
        """What is being written now: certain once `commit` is called."""
        self._new[ref.sha] = ref
        return ref

    def distrust(self, ref: Ref) -> None:
        """It was found damaged: the same content is to be written again."""
        self._bad.add((ref.pack, ref.at))

    def commit(self, written: Manifest, base: Manifest | None) -> None:
        """The snapshot is on disk."""
        self._refs.update(self._new)
        self._new = {}
        if base is None or base.id == self._learned:
            self._learned = written.id
