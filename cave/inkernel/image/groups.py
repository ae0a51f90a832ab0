"""Which names share something: the namespace cut into groups, and what is known of each.

Two roots belong together when a mutable object is a part of both, or when memory of theirs
overlaps. Then one stream holds them, so that what was shared is shared again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import hidden

if TYPE_CHECKING:
    from .buffers import Buffer

_MANY = 10_000
"""Members beyond which they are kept as a sorted array: an eighth of a set's memory."""


class Ids:
    """Ids of the mutable objects of a group; they mean something while the objects live."""

    __slots__ = ("_few", "_many")

    def __init__(self, ids: Iterable[int]) -> None:
        self._few = frozenset(ids)
        self._many: array[int] | None = None
        if len(self._few) > _MANY:
            self._many = array("Q", sorted(self._few))
            self._few = frozenset()

    def meets(self, others: set[int]) -> bool:
        """Whether any of `others` is among them."""
        if self._many is None:
            return not self._few.isdisjoint(others)
        if len(others) > len(self._many):
            return not others.isdisjoint(self._many)
        return any(self._has(other) for other in others)

    def same(self, others: set[int]) -> bool:
        """Whether these are all."""
        if self._many is None:
            return self._few == others
        return len(others) == len(self._many) and others.issuperset(self._many)

    def _has(self, one: int) -> bool:
        assert self._many is not None
        at = bisect_left(self._many, one)
        return at < len(self._many) and self._many[at] == one

    def __iter__(self) -> Any:
        return iter(self._few if self._many is None else self._many)


@dataclass(slots=True)
class Group:
    """A group as the last image gave it."""

    id: str
    serial: int
    """The order of their making: the older id stays when groups become one."""
    names: tuple[str, ...]
    digest: bytes | None = None
    """Of its stream; None when that is not known."""
    members: Ids | None = None
    """None when they are not known: then it counts as touched."""
    buffers: tuple[Buffer, ...] = ()
    uses: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    definitions: bool = False
    notes: tuple[Any, ...] = ()
    cost: float = 0.0
    """Seconds that it took to write."""
    looked: int = 0
    """Number of the image that looked at it last."""
    touched: int = 0
    """Number of the last image for which code had reached it again; 0 when none has."""
    order: tuple[bool, bool, int] = field(init=False)
    """Where it comes in an image: what reading needs first, definitions, then by age."""

    def __post_init__(self) -> None:
        early = any(name in hidden.FIRST for name in self.names)
        self.order = not early, not self.definitions, self.serial

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Where its memory lies: start and end."""
        return [(buffer.address, buffer.address + buffer.size) for buffer in self.buffers]


class Union:
    """Union-find over the numbers 0 to `count` - 1."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, one: int) -> int:
        above = self._above
        while above[one] != one:
            above[one] = one = above[above[one]]
        return one

    def join(self, one: int, other: int) -> None:
        """Put both in one set; it goes by its lowest number."""
        low, high = sorted((self.find(one), self.find(other)))
        self._above[high] = low

    def sets(self) -> list[list[int]]:
        """The sets, in the order of their lowest numbers."""
        found: dict[int, list[int]] = {}
        for one in range(len(self._above)):
            found.setdefault(self.find(one), []).append(one)
        return list(found.values())


Range = tuple[int, int]


def sharing(members: Sequence[Iterable[int]], ranges: Sequence[Sequence[Range]]) -> list[list[int]]:
    """Positions that share a member, or whose ranges overlap, put together."""
    union = Union(len(members))
    first: dict[int, int] = {}
    for at, ids in enumerate(members):
        for one in ids:
            if (owner := first.setdefault(one, at)) != at:
                union.join(owner, at)
    _join_overlapping(union, ranges)
    return union.sets()


def _join_overlapping(union: Union, ranges: Sequence[Sequence[Range]]) -> None:
    flat = sorted((start, end, at) for at, some in enumerate(ranges) for start, end in some)
    reach, owner = -1, -1
    for start, end, at in flat:
        if start < reach:
            union.join(owner, at)
        if end > reach:
            reach, owner = end, at


def overlaps(some: Sequence[Range], others: Sequence[Range]) -> bool:
    """Whether a range of one list overlaps one of the other."""
    if not some or not others:
        return False
    flat = sorted([(*one, 0) for one in some] + [(*one, 1) for one in others])
    reach = [-1, -1]
    for start, end, side in flat:
        if start < reach[1 - side]:
            return True
        reach[side] = max(reach[side], end)
    return False


@dataclass(slots=True)
class Namer:
    """Gives groups their ids: a group keeps its id while it has any of its names."""

    new: Callable[[], str]
    serials: int = 0
    _taken: set[str] = field(default_factory=set)

    def begin(self) -> None:
        self._taken.clear()

    def name(self, names: Sequence[str], owner: dict[str, Group]) -> tuple[str, int]:
        """Id and serial for a group of these names, which belonged to `owner` so far."""
        known = {group.id: group for n in names if (group := owner.get(n)) is not None}
        old = [group for group in known.values() if group.id not in self._taken]
        if not old:
            self.serials += 1
            found = self.new(), self.serials
        else:
            oldest = min(old, key=lambda group: group.serial)
            found = oldest.id, oldest.serial
        self._taken.add(found[0])
        return found
