"""The way back: what a kernel is given to come to a snapshot, checked before it is given.

Every byte that is to be loaded is read once and compared with its checksum, at the speed of
memory, by two threads. What is damaged costs the names of its group, and of the groups that
need the session's definitions when those are damaged; all others are loaded.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from cave.errors import SnapshotCorrupt
from cave.image import Load, LoadBuffer, LoadGroup, Note

from .folder import scratch
from .known import Known
from .manifest import Entry, Group, Manifest
from .pack import Packs, missing, within
from .refs import ZERO, Ref, checker, pack_name
from .tree import Buffer, chunks

WINDOW = 1 << 20
"""Bytes that are read at once, so that hashing finds them in the cache of the processor."""
JOB = 32 << 20
"""Bytes that a thread checks in one go."""

_own = threading.local()


@dataclass(slots=True)
class Plan:
    """What would be done, and what is needed to do it. Close it when the kernel has answered."""

    target: Manifest
    load: Load
    same: tuple[str, ...]
    """Variables that stay as they are in the kernel."""
    changed: tuple[str, ...]
    """Variables that are loaded."""
    removed: tuple[str, ...]
    """Variables that go."""
    damaged: tuple[Note, ...]
    """Names that cannot be loaded, with the file and the reason."""
    versions: tuple[tuple[str, str, str], ...]
    """Name, version then and version now of what differs."""
    _packs: Packs = field(repr=False)
    _files: list[int] = field(repr=False)

    def close(self) -> None:
        """Let go of the files."""
        self._packs.close()
        for file in self._files:
            os.close(file)
        self._files.clear()


@dataclass(slots=True)
class _Check:
    """A range of a file that must have its checksums."""

    file: int
    at: int
    refs: list[Ref]


@dataclass(slots=True)
class Planner:
    """Makes one plan."""

    target: Manifest
    packs: Packs
    pool: Executor
    known: Known
    _files: list[int] = field(default_factory=list)
    _own: list[int] = field(default_factory=list)
    _zeros: tuple[int, int] | None = None

    def plan(self, live: Manifest | None, versions: tuple[tuple[str, str, str], ...]) -> Plan:
        """Raises `StoreError` only for faults of the system."""
        try:
            stay = staying(self.target, live)
            loaded, reasons = self._load([e for e in self.target.entries if e.group.id not in stay])
            damaged = tuple(
                Note("lost", name, _type(entry, name), reasons[entry.group.id])
                for entry in self.target.entries
                if entry.group.id in reasons
                for name in entry.group.names
            )
            keep = tuple(e.group.id for e in self.target.entries if e.group.id in stay)
            load = Load(
                self.target.id,
                self.target.chunk,
                keep,
                tuple(loaded),
                tuple(self._files),
                damaged,
                base=live.id if live is not None else None,
            )
        except BaseException:
            self._close()
            raise
        names = _variables(self.target, stay)
        gone = _gone(live, self.target)
        args = versions, self.packs, self._own
        return Plan(self.target, load, names[0], names[1], gone, damaged, *args)

    def _close(self) -> None:
        self.packs.close()
        for file in self._own:
            os.close(file)

    def _load(self, entries: Sequence[Entry]) -> tuple[list[LoadGroup], dict[str, str]]:
        """Groups that can be loaded, and why the others cannot, by id."""
        made: dict[str, LoadGroup] = {}
        reasons: dict[str, str] = {}
        checks: list[tuple[str, _Check, Future[str]]] = []
        for entry in entries:
            id, some = entry.group.id, list[_Check]()
            try:
                made[id] = self._group(entry.group, some)
            except SnapshotCorrupt as fault:
                reasons[id] = str(fault)
            # also of a group that is damaged: what else is bad in it is not referred to again
            checks += [(id, check, self.pool.submit(_checked, check)) for check in some]
        for id, check, work in checks:
            if reason := work.result():
                reasons.setdefault(id, f"{self._name(check)} {reason}")
                for ref in check.refs:
                    self.known.distrust(ref)
        _spread(entries, reasons)
        return [made[e.group.id] for e in entries if e.group.id not in reasons], reasons

    @staticmethod
    def _name(check: _Check) -> str:
        return f"{pack_name(check.refs[0].pack)}.pack is damaged:"

    def _group(self, group: Group, checks: list[_Check]) -> LoadGroup:
        if group.damage:
            raise SnapshotCorrupt(group.damage)
        buffers = tuple([self._buffer(buffer, checks) for buffer in group.buffers])
        stream = b"".join([self.packs.read(ref) for ref in group.stream])
        return LoadGroup(group.id, group.names, group.definitions, stream, buffers)

    def _buffer(self, buffer: Buffer, checks: list[_Check]) -> LoadBuffer:
        refs = chunks(buffer, self.packs)
        if sum(ref.size for ref in refs) != buffer.size:
            raise SnapshotCorrupt(f"a buffer of {buffer.size} bytes lists chunks of other lengths")
        pieces: list[tuple[int, int, int]] = []
        for run in _runs(refs):
            length = sum(ref.size for ref in run)
            if run[0].flags & ZERO:
                file, at = self._nothing(length), 0
            else:
                file, at = self._range(run, length)
                checks += _jobs(file, at, run)
            pieces.append((self._index(file), at, length))
        return LoadBuffer(buffer.id, buffer.size, tuple(pieces))

    def _range(self, run: list[Ref], length: int) -> tuple[int, int]:
        first = run[0]
        try:
            pack = self.packs.pack(first.pack)
            within(pack, first.at, length)
            return pack.piece(first.at, length)
        except FileNotFoundError:
            raise SnapshotCorrupt(missing(first)) from None
        except ValueError as fault:
            for ref in run:
                self.known.distrust(ref)
            raise SnapshotCorrupt(f"{pack_name(first.pack)}.pack is cut short: {fault}") from None

    def _nothing(self, length: int) -> int:
        """A file of at least so many zeros, which take no space."""
        if self._zeros is None or self._zeros[1] < length:
            file = scratch("zeros")
            os.ftruncate(file, length)
            if hasattr(fcntl, "F_ADD_SEALS"):
                seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            self._own.append(file)
            self._zeros = file, length
        return self._zeros[0]

    def _index(self, file: int) -> int:
        if file not in self._files:
            self._files.append(file)
        return self._files.index(file)


def staying(target: Manifest, live: Manifest | None) -> set[str]:
    """Ids of the target's groups that are the same in the kernel: equal in all that they hold
    and, where they need the session's definitions, those too. What was only assumed of the
    kernel does not count, nor what no stream tells all of: a generator, a connection, a lock
    may have moved on while what is written of it is the same."""
    if live is None:
        return set()
    found = set()
    for entry in target.entries:
        index = live.by_id.get(entry.group.id)
        if index is not None and entry.group.id not in live.assumed:
            other = live.entries[index].group
            equal = other is entry.group or _equal(other, entry.group)
            if equal and not any(note.kind in {"lost", "rebuilt"} for note in entry.group.notes):
                found.add(entry.group.id)
    definitions = [group for group in target.groups if group.definitions]
    settled = all(group.id in found for group in definitions) and len(definitions) == sum(
        group.definitions for group in live.groups
    )
    if not settled:
        found -= {group.id for group in target.groups if group.uses or group.definitions}
    return found


def _equal(one: Group, other: Group) -> bool:
    plain = one.names == other.names and one.definitions == other.definitions
    same = plain and [b.id for b in one.buffers] == [b.id for b in other.buffers]
    damaged = one.damage or other.damage
    return same and not damaged and one.content == other.content


def _spread(entries: Sequence[Entry], reasons: dict[str, str]) -> None:
    """Damaged definitions cost the groups that use them."""
    for entry in entries:
        if entry.group.definitions and entry.group.id in reasons:
            why = f"it needs classes or functions of the session: {reasons[entry.group.id]}"
            for other in entries:
                if other.group.uses:
                    reasons.setdefault(other.group.id, why)


def _type(entry: Entry, name: str) -> str:
    return next((v.type for v in entry.variables if v.name == name), "object")


def _variables(target: Manifest, stay: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sides: tuple[list[str], list[str]] = ([], [])
    for entry in target.entries:
        sides[entry.group.id not in stay].extend(v.name for v in entry.variables)
    return tuple(sides[0]), tuple(sides[1])


def _gone(live: Manifest | None, target: Manifest) -> tuple[str, ...]:
    if live is None:
        return ()
    there = {variable.name for variable in target.variables}
    return tuple(v.name for v in live.variables if v.name not in there)


def _runs(refs: Sequence[Ref]) -> Iterator[list[Ref]]:
    """References that make one piece: consecutive in one pack, or zeros all."""
    run: list[Ref] = []
    for ref in refs:
        if run and not _follows(run[-1], ref):
            yield run
            run = []
        run.append(ref)
    if run:
        yield run


def _follows(last: Ref, ref: Ref) -> bool:
    if (last.flags | ref.flags) & ZERO:
        return bool(last.flags & ref.flags & ZERO)
    return last.pack == ref.pack and last.at + last.stored == ref.at


def _jobs(file: int, at: int, run: list[Ref]) -> Iterator[_Check]:
    refs: list[Ref] = []
    begin, size = at, 0
    for ref in run:
        refs.append(ref)
        size += ref.size
        if size >= JOB:
            yield _Check(file, begin, refs)
            refs, begin, size = [], begin + size, 0
    if refs:
        yield _Check(file, begin, refs)


def _checked(check: _Check) -> str:
    """What is wrong with a range; nothing when all is well."""
    at = check.at
    for some in _windows(check.refs):
        length = sum([ref.size for ref in some])
        window = _memory(length)
        held = _fill(check.file, window, at, length)
        begin = 0
        for ref in some:
            function, expected = checker(ref)
            end = begin + ref.size
            if end > held or function(window[begin:end]) != expected:
                return f"it differs from its checksum at byte {ref.at}"
            begin = end
        at += length
    return ""


def _windows(refs: Sequence[Ref]) -> Iterator[list[Ref]]:
    """References in a row that are read at once."""
    some: list[Ref] = []
    size = 0
    for ref in refs:
        if some and size + ref.size > WINDOW:
            yield some
            some, size = [], 0
        some.append(ref)
        size += ref.size
    yield some


def _fill(file: int, window: memoryview, at: int, length: int) -> int:
    held = 0
    while held < length:
        try:
            got = os.preadv(file, [window[held:length]], at + held)
        except OSError:
            break  # what is missing differs from its checksum
        if not got:
            break
        held += got
    return held


def _memory(length: int) -> memoryview:
    """Memory of the thread's own, warm in its cache."""
    window: memoryview | None = getattr(_own, "window", None)
    if window is None or len(window) < length:
        window = _own.window = memoryview(bytearray(max(length, WINDOW)))
    return window
