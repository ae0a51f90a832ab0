"""Few files: what a snapshot still needs of many old packs moves into its own.

Without this a session of 10,000 cells that each make one variable would keep 10,000 packs.
A snapshot that is to stay (the first of each ten cells) takes over what lies in the packs of
those before it that are not: else all of these would have to stay for its sake.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace

from cave.errors import SnapshotCorrupt

from .keep import Retention
from .manifest import Entry, Group, Manifest
from .pack import Packs, PackWriter
from .refs import ZERO, Ref, checksum
from .tree import Buffer, build, chunks

MOST = 96
"""Packs that a snapshot may need; above, those that hold least are given up."""
LEAST = 48
PORTION = 16 << 20
"""Bytes that are moved at a time, at most."""
PASSING = 2 << 20
"""Bytes that are taken over from packs that are about to go, at most."""
EVERY = Retention().every


def forward(
    entries: list[Entry], base: Manifest | None, packs: Packs, writer: PackWriter, cell: int
) -> tuple[list[Entry], set[int]]:
    """The entries with what lay in packs that are given up, and the numbers of those."""
    if base is None:
        return entries, set()
    leave = passing(base, cell)
    if len(base.used) > MOST:
        leave |= _smallest(base.used, len(base.used) - LEAST, PORTION)
    if not leave:
        return entries, leave
    writer.flush()  # nodes of what changed are read where they were just written
    return [_moved(entry, leave, packs, writer) for entry in entries], leave


def passing(base: Manifest, cell: int) -> set[int]:
    """Packs that will not stay for their own sake, when the snapshot of `cell` is one to stay."""
    ten = base.cell // EVERY
    if cell // EVERY == ten:
        return set()
    some = {
        number: size
        for number, size in base.used.items()
        if (of := number >> 32) // EVERY == ten and of % EVERY
    }
    return _smallest(some, len(some), PASSING)


def _smallest(used: Mapping[int, int], count: int, most: int) -> set[int]:
    """So many packs that hold least, as far as `most` bytes go."""
    leave, moved = set(), 0
    for number, size in heapq.nsmallest(count, used.items(), key=lambda item: item[1]):
        moved += size
        if moved > most:
            break
        leave.add(number)
    return leave


def _moved(entry: Entry, leave: set[int], packs: Packs, writer: PackWriter) -> Entry:
    group = entry.group
    touched = any(ref.pack in leave for ref in group.stream) or any(
        pack in leave for buffer in group.buffers for pack, _ in buffer.packs
    )
    if not touched:
        return entry
    try:
        moved = _moved_group(group, leave, packs, writer)
    except SnapshotCorrupt:
        return entry  # damaged: it stays where it is, and a restore will name it
    return replace(entry, group=moved)


def _moved_group(group: Group, leave: set[int], packs: Packs, writer: PackWriter) -> Group:
    stream = tuple([_record(ref, leave, packs, writer) for ref in group.stream])
    buffers = tuple([_buffer(buffer, leave, packs, writer) for buffer in group.buffers])
    return replace(group, stream=stream, buffers=buffers)


def _record(ref: Ref, leave: set[int], packs: Packs, writer: PackWriter) -> Ref:
    return writer.record(packs.read(ref), ref.sha) if ref.pack in leave else ref


def _buffer(buffer: Buffer, leave: set[int], packs: Packs, writer: PackWriter) -> Buffer:
    if not any(pack in leave for pack, _ in buffer.packs):
        return buffer
    refs = [_chunk(ref, leave, packs, writer) for ref in chunks(buffer, packs)]
    return build(buffer.id, buffer.size, buffer.chunk, refs, writer.node)


def _chunk(ref: Ref, leave: set[int], packs: Packs, writer: PackWriter) -> Ref:
    if ref.flags & ZERO or ref.pack not in leave:
        return ref
    content = packs.read(ref)
    return writer.chunk(content, ref.sha, checksum(content))
