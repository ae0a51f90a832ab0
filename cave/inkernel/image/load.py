"""Coming back to an image: groups are read, then the namespace switches at once.

Large buffers are private mappings of the snapshots' files: their pages are read when they
are first used, and copied when they are first written to. They are known to the tracker from
birth, so that the next image gives of them only what was changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import definitions, hashes, reader, roots
from .buffers import Buffer
from .groups import Group
from .lost import Lost
from .pickler import Note
from .take import Taker

MAPPED = 256 << 10
"""Bytes from which a buffer is mapped, not read."""
_PIECES = 1000
"""A buffer in more runs than that is read: mappings are limited."""
_SMALL = 500
"""Bytes of the stream of a variable that is a module, at most."""
_MAP_FIXED = 0x10
_PRIVATE, _ANONYMOUS = mmap.MAP_PRIVATE, mmap.MAP_ANONYMOUS
_READ, _WRITE = mmap.PROT_READ, mmap.PROT_WRITE
_SLICE = 64 << 20

Piece = tuple[int, int, int]
"""Descriptor, offset, length."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Stale(RuntimeError):
    """Groups that were to stay are no longer what they were; nothing was changed."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(", ".join(ids))
        self.ids = tuple(ids)


@dataclass(slots=True)
class Wanted:
    """A group to be read."""

    id: str
    names: tuple[str, ...]
    definitions: bool
    stream: bytes
    buffers: list[tuple[str, int, list[Piece]]]


@dataclass(slots=True)
class Load:
    """The image to come back to."""

    id: str
    chunk: int
    base: str | None
    keep: tuple[str, ...]
    groups: list[Wanted]
    lost: list[Note]
    notes: list[Note] = field(default_factory=list)


def _nobody(_told: Any) -> None:
    pass


def load(
    taker: Taker,
    shell: Any,
    wanted: Load,
    tell: Callable[[int], None] = _nobody,
    let_go: Callable[[set[str]], None] = _nobody,
) -> tuple[list[Note], set[str], Callable[[], None]]:
    """Make the namespace that of `wanted`; notes, the names that stayed, and what is to be
    called before code of the user runs: memory is watched from then on. Raises `Stale`.

    `tell` hears the number of each group (from 1) before it is read, and 0 after the last;
    `let_go` the names that stay, before the others are replaced."""
    if stale := taker.stale(wanted.base, wanted.keep):
        raise Stale(stale)
    kept = [taker.groups[id] for id in wanted.keep]
    world = _world(taker, kept)
    made = [_Made(group, taker) for group in wanted.groups]
    loaded: dict[str, Any] = {}
    again: list[_Made] = []
    with _lent(shell.user_ns, loaded) as lend:
        for number, one in sorted(enumerate(made, 1), key=_reading_order):
            tell(number)
            known = len(wanted.notes)
            lend(_read(one, world, taker, wanted.notes))
            if not one.group.definitions and any(
                "NameError: " in note.reason for note in wanted.notes[known:]
            ):
                again.append(one)
            if any(name in roots.FIRST for name in one.group.names):
                wanted.notes += roots.begin(loaded)
        for one in again:  # what its constructors asked for is there by now
            gone = set(one.group.names)
            wanted.notes[:] = [note for note in wanted.notes if note.name not in gone]
            lend(_read(one, world, taker, wanted.notes))
    tell(0)
    for note in wanted.lost:
        loaded[note.name] = Lost(note.name, note.type, note.reason)
    stay = {name for group in kept for name in group.names}
    let_go(stay)
    notes = wanted.notes + roots.bind(shell, loaded, stay) + wanted.lost
    taker.world = world
    taker.buffers.keep({buffer.id for group in kept for buffer in group.buffers})
    taker.buffers.rechunk(wanted.chunk)
    now = [*kept, *(one.known(serial) for serial, one in enumerate(made))]
    taker.loaded(wanted.id, now)

    def watch() -> None:
        for one in made:
            taker.buffers.adopt(one.buffers, one.areas)

    return notes, stay, watch


@contextlib.contextmanager
def _lent(
    space: dict[str, Any], loaded: dict[str, Any]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What has been read is in the namespace while the rest is read, where the names are free:
    a constructor of the user that is called for it may use his modules and functions."""
    free: list[str] = []

    def lend(found: dict[str, Any]) -> None:
        loaded.update(found)
        for name in found.keys() - space.keys():
            if ":" not in name:
                space[name] = found[name]
                free.append(name)

    try:
        yield lend
    finally:
        for name in free:
            space.pop(name, None)


def _reading_order(numbered: tuple[int, _Made]) -> tuple[bool, bool]:
    """What others depend on comes first: folder and paths, then modules, which are small."""
    group = numbered[1].group
    early = any(name in roots.FIRST for name in group.names)
    module = len(group.stream) < _SMALL and b"import_module" in group.stream
    return not early, not module


def _world(taker: Taker, kept: Sequence[Group]) -> definitions.Definitions:
    """The definitions that are read into: those of groups that stay, or a fresh start."""
    if any(group.definitions for group in kept):
        return taker.world
    using = [name for group in kept if group.uses for name in group.names]
    if using:
        raise ValueError(
            f"{', '.join(using[:5])} cannot stay while the classes and functions are loaded anew"
        )
    return definitions.Definitions()


