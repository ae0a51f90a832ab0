"""Looking for damage: of one session's snapshots, without loading any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cave.errors import SnapshotCorrupt, SnapshotError

from .manifest import Entry, Manifest
from .pack import Packs, missing, within
from .refs import ZERO, Ref, pack_name
from .tree import nodes


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a snapshot."""

    snapshot: str
    names: tuple[str, ...]
    """What it costs; nothing when the snapshot cannot be read at all."""
    reason: str


def faults(
    packs: Packs, ids: Sequence[str], read: Callable[[str], Manifest], *, deep: bool
) -> Sequence[Fault]:
    """What is wrong with snapshots: their manifests, and the packs that they need."""
    found: list[Fault] = []
    known: dict[Ref, str] = {}
    for id in ids:
        try:
            manifest = read(id)
        except SnapshotError as fault:
            found.append(Fault(id, (), str(fault)))
            continue
        for entry in manifest.entries:
            reason = next(_wrong(entry, packs, known, deep=deep), "")
            if reason:
                found.append(Fault(id, entry.group.names, reason))
    return found


def _wrong(entry: Entry, packs: Packs, known: dict[Ref, str], *, deep: bool) -> Iterator[str]:
    group = entry.group
    if group.damage:
        yield group.damage
    try:
        refs = [(0, ref) for ref in group.stream]
        refs += [found for buffer in group.buffers for found in nodes(buffer, packs)]
    except SnapshotCorrupt as fault:
        yield str(fault)
        return
    for _, ref in refs:
        if ref not in known:
            known[ref] = _fault(ref, packs, deep=deep)
        if known[ref]:
            yield known[ref]


def _fault(ref: Ref, packs: Packs, *, deep: bool) -> str:
    if ref.flags & ZERO:
        return ""
    try:
        if deep:
            packs.read(ref)
        else:
            within(packs.pack(ref.pack), ref.at, ref.stored)
    except SnapshotCorrupt as fault:
        return str(fault)
    except FileNotFoundError:
        return missing(ref)
    except ValueError as fault:
        return f"{pack_name(ref.pack)}.pack is cut short: {fault}"
    return ""
