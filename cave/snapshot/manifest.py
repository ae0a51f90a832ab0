"""Manifests: what a snapshot holds, in frozen values, and as bytes.

A manifest's groups are *entries* in *blocks* of JSON that lie in packs like everything else,
so that a snapshot in which 1 of 1,000 groups changed writes one new entry and says of the
others where they are: runs of entries in blocks of older packs. What is not of the content
(whether a group was looked at) stands with the runs, for it changes at every cell. The names
stand there too: when a block is damaged, what it costs can still be told.
"""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cave.errors import SnapshotCorrupt
from cave.events import Variable
from cave.image import ImageGroup, Note, worst

from .pack import Packs
from .refs import Ref, pack_name, packed, sha256, unpacked
from .tree import Buffer

SHORT = 8 << 10
"""Bytes from which on a manifest is deflated: less is not worth the memory that it takes."""


@dataclass(frozen=True, slots=True)
class Group:
    """Names that share something mutable, as they are in packs."""

    id: str
    names: tuple[str, ...]
    definitions: bool
    uses: bool
    stream: tuple[Ref, ...]
    buffers: tuple[Buffer, ...]
    notes: tuple[Note, ...]
    size: int
    """Bytes of its content."""
    damage: str = ""
    """Why it cannot be read, when its entry is damaged; then only id and names are known."""

    @property
    def content(self) -> Any:
        """Equal for groups of equal content."""
        stream = tuple((ref.sha, ref.size) for ref in self.stream)
        return stream, tuple(buffer.content for buffer in self.buffers)


@dataclass(frozen=True)
class Entry:
    """A group and the variables of its names, as facts; their fidelity means nothing here."""

    group: Group
    variables: tuple[Variable, ...]

    @cached_property
    def looked_at(self) -> ImageGroup:
        """It, in an image in which it is the same and was looked at."""
        group = self.group
        return ImageGroup(
            group.id,
            group.names,
            same=True,
            checked=True,
            definitions=group.definitions,
            uses=group.uses,
        )

    @cached_property
    def assumed(self) -> ImageGroup:
        """It, in an image in which it is taken to be the same."""
        return replace(self.looked_at, checked=False)

    @cached_property
    def row(self) -> list[Any]:
        """What a manifest says of it: id, flags, names. Made once, since it is written often."""
        group = self.group
        return [group.id, int(group.definitions) | int(group.uses) << 1, *group.names]


@dataclass(frozen=True, slots=True)
class Block:
    """Entries that are stored together."""

    ref: Ref
    count: int


@dataclass(frozen=True)
class Manifest:
    """A snapshot: the namespace after a cell, and where its parts lie."""

    id: str
    """Also of the kernel's image that it is: a later image may be a difference from it."""
    session: str
    name: str
    """What a person called it, else empty."""
    cell: int
    at: float
    """Seconds since 1970."""
    python: str
    packages: Mapping[str, str]
    chunk: int
    parent: str | None
    """The snapshot that it was written as a difference from."""
    entries: tuple[Entry, ...]
    places: tuple[tuple[int, int], ...]
    """Block, and place in it, of each entry."""
    blocks: tuple[Block, ...]
    assumed: frozenset[str]
    """Ids of groups that were not looked at and taken to be as before."""
    loose: tuple[Variable, ...]
    """Variables that no group holds."""
    used: Mapping[int, int]
    """Bytes that it needs of each pack, by its number."""
    written: int
    """Bytes of its own file."""
    size: int
    """Bytes of all its content."""
    digest: str = ""
    """SHA-256 of it as it is stored, in hex."""
    file: bytes = b""
    """All of its pack, where the disk was not waited for: whoever journals the snapshot keeps
    it there, for after a power cut the file may be gone."""

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups, in the order in which they can be loaded."""
        return tuple(entry.group for entry in self.entries)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, each with its fidelity."""
        found = list(self.loose)
        for entry in self.entries:
            if entry.variables:
                assumed = entry.group.id in self.assumed
                notes = worst(entry.group.notes)
                usual = "assumed" if assumed else "exact"
                found += [
                    labelled(v, notes[v.name].kind if v.name in notes else usual)
                    for v in entry.variables
                ]
        return tuple(found)

    @cached_property
    def by_id(self) -> Mapping[str, int]:
        """Place of each group by its id."""
        return {entry.group.id: index for index, entry in enumerate(self.entries)}

    @cached_property
    def ids(self) -> str:
        """SHA-256 of the ids of its groups, in their order."""
        return sha256("\n".join(entry.group.id for entry in self.entries).encode()).hex()

    @property
    def packs(self) -> Mapping[str, int]:
        """Bytes that it needs of each pack, its own included."""
        return {pack_name(number): size for number, size in self.used.items()}

    @property
    def notes(self) -> tuple[Note, ...]:
        """What does not come back as it was."""
        return tuple(note for entry in self.entries for note in entry.group.notes)

    def versions(
        self, python: str, packages: Mapping[str, str]
    ) -> tuple[tuple[str, str, str], ...]:
        """Name, version then and version now (empty: not there) of what differs."""
        pairs = [("python", self.python, python)]
        pairs += [(name, then, packages.get(name, "")) for name, then in self.packages.items()]
        return tuple(pair for pair in pairs if pair[1] != pair[2])