def _read(
    made: _Made, world: definitions.Definitions, taker: Taker, notes: list[Note]
) -> dict[str, Any]:
    group = made.group
    try:
        with taker.guard(group.names[0]):
            found = reader.read(group.stream, made.views, world)
    except KeyboardInterrupt:
        return _lost(group.names, "reading it took too long and was stopped", notes)
    missing = [name for name in group.names if name not in found.roots]
    for note in found.notes if not missing else ():  # else they are of all the missing
        note.name = note.name or next((n for n in group.names if ":" not in n), note.type)
    notes += [note for note in found.notes if note.name]
    why = next((note.reason for note in found.notes), "it was not in its stream")
    return {**found.roots, **_lost(missing, why, notes)}


def _lost(names: Sequence[str], why: str, notes: list[Note]) -> dict[str, Any]:
    notes += [Note("lost", name, "object", why) for name in names]
    return {name: Lost(name, "object", why) for name in names}


# -- memory ----------------------------------------------------------------------------------


class _Made:
    """A group's buffers as memory."""

    def __init__(self, group: Wanted, taker: Taker) -> None:
        self.group = group
        self.views: list[memoryview] = []
        self.buffers: list[Buffer] = []
        self.areas: list[tuple[int, int]] = []
        for id, size, pieces in group.buffers:
            region = memory(size, pieces, taker.buffers.disown)
            self.views.append(region.view)
            buffer = Buffer(id, region.address, size)
            if region.mapped:
                self.areas.append(region.area)
                if taker.buffers.tracking == "hashes":
                    buffer.origin = memory(size, pieces, taker.buffers.disown)
            self.buffers.append(buffer)

    def known(self, serial: int) -> Group:
        """What the taker knows of it until it is written for the first time."""
        group = self.group
        return Group(
            group.id, serial, group.names, hashes.of_stream(group.stream), None,
            tuple(self.buffers), definitions=group.definitions,
        )  # fmt: skip


@dataclass(slots=True)
class Region:
    """Memory that lives as long as a view of it."""

    view: memoryview
    address: int
    area: tuple[int, int]
    mapped: bool


def memory(size: int, pieces: Sequence[Piece], on_end: Callable[[tuple[int, int]], None]) -> Region:
    """The content of pieces of files, as writable memory of our own."""
    runs = joined(pieces)
    length = max(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.PAGESIZE)
    address = _map(0, length, _PRIVATE | _ANONYMOUS, -1, 0)
    area = (address, address + length)
    owner = _owner(size).from_address(address)
    weakref.finalize(owner, _unmap, area, on_end).atexit = False
    mapped = size >= MAPPED and len(runs) <= _PIECES and _is_aligned(runs)
    at = address
    for fd, offset, count in runs:
        if mapped:
            _map(at, count, _PRIVATE | _MAP_FIXED, fd, offset)
        else:
            _fill(at, fd, offset, count)
        at += count
    return Region(memoryview(owner).cast("B"), address, area, mapped)


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that follow each other in one file are one."""
    found: list[Piece] = []
    for fd, offset, length in pieces:
        if found and found[-1][0] == fd and found[-1][1] + found[-1][2] == offset:
            found[-1] = fd, found[-1][1], found[-1][2] + length
        else:
            found.append((fd, offset, length))
    return found


def _is_aligned(runs: Sequence[Piece]) -> bool:
    page = mmap.PAGESIZE
    if any(offset % page for _, offset, _ in runs):
        return False
    return not any(length % page for _, _, length in runs[:-1])


def _owner(size: int) -> Any:
    return ctypes.c_char * size


def _map(address: int, length: int, flags: int, fd: int, offset: int) -> int:
    got = _libc.mmap(address or None, length, _READ | _WRITE, flags, fd, offset)
    if got is None or got == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"{length} bytes could not be mapped: {os.strerror(code)}")
    return int(got)


def _unmap(area: tuple[int, int], on_end: Callable[[tuple[int, int]], None]) -> None:
    on_end(area)
    _libc.munmap(area[0], area[1] - area[0])


def _fill(address: int, fd: int, offset: int, count: int) -> None:
    done = 0
    while done < count:
        part = hashes.writable(address + done, min(count - done, _SLICE))
        got = os.preadv(fd, [part], offset + done)
        if not got:
            raise OSError("a file of the snapshot is shorter than it was")
        done += got


# -- the request -----------------------------------------------------------------------------


def telling(fds: Sequence[int]) -> Callable[[int], None]:
    """Writes numbers where the host finds the last one, should this process end."""

    def tell(serial: int) -> None:
        for fd in fds:
            os.pwrite(fd, serial.to_bytes(8, "little"), 0)

    return tell


@contextlib.contextmanager
def given(
    content: Mapping[str, Any], parts: Sequence[memoryview], fds: Sequence[int]
) -> Iterator[Load]:
    """The request of the host as a `Load`; the descriptors are closed afterwards."""
    try:
        groups = [
            Wanted(
                group["id"], tuple(group["names"]), group["definitions"],
                bytes(parts[group["stream"]]),
                [
                    (id, size, [(fds[at], offset, length) for at, offset, length in pieces])
                    for id, size, pieces in group["buffers"]
                ],
            )
            for group in content["groups"]
        ]  # fmt: skip
        lost = [Note(*note) for note in content["lost"]]
        keep = tuple(content["keep"])
        yield Load(content["id"], content["chunk"], content.get("base"), keep, groups, lost)
    finally:
        for fd in fds:
            os.close(fd)
