"""Where the entries of a manifest lie, and what it needs of each pack.

Both are made from those of the base: a snapshot in which little changed costs little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cave import failpoints

from .manifest import SHORT, Block, Entry, Group, Manifest, encode, encode_block
from .pack import TRAILER, PackWriter
from .refs import sha256

FULL = 128
"""Entries of a block."""
BLOCKS = 24
"""Blocks from which on the small ones are written anew, together."""

Place = tuple[int, int]
"""Number of a block, and of an entry in it."""


def place(
    entries: Sequence[Entry],
    base: Manifest | None,
    writer: PackWriter,
    leave: Collection[int] = (),
) -> tuple[tuple[Block, ...], tuple[Place, ...]]:
    """Blocks and places of entries: where they were, or in new blocks that are written here.

    Blocks in the packs `leave` are given up.
    """
    blocks = list(base.blocks) if base is not None else []
    places = _old_places(entries, base)
    crowded = _crowded(blocks, Counter([at[0] for at in places if at is not None]))
    crowded |= {number for number, block in enumerate(blocks) if block.ref.pack in leave}
    fresh = [n for n, at in enumerate(places) if at is None or at[0] in crowded]
    for first in range(0, len(fresh), FULL):
        some = fresh[first : first + FULL]
        ref = writer.record(encode_block([entries[index] for index in some]), deflate=SHORT)
        for at, index in enumerate(some):
            places[index] = len(blocks), at
        blocks.append(Block(ref, len(some)))
    return _renumbered(blocks, [at for at in places if at is not None])


def _old_places(entries: Sequence[Entry], base: Manifest | None) -> list[Place | None]:
    """Places of the entries that the base has as they are."""
    if base is None:
        return [None] * len(entries)
    by_id, before, places = base.by_id, base.entries, base.places
    found: list[Place | None] = []
    for entry in entries:
        at = by_id.get(entry.group.id)
        found.append(places[at] if at is not None and before[at] is entry else None)
    return found


def _crowded(blocks: Sequence[Block], live: Mapping[int, int]) -> set[int]:
    """Blocks to write anew: where less than half is needed, and small ones when many."""
    found = {n for n, block in enumerate(blocks) if live[n] * 2 < block.count}
    rest = sorted((n for n in live if n not in found), key=live.__getitem__)
    if len(rest) > BLOCKS:
        found.update(rest[: len(rest) - BLOCKS // 2])
    return found


def _renumbered(
    blocks: Sequence[Block], places: Sequence[Place]
) -> tuple[tuple[Block, ...], tuple[Place, ...]]:
    """Without the blocks that nothing lies in."""
    used = sorted({block for block, _ in places})
    if len(used) < len(blocks):
        number = {block: at for at, block in enumerate(used)}
        places = [(number[block], at) for block, at in places]
    return tuple(blocks[block] for block in used), tuple(places)


def usage(
    entries: Sequence[Entry], blocks: Sequence[Block], base: Manifest | None, own: int
) -> Mapping[int, int]:
    """Bytes that are needed of each pack, by its number."""
    used: Counter[int] = Counter()
    new: Sequence[Entry] = entries
    if base is not None:
        used.update(base.used)
        kept, known = set(map(id, entries)), set(map(id, base.entries))
        new = [entry for entry in entries if id(entry) not in known]
        for entry in base.entries:
            if id(entry) not in kept:
                _count(used, entry.group, -1)
        for block in base.blocks:
            used[block.ref.pack] -= block.ref.stored
    for entry in new:
        _count(used, entry.group, 1)
    for block in blocks:
        used[block.ref.pack] += block.ref.stored
    return {own: 0, **{pack: size for pack, size in used.items() if size > 0}}


def _count(used: Counter[int], group: Group, sign: int) -> None:
    for ref in group.stream:
        used[ref.pack] += sign * ref.stored
    for buffer in group.buffers:
        for pack, size in buffer.packs:
            used[pack] += sign * size


def sign(manifest: Manifest, writer: PackWriter, key: bytes) -> Manifest:
    """Write a manifest and make its pack durable."""
    failpoints.hit("snapshot.before_manifest")
    content = encode(manifest)
    end = writer.at + len(content) + TRAILER
    file = writer.finish(content, key)
    failpoints.hit("snapshot.before_return")
    return replace(manifest, written=end, digest=sha256(content).hex(), file=file)
