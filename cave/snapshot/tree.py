"""Buffers as trees of references, so that one changed chunk of many costs little.

The references to a buffer's chunks lie in nodes of 64, the references to those in nodes
again, until at most 4 are left: these stand in the manifest. A changed chunk is written
anew, and so is its node on each level: 9 KB for a chunk in a gigabyte. Nodes say where chunks
lie, so that equal content has other nodes elsewhere; a second hash names it by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .pack import Packs
from .refs import ZERO, Ref, packed, sha256, unpacked

FANOUT = 64
INLINE = 4


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a group as it is in packs."""

    id: str
    size: int
    chunk: int
    depth: int
    """Levels of nodes between `refs` and the chunks."""
    refs: tuple[Ref, ...]
    packs: tuple[tuple[int, int], ...]
    """Bytes, by pack: of its chunks and nodes."""

    @property
    def content(self) -> tuple[int, int, tuple[bytes, ...]]:
        """Equal for buffers of equal content, wherever it lies."""
        return self.size, self.chunk, tuple([_content(ref, self.depth) for ref in self.refs])

    @property
    def count(self) -> int:
        """Chunks."""
        return -(-self.size // self.chunk)


def depth_of(count: int) -> int:
    """Levels of nodes that a buffer of so many chunks has."""
    depth = 0
    while count > INLINE:
        count, depth = -(-count // FANOUT), depth + 1
    return depth


def nodes(buffer: Buffer, packs: Packs) -> Iterator[tuple[int, Ref]]:
    """Every reference with its level (0: a chunk), those of one level in order.

    Raises `SnapshotCorrupt` for a node that is damaged.
    """
    yield from _below(buffer.refs, buffer.depth, packs)


def _below(refs: Sequence[Ref], depth: int, packs: Packs) -> Iterator[tuple[int, Ref]]:
    for ref in refs:
        yield depth, ref
        if depth:
            yield from _below(unpacked(packs.read(ref)), depth - 1, packs)


def chunks(buffer: Buffer, packs: Packs) -> list[Ref]:
    """References to all chunks in their order. Raises `SnapshotCorrupt`."""
    refs = list(buffer.refs)
    for _ in range(buffer.depth):
        refs = [below for ref in refs for below in unpacked(packs.read(ref))]
    return refs


Record = Callable[[bytes], Ref]
"""Puts a node into a pack."""


def build(id: str, size: int, chunk: int, refs: list[Ref], record: Record) -> Buffer:
    """A tree over chunks, with its nodes."""
    used: Counter[int] = Counter()
    for ref in refs:
        used[ref.pack] += ref.stored
    depth = 0
    while len(refs) > INLINE:
        refs = [_node(refs[at : at + FANOUT], depth, record) for at in range(0, len(refs), FANOUT)]
        for ref in refs:
            used[ref.pack] += ref.stored
        depth += 1
    return Buffer(id, size, chunk, depth, tuple(refs), _sorted(used))


def _node(refs: list[Ref], depth: int, record: Record) -> Ref:
    """A node; its reference names the content below it in the place of a checksum."""
    content = sha256(b"".join([_content(ref, depth) for ref in refs]))
    return record(packed(refs))._replace(xxh=content[:16])


def _content(ref: Ref, depth: int) -> bytes:
    """The name of what a reference leads to: equal for equal content."""
    return ref.xxh if depth else ref.sha


def update(buffer: Buffer, changed: Mapping[int, Ref], packs: Packs, record: Record) -> Buffer:
    """The tree with other chunks at some places. Raises `SnapshotCorrupt`."""
    used = Counter(dict(buffer.packs))

    def renewed(refs: list[Ref], depth: int, changed: Mapping[int, Ref]) -> list[Ref]:
        for at, ref in (renewed_nodes(refs, depth, changed) if depth else changed).items():
            used[refs[at].pack] -= refs[at].stored
            used[ref.pack] += ref.stored
            refs[at] = ref
        return refs

    def renewed_nodes(refs: list[Ref], depth: int, changed: Mapping[int, Ref]) -> Mapping[int, Ref]:
        span = FANOUT**depth
        below: dict[int, dict[int, Ref]] = {}
        for index, ref in changed.items():
            below.setdefault(index // span, {})[index % span] = ref
        return {
            at: _node(renewed(unpacked(packs.read(refs[at])), depth - 1, some), depth - 1, record)
            for at, some in below.items()
        }

    refs = renewed(list(buffer.refs), buffer.depth, changed)
    return replace(buffer, refs=tuple(refs), packs=_sorted(used))


def _sorted(used: Counter[int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((pack, size) for pack, size in used.items() if size > 0))


def zero(size: int, sha: bytes) -> Ref:
    """A chunk of nothing but zeros."""
    return Ref(0, 0, 0, size, ZERO, sha, bytes(16))