def labelled(variable: Variable, label: str) -> Variable:
    """The variable with that fidelity."""
    if variable.fidelity == label:
        return variable
    v = variable
    return Variable(v.name, v.type, v.shape, v.size, v.cell, label, v.summary)


# -- as bytes --------------------------------------------------------------------------------


def encode_entry(entry: Entry) -> list[Any]:
    """An entry as JSON has it."""
    group = entry.group
    return [
        group.id,
        group.names,
        entry.row[1],
        _text(group.stream),
        [[b.id, b.size, b.chunk, b.depth, _text(b.refs), b.packs] for b in group.buffers],
        group.size,
        [[n.kind, n.name, n.type, n.reason, n.path] for n in group.notes],
        [_facts(variable) for variable in entry.variables],
    ]


def decode_entry(given: list[Any]) -> Entry:
    """An entry of JSON."""
    id, names, flags, stream, buffers, size, notes, variables = given
    group = Group(
        id,
        tuple(names),
        bool(flags & 1),
        bool(flags & 2),
        _refs(stream),
        tuple(_buffer(buffer) for buffer in buffers),
        tuple(Note(*note) for note in notes),
        size,
    )
    return Entry(group, tuple(_variable(variable) for variable in variables))


def _buffer(given: list[Any]) -> Buffer:
    id, size, chunk, depth, refs, packs = given
    return Buffer(id, size, chunk, depth, _refs(refs), tuple((p, n) for p, n in packs))


def _facts(v: Variable) -> list[Any]:
    return [v.name, v.type, v.shape, v.size, v.cell, v.summary]


def _variable(given: list[Any]) -> Variable:
    name, type, shape, size, cell, summary = given
    return Variable(name, type, None if shape is None else tuple(shape), size, cell, "", summary)


def _text(refs: Iterable[Ref]) -> str:
    return binascii.b2a_base64(packed(refs), newline=False).decode("ascii")


def _refs(text: str) -> tuple[Ref, ...]:
    return tuple(unpacked(binascii.a2b_base64(text)))


def encode_block(entries: Sequence[Entry]) -> bytes:
    """Entries as bytes."""
    return dumps([encode_entry(entry) for entry in entries])


def dumps(value: Any) -> bytes:
    """JSON without spaces; lone surrogates, which Python's names may have, as escapes."""
    return json.dumps(value, separators=(",", ":"), check_circular=False).encode("ascii")


