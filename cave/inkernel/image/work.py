"""One image in the making: which roots are written, and which of them together.

Roots that code may have reached are written, each group by itself; what meets another group
is written together with it. Then, while there is time, groups that nobody has reached are
looked at all the same. The classes and functions of the session come last.
"""

from __future__ import annotations

import math
import time
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import groups, hashes, hidden, modules, touch
from .groups import Group, Ids

if TYPE_CHECKING:
    from .buffers import Buffer
    from .take import Taker

DEFINITION = "def:"
FIXED = frozenset(map(id, (
    type(None), bool, int, float, complex, str, bytes, types.ModuleType,
)))  # fmt: skip
"""Ids of the types of objects that are the same as long as they are the same object."""
_QUICK = 0.0005
"""Seconds of writing below which a group is looked at together with others."""
_BATCH = 32
_FEW = 4
_SELDOM = 5
"""The classes and functions are looked at in one image of so many, when nothing reached them."""


@dataclass(slots=True)
class Unit:
    """Names that were written together, as they are now."""

    names: tuple[str, ...]
    written: Any
    places: list[tuple[int, int]]
    """Address and size of its buffers."""
    cost: float
    definitions: bool = False

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(address, address + size) for address, size in self.places]


@dataclass(slots=True)
class Batch:
    """Small groups that are looked at by one writing of all of them."""

    groups: tuple[str, ...]
    digest: bytes
    members: Ids
    cost: float
    looked: int


