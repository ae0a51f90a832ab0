"""Taking an image: what changed since the last one, group by group.

`Taker` holds what is known of the last image. Roots that code may have reached are written;
those that turn out to share something are written together. The others are taken to be as
they were, and looked at while there is time, the cheapest first; with `verify` all are.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from . import definitions, groups, hashes, pickler, roots, touch
from .buffers import Buffers, Seen, address_of
from .groups import Group, Ids, Namer
from .lost import Lost

SPARE = 0.001
"""Seconds of an image for groups that no code has reached."""
_ROUNDS = 50
_DEFINITION = "def:"
_KEPT = "hidden:"
"""Roots whose values are made anew when their state changes: held, so that ids stay true."""


@dataclass(slots=True)
class Unit:
    """Names that were written together, as they are now."""

    names: tuple[str, ...]
    written: Any
    places: list[tuple[int, int]]
    """Address and size of its buffers."""
    cost: float
    checked: bool = False
    """Looked at although no code had reached it."""
    definitions: bool = False

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(address, address + size) for address, size in self.places]


@dataclass(slots=True)
class TakenGroup:
    """A group of an image: `same`, or with all that is new."""

    group: Group
    same: bool
    checked: bool
    stream: Any = None
    buffers: list[Seen] = field(default_factory=list)


@dataclass(slots=True)
class Taken:
    """An image, before it is handed over. Memory that it shows lives as long as it does."""

    id: str
    base: str | None
    chunk: int
    groups: list[TakenGroup]
    missed: list[str]
    packages: dict[str, str]
    alive: list[Any]


class Taker:
    """Takes images of one shell's namespace."""

    def __init__(self, shell: Any, touched: touch.Touch) -> None:
        self._shell = shell
        self._touched = touched
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self._number = 0
        self._namer = Namer(self._new_id)
        self._ids: dict[str, int] = {}
        self._held: dict[str, Any] = {}
        self._hung: dict[str, str] = {}
        self.image: str | None = None
        """The image that the next one can be a difference from."""
        self.groups: dict[str, Group] = {}
        self.owner: dict[str, Group] = {}
        self.world = definitions.Definitions()
        self.buffers = Buffers(self._new_id)
        self.guard: Callable[[str], AbstractContextManager[None]] = _unguarded
        """Around what runs code of the user, with the name that it is for."""

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    # -- an image ------------------------------------------------------------------------------

    def take(self, id: str, base: str | None, *, verify: bool = False) -> Taken:
        """An image as a difference from `base`, or of everything when that is not known."""
        self._number += 1
        if base is None or base != self.image:
            self._forget()
        names = self._touched.take(self._shell)
        base, self.image = self.image, None  # until all is well
        try:
            taken = self._take(id, base, names, verify=verify)
        except BaseException:
            self._touched.everything()
            raise
        self.image = id
        self._touched.beside(self._shell)
        return taken

    def _forget(self) -> None:
        """What was given before counts for nothing, but for the ids of groups."""
        self.image = None
        self.buffers.keep(set())
        for group in self.groups.values():
            group.members = group.digest = None
            group.buffers = ()

    def _take(self, id: str, base: str | None, names: set[str] | None, *, verify: bool) -> Taken:
        found = roots.roots(self._shell)
        work = Work(self, found, names)
        work.write_touched()
        work.write_definitions()
        if base is not None:
            work.look_at_others(None if verify else SPARE)
        return self._finish(id, base, found, work)

    def _finish(self, id: str, base: str | None, found: dict[str, Any], work: Work) -> Taken:
        units = list(work.units.values())
        looked = iter(self.buffers.look([place for unit in units for place in unit.places]))
        self._namer.begin()
        made = [
            self._made(unit, [next(looked) for _ in unit.places], base is not None)
            for unit in units
        ]
        missed = [
            name
            for unit, taken in zip(units, made, strict=True)
            if unit.checked and not taken.same
            for name in unit.names
        ]
        now = {taken.group.id for taken in made}
        stay = [group for id_, group in self.groups.items() if id_ in work.untouched]
        made += [TakenGroup(group, True, False) for group in stay if group.id not in now]  # noqa: FBT003
        self._settle([taken.group for taken in made], found)
        made.sort(key=_order)
        packages = _versions({name for taken in made for name in taken.group.libraries})
        alive = [unit.written for unit in units] + [found]
        return Taken(id, base, self.buffers.chunk, made, missed, packages, alive)

    def _made(self, unit: Unit, seen: list[Seen], based: bool) -> TakenGroup:  # noqa: FBT001
        written = unit.written
        id, serial = self._namer.name(unit.names, self.owner)
        old = self.groups.get(id)
        digest = hashes.of_stream(written.stream)
        group = Group(
            id, serial, unit.names, digest, Ids(written.members),
            tuple(one.buffer for one in seen),
            frozenset(written.uses), frozenset(written.provides), frozenset(written.libraries),
            unit.definitions, tuple(written.notes), unit.cost, self._number,
        )  # fmt: skip
        same = (
            based
            and old is not None
            and old.digest == digest
            and old.names == unit.names
            and old.definitions == unit.definitions
            and [b.id for b in old.buffers] == [b.id for b in group.buffers]
            and not any(one.runs or not one.base for one in seen)
        )
        return TakenGroup(group, same, True, None if same else written.stream, [] if same else seen)  # noqa: FBT003

    def _settle(self, now: Iterable[Group], found: Mapping[str, Any]) -> None:
        self.groups = {group.id: group for group in now}
        self.owner = {name: group for group in self.groups.values() for name in group.names}
        self._ids = {name: id(value) for name, value in found.items()}
        self._held = {n: value for n, value in found.items() if n.startswith(_KEPT)}
        self.buffers.keep({b.id for group in self.groups.values() for b in group.buffers})

    def rebound(self, found: Mapping[str, Any]) -> set[str]:
        """Names that are new, or bound to another object than at the last image."""
        known = self._ids.get
        return {name for name, value in found.items() if known(name) != id(value)}

    # -- coming back -----------------------------------------------------------------------------

    def stale(self, keep: Iterable[str]) -> list[str]:
        """Which of these groups are not what they were in the last image."""
        if self.image is None:
            return list(keep)
        found = roots.roots(self._shell)
        names = self._touched.take(self._shell)
        self._touched.again(names)
        work = Work(self, found, names)
        work.write_touched()
        work.write_definitions()
        work.look_at_others(None)
        units = {unit.names: unit for unit in work.units.values()}
        return [id for id in keep if not self._is_same(self.groups.get(id), units)]

    def _is_same(self, group: Group | None, units: Mapping[tuple[str, ...], Unit]) -> bool:
        unit = units.get(group.names) if group is not None else None
        if group is None or unit is None or group.digest != hashes.of_stream(unit.written.stream):
            return False
        seen = self.buffers.look(unit.places, commit=False)
        same = [one.buffer.id for one in seen] == [buffer.id for buffer in group.buffers]
        return same and not any(one.runs for one in seen)

    def loaded(self, image: str, now: Iterable[Group], *, chunk: int) -> None:
        """The namespace is that of `image`: groups that were kept, and those just loaded."""
        self.image = image
        self.buffers.chunk = chunk
        self._touched.take(self._shell)
        serials = [group.serial for group in now]
        self._namer.serials = max([self._namer.serials, *serials])
        self._settle(now, roots.roots(self._shell))
        self._touched.beside(self._shell)

    # -- writing ---------------------------------------------------------------------------------

    def write(
        self, names: Iterable[str], found: Mapping[str, Any], *, inline: bool = False
    ) -> Unit:
        """Write these roots together. One that hangs and is interrupted becomes Lost."""
        names = tuple(names)
        values = {name: self._value(name, found) for name in names}
        began = time.perf_counter()
        try:
            with self.guard(names[0]):
                written = pickler.write(values, self.world, inline=inline)
        except KeyboardInterrupt:
            return self._write_without_hanging(names, found, inline=inline)
        written.notes += self._notes_of_hung(names, found)
        places = [address_of(buffer) for buffer in written.buffers]
        return Unit(names, written, places, time.perf_counter() - began, definitions=inline)

    def _value(self, name: str, found: Mapping[str, Any]) -> Any:
        value = found[name]
        if name in self._hung:
            return Lost(name, _type(value), self._hung[name])
        return value

    def _write_without_hanging(
        self, names: tuple[str, ...], found: Mapping[str, Any], *, inline: bool
    ) -> Unit:
        if len(names) == 1:
            self._hung[names[0]] = "writing it took too long and was stopped"
        else:
            for name in names:
                self.write((name,), found, inline=inline)
        return self.write(names, found, inline=inline)

    def _notes_of_hung(self, names: Iterable[str], found: Mapping[str, Any]) -> list[Any]:
        return [
            pickler.Note("lost", name, _type(found[name]), self._hung[name])
            for name in names
            if name in self._hung
        ]

    def hung_again(self, rebound: set[str]) -> None:
        """Names that were rebound since they hung are tried again."""
        for name in rebound & self._hung.keys():
            del self._hung[name]


