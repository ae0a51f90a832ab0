"""Memory that several arrays look at: written once, looked at again by all of them.

While a group is written, each stretch of memory (addresses, of objects that live) belongs
to one source: an array that has it, or a region made for it. What lies inside a known
stretch becomes a view of its source. Where stretches turn out to overlap only in part, the
group is written again with a region planned for their union.
"""

from __future__ import annotations

import bisect
import pickle
import sys
from typing import Any

from .frozen import frozen
from .rules import rule


class Region:
    """Addresses from `low` up to `high`, of memory that `keeper` holds."""

    __slots__ = ("high", "keeper", "low")

    def __init__(self, low: int, high: int, keeper: Any) -> None:
        self.low = low
        self.high = high
        self.keeper = keeper


class Memory:
    """Stretches of memory in one stream, and what they are views of."""

    def __init__(self, planned: list[Region] | None = None) -> None:
        self._lows: list[int] = []
        self._stretches: list[tuple[int, int, Any]] = []
        self._unions: list[Region] = []
        self.planned = planned or []
        for region in self.planned:
            self._insert(region.low, region.high, region)

    def find(self, low: int, high: int) -> tuple[Any, int] | None:
        """The source that has all of it, and where in the source it starts."""
        index = bisect.bisect_right(self._lows, low) - 1
        if index >= 0:
            first, last, source = self._stretches[index]
            if high <= last and source is not None:
                return source, low - first
        return None

    def claim(self, low: int, high: int, source: Any, keeper: Any) -> None:
        """Say whose stretch it is; None for what was copied and cannot be looked at."""
        index = bisect.bisect_right(self._lows, low) - 1
        index = index if index >= 0 and self._stretches[index][1] > low else index + 1
        stop = index
        union = Region(low, high, [keeper])
        while stop < len(self._stretches) and self._stretches[stop][0] < high:
            first, last, other = self._stretches[stop]
            union.low, union.high = min(union.low, first), max(union.high, last)
            union.keeper.append(other)
            stop += 1
        if stop == index:
            self._insert(low, high, source)
            return
        self._unions.append(union)
        self._lows[index:stop] = [union.low]
        self._stretches[index:stop] = [(union.low, union.high, None)]

    def _insert(self, low: int, high: int, source: Any) -> None:
        index = bisect.bisect_right(self._lows, low)
        self._lows.insert(index, low)
        self._stretches.insert(index, (low, high, source))

    def again(self) -> Memory | None:
        """The plan for another attempt, if stretches turned out to overlap."""
        if not self._unions:
            return None
        merged: list[Region] = []
        for region in sorted([*self.planned, *self._unions], key=lambda found: found.low):
            if merged and region.low < merged[-1].high:
                merged[-1].high = max(merged[-1].high, region.high)
                merged[-1].keeper = [merged[-1].keeper, region.keeper]
            else:
                merged.append(Region(region.low, region.high, region.keeper))
        return Memory(merged)


def of(pickler: Any) -> Memory:
    """The memory of a pickler's stream."""
    if pickler.memory is None:
        pickler.memory = Memory()
    found: Memory = pickler.memory
    return found


class Window:
    """Bytes at an address, for numpy; whoever holds the array holds the keeper."""

    __slots__ = ("__array_interface__", "keeper")

    def __init__(self, low: int, size: int, keeper: Any) -> None:
        self.__array_interface__ = {
            "data": (low, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip
        self.keeper = keeper


def shown(low: int, high: int, keeper: Any) -> pickle.PickleBuffer:
    """Memory as a buffer of the stream; it says writable, and nobody writes."""
    np = sys.modules["numpy"]
    return pickle.PickleBuffer(np.asarray(Window(low, high - low, keeper)))


@rule(f"{Region.__module__}.Region")
def _region(_: Any, obj: Region) -> Any:
    return make_memory, (shown(obj.low, obj.high, obj.keeper),)


@frozen
def make_memory(data: Any) -> Any:
    """Bytes that arrays look at."""
    import numpy as np

    found = np.frombuffer(data, "u1")
    return found.copy() if isinstance(data, bytes | bytearray) else found