def encode(manifest: Manifest) -> bytes:
    """A manifest as bytes, without the blocks of its entries."""
    value = {
        "id": manifest.id,
        "session": manifest.session,
        "name": manifest.name,
        "cell": manifest.cell,
        "at": manifest.at,
        "python": manifest.python,
        "packages": dict(manifest.packages),
        "chunk": manifest.chunk,
        "parent": manifest.parent,
        "runs": _runs(manifest),
        "groups": [entry.row for entry in manifest.entries],
        "blocks": [[_text([block.ref]), block.count] for block in manifest.blocks],
        "loose": [[*_facts(v), v.fidelity] for v in manifest.loose],
        "used": sorted(manifest.used.items()),
        "size": manifest.size,
    }
    text = dumps(value)
    return text if len(text) < SHORT else zlib.compress(text, 1)


def _runs(manifest: Manifest) -> list[tuple[int, int, int, int]]:
    """Places of entries as runs: block, first place, length, whether they were assumed."""
    runs: list[tuple[int, int, int, int]] = []
    assumed = manifest.assumed
    block, first, length, flag = -1, 0, 0, False
    for entry, (number, at) in zip(manifest.entries, manifest.places, strict=True):
        taken = entry.group.id in assumed
        if number == block and at == first + length and taken == flag:
            length += 1
            continue
        runs.append((block, first, length, int(flag)))
        block, first, length, flag = number, at, 1, taken
    return [*runs[1:], (block, first, length, int(flag))] if length else []


def decode(content: bytes, packs: Packs, *, written: int) -> Manifest:
    """A manifest, with its entries read from packs; entries that are damaged say so.

    Raises `SnapshotCorrupt`.
    """
    try:
        value = json.loads(content if content[:1] == b"{" else zlib.decompress(content))
        blocks = tuple(Block(_refs(ref)[0], count) for ref, count in value["blocks"])
        entries, places, assumed = _placed(value, [_entries(block, packs) for block in blocks])
        return Manifest(
            **{key: value[key] for key in _PLAIN},
            entries=tuple(entries),
            places=tuple(places),
            blocks=blocks,
            assumed=frozenset(assumed),
            loose=tuple(replace(_variable(v[:6]), fidelity=v[6]) for v in value["loose"]),
            used=dict(value["used"]),
            written=written,
            digest=sha256(content).hex(),
        )
    except (ValueError, KeyError, TypeError, IndexError, zlib.error) as fault:
        raise SnapshotCorrupt(f"a manifest cannot be understood ({fault!r})") from fault


def _placed(
    value: Any, blocks: list[list[Entry] | str]
) -> tuple[list[Entry], list[tuple[int, int]], set[str]]:
    """Entries in the order of the manifest, where each lies, and ids of those assumed."""
    entries: list[Entry] = []
    places: list[tuple[int, int]] = []
    assumed: set[str] = set()
    for number, first, count, flag in value["runs"]:
        block = blocks[number]
        if isinstance(block, str):
            known = value["groups"][len(entries) : len(entries) + count]
            some = [_unreadable(id, flags, names, block) for id, flags, *names in known]
        else:
            some = block[first : first + count]
        entries += some
        places += [(number, first + index) for index in range(count)]
        if flag:
            assumed.update(entry.group.id for entry in some)
    if [entry.row for entry in entries] != value["groups"]:
        raise ValueError("it lists other groups than its blocks hold")
    return entries, places, assumed


def _unreadable(id: str, flags: int, names: list[str], reason: str) -> Entry:
    """What is known of an entry whose block is damaged."""
    notes = tuple(Note("lost", name, "unknown", reason) for name in names)
    group = Group(id, tuple(names), bool(flags & 1), bool(flags & 2), (), (), notes, 0, reason)
    return Entry(group, tuple(Variable(n, "unknown") for n in names if ":" not in n))


_PLAIN = (
    *("id", "session", "name", "cell", "at", "python", "packages"),
    *("chunk", "parent", "size"),
)


def _entries(block: Block, packs: Packs) -> list[Entry] | str:
    """The entries of a block, or why they cannot be read."""
    try:
        content = bytes(packs.read(block.ref))
    except SnapshotCorrupt as fault:
        return str(fault)
    entries = [decode_entry(entry) for entry in json.loads(content)]
    if len(entries) != block.count:
        raise ValueError("a block has another number of entries than the manifest says")
    return entries