def _unguarded(_name: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


class Work:
    """One image in the making."""

    def __init__(self, taker: Taker, found: dict[str, Any], names: set[str] | None) -> None:
        self._taker = taker
        self._found = found
        self._rebound = taker.rebound(found)
        taker.hung_again(self._rebound)
        self._names = self._reached(names)
        self.untouched = dict(taker.groups)
        """Groups that nothing has been seen to change."""
        self.units: dict[int, Unit] = {}
        """What was written, by an arbitrary number."""
        self._next = 0

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

    def _is_touched(self, group: Group) -> bool:
        if self._names is None or group.members is None:
            return True
        return any(
            name in self._names or name not in self._found or name.startswith("module:")
            for name in group.names
            if not name.startswith(_DEFINITION)
        )

    # -- ordinary groups -------------------------------------------------------------------------

    def write_touched(self) -> None:
        """Write what was touched, and what shares something with it, where it belongs."""
        found = self._found
        alone = {name for name in self._rebound if self._is_homeless(name)}
        fresh: list[tuple[str, ...]] = [(name,) for name in found if name in alone]
        for group in list(self.untouched.values()):
            if not group.definitions and self._is_touched(group):
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

    def _settle(self, fresh: list[tuple[str, ...]]) -> None:
        """Write these; where they meet each other or older groups, write those together."""
        for _ in range(_ROUNDS):
            new = [self._add(self._taker.write(names, self._found)) for names in fresh if names]
            fresh = [names for group in self._met(new) for names in self._open(group)]
            if not fresh:
                break
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
            or groups.overlaps(group.ranges, ranges)
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
            return
        names, keys = variables, set[str]()
        if old is not None:
            del self.untouched[old.id]
            names |= {name for name in old.names if name in self._found} - self._rebound
            keys = {name[len(_DEFINITION) :] for name in old.names if name[:4] == _DEFINITION}
            keys &= self._needed()
        for _ in range(_ROUNDS):
            if not names and not keys and not self._needed():
                return
            unit = self._write_inline(names, keys)
            joined = self._drawn_in(unit)
            missing = self._needed() - unit.written.provides - keys
            if not joined and not missing:
                break
            names |= joined
            keys |= missing
        self._add(unit)

    def _write_inline(self, names: set[str], keys: set[str]) -> Unit:
        extra = {
            _DEFINITION + key: found
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
        if self._is_touched(old) or not self._needed() <= old.provides:
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

    def look_at_others(self, seconds: float | None) -> None:
        """Write untouched groups all the same, the cheapest and longest unseen first."""
        end = None if seconds is None else time.perf_counter() + seconds
        for group in sorted(self.untouched.values(), key=lambda g: (g.looked, g.cost)):
            if end is not None and time.perf_counter() + group.cost > end:
                continue
            self._look_at(group)

    def _look_at(self, group: Group) -> None:
        found = self._found
        if group.definitions:
            extra = {
                name: obj
                for name in group.names
                if name.startswith(_DEFINITION)
                and (obj := self._taker.world.find(name[len(_DEFINITION) :])) is not None
            }
            found = {**found, **extra}
        if not all(name in found for name in group.names):
            return
        unit = self._taker.write(group.names, found, inline=group.definitions)
        unit.checked = True
        del self.untouched[group.id]
        self._add(unit)


def _order(taken: TakenGroup) -> tuple[bool, bool, int]:
    group = taken.group
    early = not any(name in roots.FIRST for name in group.names)
    return early, not group.definitions, group.serial


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else (
        f"{kind.__module__}.{kind.__qualname__}"
    )  # fmt: skip


def _versions(names: set[str]) -> dict[str, str]:
    """Versions of libraries, as far as they tell."""
    found = {}
    for name in sorted(names):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version[:100]
    return found