class Work:
    """One image in the making."""

    def __init__(
        self, taker: Taker, found: dict[str, Any], names: set[str] | None, *, spare: float
    ) -> None:
        self._taker = taker
        self._found = found
        self._spare = spare
        self._end = 0.0
        self._inner: frozenset[str] | None = None
        self.confirmed: set[str] = set()
        """Ids of untouched groups that were seen to be as they were."""
        self.looked: set[str] = set()
        """Names that were written although nothing had reached them."""
        self._rebound = taker.rebound(found)
        taker.hung_again(self._rebound)
        self._names = self._reached(names)
        self.untouched = dict(taker.groups)
        """Groups that nothing has been seen to change."""
        self.units: dict[int, Unit] = {}
        """What was written, by an arbitrary number."""
        self._next = 0
        self._reached_groups: set[str] = set()

    def do(self) -> None:
        """Write all that is to be written; groups without a base are never looked at twice."""
        self.write_touched()
        self._end = time.thread_time() + self._spare
        self.look_at_others()
        self.write_definitions()

    # -- what is touched -----------------------------------------------------------------------

    def _reached(self, names: set[str] | None) -> set[str] | None:
        if names is None:
            return None
        return touch.closure(names | self._rebound, self._further)

    def _further(self, name: str) -> Iterable[str]:
        """Names that code reaches by an object's own methods, and by those of what it holds."""
        taker = self._taker
        yield from touch.of_object(self._found.get(name))
        group = taker.owner.get(name)
        for key in group.uses if group is not None else ():
            definition = taker.world.find(key)
            if definition is not None:
                yield from touch.of_object(definition)
        if group is not None and (group.uses or group.definitions):
            yield from self._nameless()

    def _nameless(self) -> frozenset[str]:
        """Names in definitions that no variable is bound to: in closures, in attributes."""
        if self._inner is None:
            taker = self._taker
            bound = {id(value) for value in self._found.values()}
            keys = {key for group in taker.groups.values() for key in group.provides}
            inside = [one for key in keys if id(one := taker.world.find(key)) not in bound]
            self._inner = frozenset(name for one in inside for name in touch.of_object(one))
        return self._inner

    def _touched_groups(self) -> list[Group]:
        """Groups that code may have reached, in their order; one pass in C over all names."""
        if self._names is None:
            return list(self.untouched.values())
        owner, found = self._taker.owner, self._found
        names = self._names.intersection(owner)
        names |= owner.keys() - found.keys()
        if modules.SOURCES in owner or modules.SOURCES in found:
            names.update(name for name in owner if name.startswith("module:"))
        reached = {owner[name].id for name in names if not name.startswith(DEFINITION)}
        return [
            group
            for group in self.untouched.values()
            if group.members is None or group.id in reached
        ]

    # -- ordinary groups -------------------------------------------------------------------------

    def write_touched(self) -> None:
        """Write what was touched, and what shares something with it, where it belongs."""
        found = self._found
        alone = {name for name in self._rebound if self._is_homeless(name)}
        fresh: list[tuple[str, ...]] = [(name,) for name in found if name in alone]
        touched = self._touched_groups()
        self._reached_groups = {group.id for group in touched}
        for group in touched:
            if group.definitions:
                continue
            if group.members is not None and self._is_fixed(group):
                self._confirm(group)
            else:
                fresh += self._open(group)
        self._settle(fresh)

    def _is_homeless(self, name: str) -> bool:
        """Whether it is in no group of plain objects, and no definition."""
        group = self._taker.owner.get(name)
        return (group is None or group.definitions) and not self._defines(name)

    def _defines(self, name: str) -> bool:
        return self._taker.world.is_definition(self._found[name])

    def _open(self, group: Group) -> list[tuple[str, ...]]:
        """What to write of a group: together what was, alone what may belong elsewhere now."""
        del self.untouched[group.id]
        names = [n for n in group.names if n in self._found and not self._defines(n)]
        broken = len(names) < len(group.names) or not self._rebound.isdisjoint(names)
        if broken or group.members is None:
            return [(name,) for name in names]
        return [tuple(names)]

    def _settle(self, fresh: list[tuple[str, ...]], new: Iterable[int] = ()) -> None:
        """Write these; where they meet each other or older groups, write those together."""
        new = list(new)
        while fresh or new:
            new += [self._add(self._taker.write(names, self._found)) for names in fresh if names]
            fresh = [names for group in self._met(new) for names in self._open(group)]
            new = []
        self._unite()

    def _add(self, unit: Unit) -> int:
        self._next += 1
        self.units[self._next] = unit
        return self._next

    def _met(self, new: Iterable[int]) -> list[Group]:
        """Untouched groups that share something with what was just written."""
        units = [self.units[number] for number in new]
        members: set[int] = set().union(*(unit.written.members for unit in units))
        ranges = [one for unit in units for one in unit.ranges]
        return [
            group
            for group in self.untouched.values()
            if not group.definitions
            if group.members is None
            or group.members.meets(members)
            or (ranges and group.buffers and groups.overlaps(group.ranges, ranges))
        ]

    def _unite(self) -> None:
        numbers = [n for n, unit in self.units.items() if not unit.definitions]
        together = groups.sharing(
            [self.units[n].written.members for n in numbers],
            [self.units[n].ranges for n in numbers],
        )
        for positions in together:
            if len(positions) > 1:
                units = [self.units.pop(numbers[at]) for at in positions]
                names = [name for unit in units for name in unit.names]
                self._add(self._taker.write(self._sorted(names), self._found))

    def _sorted(self, names: Iterable[str]) -> tuple[str, ...]:
        """In the order of the namespace."""
        wanted = set(names)
        return tuple(name for name in self._found if name in wanted)

    # -- definitions ---------------------------------------------------------------------------

    def write_definitions(self) -> None:
        """Write the classes and functions of the session, where they may have changed."""
        old = next((group for group in self.untouched.values() if group.definitions), None)
        variables = set(self._variables())
        if old is not None and not self._definitions_touched(old, variables):
            seldom = self._taker.number < old.looked + _SELDOM and self._spare < 1
            if seldom or not self._has_time(old.cost, old.buffers):
                return
            self.looked.update(old.names)
        names, keys = variables, set[str]()
        if old is not None:
            del self.untouched[old.id]
            names |= {name for name in old.names if name in self._found} - self._rebound
            keys = _keys(old) & self._needed()
        if not names and not keys:
            keys = self._needed()
        while names or keys:
            unit = self._write_inline(names, keys)
            joined = self._drawn_in(unit)
            missing = self._needed() - unit.written.provides - keys
            if not joined and not missing:
                break
            names |= joined
            keys |= missing
        else:
            return
        if unit.names:
            self._add(unit)

    def _write_inline(self, names: set[str], keys: set[str]) -> Unit:
        extra = {
            DEFINITION + key: found
            for key in sorted(keys)
            if (found := self._taker.world.find(key)) is not None
        }
        everything = {**self._found, **extra}
        return self._taker.write((*self._sorted(names), *extra), everything, inline=True)

    def _needed(self) -> set[str]:
        """Keys of the definitions that ordinary groups refer to."""
        found: set[str] = set()
        for unit in self.units.values():
            if not unit.definitions:
                found |= unit.written.uses
        for group in self.untouched.values():
            if not group.definitions:
                found |= group.uses
        return found

    def _variables(self) -> list[str]:
        return [name for name in self._found if self._defines(name)]

    def _definitions_touched(self, old: Group, variables: set[str]) -> bool:
        needed = self._needed()
        if old.id in self._reached_groups or not needed <= old.provides or not _keys(old) <= needed:
            return True
        if not variables <= set(old.names):
            return True
        return any(unit.written.uses for unit in self.units.values())

    def _drawn_in(self, unit: Unit) -> set[str]:
        """Names of ordinary groups that share something with a definition."""
        joined: set[str] = set()
        for group in list(self.untouched.values()):
            if (
                group.members is None
                or group.members.meets(unit.written.members)
                or (groups.overlaps(group.ranges, unit.ranges))
            ):
                del self.untouched[group.id]
                joined.update(name for name in group.names if name in self._found)
        for number, other in list(self.units.items()):
            if not unit.written.members.isdisjoint(other.written.members) or (
                groups.overlaps(other.ranges, unit.ranges)
            ):
                del self.units[number]
                joined.update(other.names)
        return joined

    # -- the others ----------------------------------------------------------------------------

    def look_at_others(self) -> None:
        """Look at groups that nothing has reached, the cheapest and longest unseen first."""
        suspects: list[int] = []
        self._confirm_fixed()
        self._look_at_batches()
        left = self._left()
        others = [
            group
            for group in self.untouched.values()
            if group.cost <= left and not group.definitions and group.id not in self.confirmed
        ]
        for group in sorted(others, key=lambda g: (g.looked, g.cost)):
            if group.cost + self._cost(group.buffers) <= left:
                suspects += self._look_at(group)
                left = self._left()
            elif left <= 0:
                break
        if suspects:
            self._settle([], suspects)

    def _has_time(self, seconds: float, known: Sequence[Buffer] = ()) -> bool:
        """Whether there is time for what takes so long, and a look at buffers."""
        return seconds + self._cost(known) <= self._left()

    def _left(self) -> float:
        """Seconds that may still be spent."""
        return self._end if self._end == math.inf else self._end - time.thread_time()

    def _cost(self, known: Sequence[Buffer]) -> float:
        return self._taker.buffers.cost(known) if known else 0.0

    def _confirm(self, group: Group) -> None:
        self.confirmed.add(group.id)
        group.looked = self._taker.number

    def _confirm_fixed(self) -> None:
        owner = self._taker.owner
        for name in self._taker.held:
            group = owner.get(name)
            if group is not None and group.id in self.untouched and self._is_fixed(group):
                self._confirm(group)

    def _look_at(self, group: Group) -> list[int]:
        """Write it; the number of what was written when it may share something else now."""
        unit = self._taker.write(group.names, self._found)
        as_it_was = _is_as_before(unit, group.digest, group.members)
        if as_it_was and not group.buffers and not unit.places:
            self._confirm(group)
            return []
        del self.untouched[group.id]
        self.looked.update(group.names)
        number = self._add(unit)
        return [] if as_it_was else [number]

    def _look_at_batches(self) -> None:
        batches = self._taker.batches
        for batch in sorted(batches, key=lambda batch: batch.looked):
            inside = [self.untouched.get(id) for id in batch.groups]
            whole = [group for group in inside if group is not None]
            if len(whole) < len(inside):
                batches.remove(batch)
            elif self._has_time(batch.cost):
                unit = self._taker.write([n for g in whole for n in g.names], self._found)
                if _is_as_before(unit, batch.digest, batch.members):
                    batch.looked = self._taker.number
                    for group in whole:
                        self._confirm(group)
                else:  # one of them has changed: each by itself, now
                    batches.remove(batch)
                    for group in whole:
                        group.looked = 0

    def make_batches(self, now: Iterable[Group]) -> None:
        """From now on look at small groups together whose content was just given or seen."""
        number = self._taker.number
        taken = {id for batch in self._taker.batches for id in batch.groups}
        quick = [
            group
            for group in now
            if group.looked == number and group.id not in taken and group.cost < _QUICK
            if not group.buffers and not group.definitions and not self._is_fixed(group)
            if not group.touched or number - group.touched > _SELDOM
        ]
        for at in range(0, len(quick) - _FEW, _BATCH):
            self._make_batch(quick[at : at + _BATCH])

    def _make_batch(self, quick: list[Group]) -> None:
        unit = self._taker.write([name for group in quick for name in group.names], self._found)
        digest, members = hashes.of_stream(unit.written.stream), Ids(unit.written.members)
        ids = tuple(group.id for group in quick)
        self._taker.batches.append(Batch(ids, digest, members, unit.cost, self._taker.number))

    def _is_fixed(self, group: Group) -> bool:
        """Whether it is one object that cannot change, and the same one as before."""
        name = group.names[0]
        if len(group.names) > 1 or name not in self._found or name not in self._taker.held:
            return False
        held = self._taker.held[name]
        if self._found[name] is not held:
            return False
        return id(type(held)) in FIXED or name in hidden.FIXED


def _keys(group: Group) -> set[str]:
    """Of the definitions in it that no variable is bound to."""
    return {n[len(DEFINITION) :] for n in group.names if n.startswith(DEFINITION)}


def _is_as_before(unit: Unit, digest: bytes | None, members: Ids | None) -> bool:
    """Whether the stream is the same, and what could be shared."""
    written = unit.written
    return (
        digest == hashes.of_stream(written.stream)
        and members is not None
        and members.same(written.members)
    )
