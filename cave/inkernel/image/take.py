"""Taking an image: what changed since the last one, group by group.

`Taker` holds what is known of the last image. Roots that code may have reached are written;
those that turn out to share something are written together. The others are taken to be as
they were, and looked at while there is time, the cheapest first; with `verify` all are.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from .. import facts
from . import definitions, hashes, members, pickler, roots, rules, touch
from .buffers import Buffers, Seen, address_of
from .groups import Group, Ids, Namer
from .lost import Lost
from .work import FIXED, Batch, Unit, Work

_START, _SPEED = 1.5e-4, 3e7
"""Seconds for a small group, and bytes a second, that writing takes at most as a rule."""
SPARE = 0.0007
"""Seconds of processor time of an image for groups that no code has reached."""
_KEPT = "hidden:"
"""Roots whose values are made anew when their state changes."""
_LONG = 64 << 10
"""Texts beyond that are not held for us."""


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
    before: Sequence[str] | None = None
    """Ids of the groups of `base`, in its order; None where that is not known."""


class Taker:
    """Takes images of one shell's namespace."""

    def __init__(
        self, shell: Any, touched: touch.Touch, made: Callable[..., Buffers] = Buffers
    ) -> None:
        self.shell = shell
        self._touched = touched
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self.number = 0
        """Counts the images."""
        self.batches: list[Batch] = []
        self._namer = Namer(self.new_id)
        self._ids: dict[str, int] = {}
        self._named: dict[int, type] = {}
        self.held: dict[str, Any] = {}
        """Values of the last image that are held, so that their ids are no others'."""
        self._hung: dict[str, str] = {}
        self.image: str | None = None
        """The image that the next one can be a difference from."""
        self.groups: dict[str, Group] = {}
        self.owner: dict[str, Group] = {}
        self.once = False
        """Whether no image follows, for which anything could be prepared."""
        self._order: list[str] | None = None
        """Ids of the groups of `image`, in its order, where it was given by this kernel."""
        self.world = definitions.Definitions()
        self.buffers = made(self.new_id)
        self.guard: Callable[[str], AbstractContextManager[None]] = _unguarded
        """Around what runs code of the user, with the name that it is for."""

    @property
    def expense(self) -> float:
        """About how many seconds it takes to write and look at all, as far as that is known."""
        groups = self.groups.values()
        return sum(g.cost + self.buffers.cost(g.buffers) for g in groups)

    def new_id(self) -> str:
        """An id that no other kernel gives."""
        self._count += 1
        return f"{self._prefix}-{self._count}"

    # -- an image ------------------------------------------------------------------------------

    def take(self, id: str, base: str | None, *, verify: bool = False) -> Taken:
        """An image as a difference from `base`, or of everything when that is not known."""
        self.number += 1
        if base is None or base != self.image:
            self._forget()
        names = self._touched.take(self.shell)
        base, self.image = self.image, None  # until all is well
        try:
            taken = self._take(id, base, names, verify=verify)
        except BaseException:
            self._touched.everything()
            raise
        self.image = id
        self._touched.beside(self.shell)
        return taken

    def _roots(self) -> dict[str, Any]:
        found = roots.roots(self.shell)
        self._named = members.named(v for name, v in found.items() if name[:7] != _KEPT)
        return found

    def _forget(self) -> None:
        """What was given before counts for nothing, but for the ids of groups."""
        self.image = self._order = None
        self.buffers.keep(set())
        for group in self.groups.values():
            group.members = group.digest = None
            group.buffers = ()

    def _take(self, id: str, base: str | None, names: set[str] | None, *, verify: bool) -> Taken:
        found = self._roots()
        work = Work(self, found, names, spare=math.inf if verify else SPARE)
        work.do()
        return self._finish(id, base, found, work)

    def _finish(self, id: str, base: str | None, found: dict[str, Any], work: Work) -> Taken:
        units = list(work.units.values())
        looked = iter(self.buffers.look([place for unit in units for place in unit.places]))
        self._namer.begin()
        made = [
            self._made(unit, [next(looked) for _ in unit.places], work, based=base is not None)
            for unit in units
        ]
        missed = [
            name
            for unit, taken in zip(units, made, strict=True)
            if not taken.same
            for name in unit.names
            if name in work.looked
        ]
        now = {taken.group.id for taken in made}
        stay = [group for id_, group in self.groups.items() if id_ in work.untouched]
        made += [
            TakenGroup(group, same=True, checked=group.id in work.confirmed)
            for group in stay
            if group.id not in now
        ]
        self._settle([taken.group for taken in made], found)
        made.sort(key=_order)
        if not self.once:
            work.make_batches(taken.group for taken in made)
        libraries = {name for taken in made for name in taken.group.libraries}
        packages = facts.versions(libraries - {""})  # a class may say that it is of no module
        alive = [unit.written for unit in units] + [found]
        before, self._order = self._order, [taken.group.id for taken in made]
        return Taken(id, base, self.buffers.chunk, made, missed, packages, alive, before)

    def _made(self, unit: Unit, seen: list[Seen], work: Work, *, based: bool) -> TakenGroup:
        written = unit.written
        id, serial = self._namer.name(unit.names, self.owner)
        old = self.groups.get(id)
        digest = hashes.of_stream(written.stream)
        touched = 0 if old is None else old.touched
        cost = unit.cost
        if old is None:  # the first time includes what is imported and looked up for it
            cost = min(cost, _START + memoryview(written.stream).nbytes / _SPEED)
        if old is not None and unit.names[0] not in work.looked:
            touched = self.number
        group = Group(
            id, serial, unit.names, digest, Ids(written.members),
            tuple(one.buffer for one in seen),
            frozenset(written.uses), frozenset(written.provides), frozenset(written.libraries),
            unit.definitions, tuple(written.notes), cost, self.number, touched,
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
        if same:
            return TakenGroup(group, same=True, checked=True)
        return TakenGroup(group, False, True, written.stream, seen)  # noqa: FBT003

    def _settle(self, now: Iterable[Group], found: Mapping[str, Any]) -> None:
        self.groups = {group.id: group for group in now}
        self.owner = {name: group for group in self.groups.values() for name in group.names}
        self._ids = {name: id(value) for name, value in found.items()}
        self.held = {
            name: value
            for name, value in found.items()
            if (id(type(value)) in FIXED and not _is_long(value)) or name.startswith(_KEPT)
        }
        self.buffers.keep({b.id for group in self.groups.values() for b in group.buffers})
        self.world.keep({key for group in self.groups.values() for key in group.uses})

    def rebound(self, found: Mapping[str, Any]) -> set[str]:
        """Names that are new, or bound to another object than at the last image."""
        known = self._ids.get
        return {name for name, value in found.items() if known(name) != id(value)}

    # -- coming back -----------------------------------------------------------------------------

    def stale(self, base: str | None, keep: Iterable[str]) -> list[str]:
        """Which of these groups are not what they were in that image, if it is the last one."""
        if self.image is None or self.image != base:
            return list(keep)
        found = self._roots()
        names = self._touched.take(self.shell)
        self._touched.again(names)
        work = Work(self, found, names, spare=math.inf)
        work.do()
        units = {unit.names: unit for unit in work.units.values()}
        sure = work.confirmed & work.untouched.keys()
        return [
            id for id in keep if id not in sure and not self._is_same(self.groups.get(id), units)
        ]

    def _is_same(self, group: Group | None, units: Mapping[tuple[str, ...], Unit]) -> bool:
        unit = units.get(group.names) if group is not None else None
        if group is None or unit is None or group.digest != hashes.of_stream(unit.written.stream):
            return False
        seen = self.buffers.look(unit.places, commit=False)
        same = [one.buffer.id for one in seen] == [buffer.id for buffer in group.buffers]
        return same and not any(one.runs for one in seen)

    def loaded(self, image: str, now: Sequence[Group]) -> None:
        """The namespace is that of `image`: groups that were kept, and those just loaded."""
        self.image, self._order = image, None
        self._touched.take(self.shell)
        serials = [group.serial for group in now]
        self._namer.serials = max([self._namer.serials, *serials])
        found = roots.roots(self.shell)
        self._settle(now, found)
        for name in found.keys() - self.owner.keys():
            del self._ids[name]  # what came back in no group, as lost, is new to the next image
        self._touched.beside(self.shell)

    # -- writing ---------------------------------------------------------------------------------

    def write(
        self, names: Iterable[str], found: Mapping[str, Any], *, inline: bool = False
    ) -> Unit:
        """Write these roots together. One that hangs and is interrupted becomes Lost."""
        names = tuple(names)
        if names == (roots.HISTORY,):
            return _texts(names, found)
        values = {name: self._value(name, found) for name in names}
        began = time.thread_time()
        try:
            with self.guard(names[0] if names else ""):
                written = pickler.write(values, self.world, inline=inline, named=self._named)
        except KeyboardInterrupt:
            return self._write_without_hanging(names, found, inline=inline)
        places = [address_of(buffer) for buffer in written.buffers]
        return Unit(names, written, places, time.thread_time() - began, definitions=inline)

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

    def hung_again(self, rebound: set[str]) -> None:
        """Names that were rebound since they hung are tried again."""
        for name in rebound & self._hung.keys():
            del self._hung[name]


def _texts(names: tuple[str, ...], found: Mapping[str, Any]) -> Unit:
    """What shares nothing with others, and needs no rule."""
    began = time.thread_time()
    stream = pickle.dumps({name: found[name] for name in names}, 5)
    return Unit(names, pickler.Written(stream), [], time.thread_time() - began)


def _unguarded(_name: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def _order(taken: TakenGroup) -> tuple[bool, bool, int]:
    return taken.group.order


def _is_long(value: Any) -> bool:
    return (type(value) is str or type(value) is bytes) and len(value) > _LONG


def _type(value: Any) -> str:
    return rules.full_name(type(value)).removeprefix("builtins.")
