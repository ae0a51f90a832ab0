"""Memory of groups between two images: which chunks differ from those in the base image.

A buffer is known by its address and size. What was written to since the last image is found
by page (`pages`) where the system can tell, by hashing (`hashes`) elsewhere: for small
buffers, for memory that others can change, and for buffers that are overwritten every time
(the first write to a protected page costs microseconds).
"""

from __future__ import annotations

import bisect
import ctypes
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import hashes, pages
from .pages import Pages, inner, merged

SMALL = 1 << 20
"""Bytes below which a buffer is hashed in any case."""
_HOT = 4
"""A buffer is hashed from now on when more than one page in so many was written to."""

_SPEED = 2e9
"""Bytes a second that are hashed, at least."""
_SCAN = 5e-5
"""Seconds that a look at the pages of a buffer takes."""

Run = tuple[int, int]
"""Offset and length (bytes)."""


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory as the last image gave it."""

    id: str
    address: int
    size: int
    digests: list[Any] | None = None
    """Of its chunks, where it is hashed."""
    edges: tuple[Any, Any] = (0, 0)
    """Of the parts in its first and last page, where its pages are tracked."""
    origin: Any = None
    """Memory (`load.Region`) with what it was loaded as, until it is hashed."""

    @property
    def key(self) -> tuple[int, int]:
        return self.address, self.size

    @property
    def range(self) -> tuple[int, int]:
        return self.address, self.address + self.size


@dataclass(slots=True)
class Seen:
    """A buffer as it is now."""

    buffer: Buffer
    base: bool
    """Whether it is a difference from the last image."""
    runs: list[Run]


def address_of(buffer: pickle.PickleBuffer) -> tuple[int, int]:
    """Where memory lies, and its size."""
    with buffer.raw() as raw:
        return address_at(raw), raw.nbytes


def address_at(view: memoryview) -> int:
    """Where the memory of a view begins."""
    filled = _PyBuffer()
    _hold(view, ctypes.byref(filled), 0)
    _drop(ctypes.byref(filled))
    return filled.buf or 0


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("rest", ctypes.c_void_p * 8),
    )


_hold = ctypes.pythonapi.PyObject_GetBuffer
_hold.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_hold.restype = ctypes.c_int
_drop = ctypes.pythonapi.PyBuffer_Release
_drop.argtypes = (ctypes.c_void_p,)
_drop.restype = None


class Buffers:
    """All buffers of the last image."""

    def __init__(self, new_id: Callable[[], str], *, chunk: int | None = None) -> None:
        self._new_id = new_id
        self._known: dict[tuple[int, int], list[Buffer]] = {}
        self._pages, self.why = self._tracker()
        self.tracking = "hashes" if self._pages is None else "pages"
        self.chunk = chunk or (hashes.CHUNK if self._pages is None else pages.CHUNK)

    def look(self, places: Sequence[tuple[int, int]], *, commit: bool = True) -> list[Seen]:
        """What is at these places (address, size) now, against the last image.

        With `commit` it becomes what the next look compares with.
        """
        used: dict[tuple[int, int], int] = {}
        found = []
        for place in places:
            at = used[place] = used.get(place, -1) + 1
            known = self._known.get(place, ())
            old = known[at] if at < len(known) else None
            found.append(Seen(old or Buffer("", *place), old is not None, []))
        written = self._written([seen.buffer for seen in found if seen.base], protect=commit)
        for seen in found:
            if seen.base:
                self._compare(seen, written, commit=commit)
            else:
                seen.runs = [(0, seen.buffer.size)] if seen.buffer.size else []
        if commit:
            self._begin([seen.buffer for seen in found if not seen.base])
        return found

    def adopt(self, made: Sequence[Buffer], own: Sequence[tuple[int, int]] = ()) -> None:
        """Buffers that were just loaded are the base."""
        if self._pages is not None:
            self._pages.own += own
        self._begin(list(made), new=False)

    def keep(self, kept: set[str]) -> None:
        """Forget all buffers but those of these ids."""
        for key, known in list(self._known.items()):
            stay = [buffer for buffer in known if buffer.id in kept]
            for gone in known:
                if gone.id not in kept and not stay:
                    self._release(gone)
            if stay:
                self._known[key] = stay
            else:
                del self._known[key]

    def cost(self, known: Sequence[Buffer]) -> float:
        """About how many seconds it takes to look at these."""
        hashed = sum(b.size for b in known if b.digests is not None or b.origin is not None)
        return hashed / _SPEED + len(known) * _SCAN

    def rechunk(self, chunk: int) -> None:
        """From now on chunks have another size; what is known stays true."""
        if chunk == self.chunk:
            return
        self.chunk = chunk
        for known in self._known.values():
            for buffer in known:
                if buffer.digests is not None:
                    buffer.digests = hashes.digests(buffer.address, buffer.size, chunk)

    def disown(self, area: tuple[int, int]) -> None:
        """A mapping of ours is gone."""
        if self._pages is not None and area in self._pages.own:
            self._pages.own.remove(area)

    def _tracker(self) -> tuple[Pages | None, str]:
        return _found_tracker()

    # -- comparing ---------------------------------------------------------------------------

    def _written(self, known: list[Buffer], *, protect: bool) -> _Written:
        """Scan all tracked pages at once: a scan protects anew, and buffers may overlap."""
        tracked = [b for b in known if b.digests is None and b.origin is None]
        found = _Written()
        if self._pages is None:
            return found
        for start, end in merged([inner(*buffer.key) for buffer in tracked]):
            dirty = self._pages.written(start, end, protect=protect) if start < end else []
            if dirty is None:
                found.unknown.append((start, end))
            else:
                found.dirty += dirty
        return found

    def _compare(self, seen: Seen, written: _Written, *, commit: bool) -> None:
        buffer = seen.buffer
        if buffer.digests is None and buffer.origin is not None:
            buffer.digests = hashes.digests(buffer.origin.address, buffer.size, self.chunk)
            buffer.origin = None
        if buffer.digests is not None:
            now = hashes.digests(buffer.address, buffer.size, self.chunk)
            changed = hashes.differing(buffer.digests, now)
            if commit:
                buffer.digests = now
                if not changed and buffer.size >= SMALL:
                    self._watch([buffer])
        else:
            changed = self._by_page(buffer, written, commit=commit)
        seen.runs = self._runs(changed, buffer.size)

    def _by_page(self, buffer: Buffer, written: _Written, *, commit: bool) -> list[int]:
        start, end = inner(*buffer.key)
        if written.is_unknown(start, end):
            if commit:
                self._watch([buffer])
            return list(range(-(-buffer.size // self.chunk)))
        dirty = written.within(start, end)
        chunks: set[int] = set()
        for low, high in dirty:
            first, last = low - buffer.address, high - 1 - buffer.address
            chunks.update(range(first // self.chunk, last // self.chunk + 1))
        edges = _edges(buffer)
        if edges[0] != buffer.edges[0]:
            chunks.add(0)
        if edges[1] != buffer.edges[1]:
            chunks.update(range((end - buffer.address) // self.chunk,
                                (buffer.size - 1) // self.chunk + 1))  # fmt: skip
        if commit:
            buffer.edges = edges
            if sum(high - low for low, high in dirty) * _HOT > end - start:
                self._hash(buffer)
        return sorted(chunks)

    def _runs(self, changed: Sequence[int], size: int) -> list[Run]:
        runs: list[Run] = []
        for at in changed:
            offset = at * self.chunk
            length = min(self.chunk, size - offset)
            if runs and sum(runs[-1]) == offset:
                runs[-1] = runs[-1][0], runs[-1][1] + length
            else:
                runs.append((offset, length))
        return runs

    # -- what compares them ------------------------------------------------------------------

    def _begin(self, made: list[Buffer], *, new: bool = True) -> None:
        for buffer in made:
            if new:
                buffer.id = self._new_id()
            self._known.setdefault(buffer.key, []).append(buffer)
        self._watch(made)

    def _watch(self, wanted: list[Buffer]) -> None:
        """Track the pages of these, hash where that cannot be."""
        large = [] if self._pages is None else [b for b in wanted if b.size >= SMALL]
        if self._pages is not None and large:
            fit = self._pages.trackable([buffer.range for buffer in large])
            large = [buffer for buffer, good in zip(large, fit, strict=True) if good]
        tracked = {id(buffer) for buffer in large if self._protect(buffer)}
        for buffer in wanted:
            if id(buffer) not in tracked and buffer.origin is None:
                buffer.digests = hashes.digests(buffer.address, buffer.size, self.chunk)

    def _protect(self, buffer: Buffer) -> bool:
        assert self._pages is not None
        try:
            self._pages.watch(*inner(*buffer.key))
        except pages.Untracked:
            return False
        buffer.digests = None
        buffer.edges = _edges(buffer)
        return True

    def _hash(self, buffer: Buffer) -> None:
        self._release(buffer)
        buffer.digests = hashes.digests(buffer.address, buffer.size, self.chunk)

    def _release(self, buffer: Buffer) -> None:
        """Stop tracking its pages, unless another buffer lies in them."""
        if self._pages is None or buffer.digests is not None or buffer.origin is not None:
            return
        start, end = inner(*buffer.key)
        for known in self._known.values():
            for other in known:
                if other is not buffer and other.digests is None:
                    low, high = inner(*other.key)
                    if low < end and start < high:
                        return
        self._pages.release(start, end)


class _Written:
    """Pages that were written to, of all that was scanned."""

    def __init__(self) -> None:
        self.dirty: list[tuple[int, int]] = []
        self.unknown: list[tuple[int, int]] = []

    def is_unknown(self, start: int, end: int) -> bool:
        return any(low < end and start < high for low, high in self.unknown)

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        at = max(bisect.bisect_left(self.dirty, (start, 0)) - 1, 0)
        found = []
        while at < len(self.dirty) and self.dirty[at][0] < end:
            low, high = max(self.dirty[at][0], start), min(self.dirty[at][1], end)
            if low < high:
                found.append((low, high))
            at += 1
        return found


def _edges(buffer: Buffer) -> tuple[Any, Any]:
    """Digests of what lies before its first whole page, and after its last."""
    start, end = inner(*buffer.key)
    head, tail = start - buffer.address, buffer.address + buffer.size - end
    first = hashes.digest(hashes.view(buffer.address, head)) if head else 0
    return first, hashes.digest(hashes.view(end, tail)) if tail > 0 else 0


def _found_tracker() -> tuple[Pages | None, str]:
    """The tracker of pages and how it was chosen, or None and why."""
    if os.environ.get("CAVE_TRACKING") == "hashes":
        return None, "CAVE_TRACKING=hashes"
    try:
        return Pages(), "a write to a page was seen"
    except OSError as exc:
        return None, str(exc)
