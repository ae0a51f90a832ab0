"""The ledger of effects: what a session has called in the world, and what came of each call.

A part of the fold of the journal (see `cave.history`): fed every durable event once. An
effect has a place, which a cell that runs again reaches again: its cell, its lane and its
number there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cave.events import (
    CellResumed,
    EffectIntent,
    EffectResult,
    EffectSettled,
    EffectState,
    Event,
    Fault,
    Restored,
    SessionOpened,
    Standing,
    StoredValue,
)
from cave.turn import Effect

Place = tuple[int, str, int]
"""Cell, lane, ordinal."""

_SETTLED: dict[str, EffectState] = {
    "done": "done", "not_done": "not_done", "give_up": "given_up",
}  # fmt: skip


def key_of(uid: str, place: Place, skill: str, digest: str) -> str:
    """The idempotency key: the same for every attempt, on every machine, and no other call's."""
    cell, lane, ordinal = place
    parts = (uid, str(cell), lane, str(ordinal), skill, digest)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Entry:
    """One effect: the newest intent, and what came of it."""

    first: EffectIntent
    intent: EffectIntent
    state: EffectState = "begun"
    value: StoredValue | None = None
    error: Fault | None = None
    reason: str = ""
    seconds: float = 0.0
    undone: str = ""
    """The effect that has compensated it."""

    @property
    def id(self) -> str:
        return self.intent.effect

    @property
    def place(self) -> Place:
        return self.intent.cell, self.intent.lane, self.intent.ordinal

    @property
    def said(self) -> str:
        """The call in words: `post(n=1)`."""
        told = ", ".join(f"{name}={text}" for name, text in self.intent.arguments.items())
        return f"{self.intent.skill}({told})"

    @property
    def where(self) -> str:
        """Who called it: `of cell 3`, `which undoes e2`."""
        return (
            f"which undoes {self.first.undoes}"
            if self.first.undoes
            else f"of cell {self.intent.cell}"
        )

    @property
    def stands(self) -> bool:
        """Whether it has changed the world, and nothing has compensated that."""
        done = self.state == "done" and self.intent.effect_kind == "write"
        return done and not self.undone and not self.first.undoes

    @property
    def open(self) -> bool:
        """Whether nobody knows yet what became of it."""
        return self.state in {"begun", "in_doubt"}


class Ledger:
    """The effects of a session, as its events tell of them."""

    def __init__(self, read: Callable[[StoredValue], Any] | None = None) -> None:
        self._read = read
        self.entries: dict[str, Entry] = {}
        """By id, in the order of their first intents."""
        self.newest = 0
        """The number in the highest id."""
        self._at: dict[Place, str] = {}
        self._of_cell: dict[int, list[str]] = {}
        self._standing: dict[tuple[str, str], Standing] = {}
        """What was done after the moment that the namespace went back to, by session and id."""
        self._answered: set[tuple[str, str]] = set()
        """Of those, the ones that a person has been asked about."""

    def feed(self, event: Event) -> None:
        """Take in one durable event."""
        match event:
            case EffectIntent():
                self._intent(event)
            case EffectResult() if event.effect in self.entries:
                self._ended(event)
            case EffectSettled() if event.effect in self.entries:
                self._settled(event)
            case _:
                self._moved(event)

    def _moved(self, event: Event) -> None:
        """What stands beside the namespace from now on."""
        match event:
            case SessionOpened():
                self._hold(event.standing)
            case Restored() if event.reason == "asked":
                self._let_go(lambda standing: not standing.source)
                self._hold(event.standing)
            case CellResumed():
                self._let_go(lambda standing: standing.cell == event.cell)
            case _:
                pass

    def _hold(self, found: Iterable[Standing]) -> None:
        held = {(standing.source, standing.effect): standing for standing in found}
        self._standing |= {at: s for at, s in held.items() if at not in self._answered}

    def _let_go(self, goes: Callable[[Standing], bool]) -> None:
        self._standing = {at: s for at, s in self._standing.items() if s.source or not goes(s)}

    @property
    def beside(self) -> tuple[Standing, ...]:
        """What this session has done, and stands although its namespace went back."""
        return tuple(s for s in self._standing.values() if not s.source)

    def standing(self, skill: str, digest: str) -> Standing | None:
        """An effect that stands although the namespace went back, and is the same as this call."""
        for standing in self._standing.values():
            if (standing.skill, standing.digest) == (skill, digest):
                return standing
        return None

    def past(self, cells: Collection[int]) -> tuple[Standing, ...]:
        """What was done by other cells than these, and not compensated."""
        return tuple(
            Standing(
                entry.id,
                entry.intent.skill,
                entry.intent.cell,
                entry.said,
                entry.intent.digest,
                entry.first.undo,
            )
            for entry in self.entries.values()
            if entry.stands and entry.intent.cell not in cells
        )

    def beyond(self, session: str, cells: Collection[int]) -> tuple[Standing, ...]:
        """The same for a fork that begins where only these cells were."""
        earlier = (standing for standing in self._standing.values() if standing.source)
        return (*earlier, *(replace(s, source=session) for s in self.past(cells)))

    def undoing(self, id: str) -> list[Entry]:
        """The compensations of an effect, the newest last."""
        return [entry for entry in self.entries.values() if entry.first.undoes == id]

    def _settled(self, event: EffectSettled) -> None:
        entry, state = self.entries[event.effect], _SETTLED[event.decision]
        self.entries[event.effect] = replace(
            entry, state=state, value=event.value, error=None, reason=""
        )
        if state == "done":
            self._compensated(entry)
        if entry.first.repeats and state != "given_up":  # one answer is for one call
            source, _, id = entry.first.repeats.rpartition("/")
            self._standing.pop((source, id), None)
            self._answered.add((source, id))

    def _compensated(self, entry: Entry) -> None:
        if (id := entry.first.undoes) in self.entries:
            self.entries[id] = replace(self.entries[id], undone=entry.id)
            self._standing.pop(("", id), None)

    def _intent(self, event: EffectIntent) -> None:
        known = self.entries.get(event.effect)
        first = event if known is None else known.first
        entry = self.entries[event.effect] = Entry(first, event)
        if known is None:
            self.newest = max(self.newest, int(event.effect[1:]))
            self._at[entry.place] = event.effect
            if not event.undoes:
                self._of_cell.setdefault(event.cell, []).append(event.effect)

    def _ended(self, event: EffectResult) -> None:
        entry = self.entries[event.effect]
        settled = entry.state in {"done", "failed", "given_up"}
        if event.attempt == entry.intent.attempt and not settled:
            self.entries[event.effect] = replace(
                entry,
                state=event.state,
                value=event.value,
                error=event.error,
                reason=event.reason,
                seconds=event.seconds,
            )
            if event.state == "done":
                self._compensated(entry)

    def at(self, place: Place) -> Entry | None:
        """The effect that was called at this place."""
        return self.entries.get(self._at.get(place, ""))

    def of_cell(self, cell: int) -> list[Entry]:
        """The effects of a cell, in the order of their intents."""
        return [self.entries[id] for id in self._of_cell.get(cell, ())]

    def in_doubt(self) -> Iterator[Entry]:
        """Effects that wait for a person."""
        return (entry for entry in self.entries.values() if entry.state == "in_doubt")

    def effect(self, entry: Entry) -> Effect:
        """The effect as people see it."""
        intent, value, read = entry.intent, entry.value, self._read
        known = value is not None and read is not None
        return Effect(
            id=entry.id,
            skill=intent.skill,
            arguments=intent.arguments,
            key=intent.key,
            state=entry.state,
            cell=intent.cell,
            attempt=intent.attempt,
            kind=intent.effect_kind,
            reason=entry.reason or (_said(entry.error) if entry.error else ""),
            at=entry.first.at,
            seconds=entry.seconds,
            undone=entry.undone,
            undoes=entry.first.undoes,
            repeats=entry.first.repeats,
            _value=(lambda: read(value)) if known else None,  # type: ignore[misc,arg-type]
        )


def _said(fault: Fault) -> str:
    return f"{fault.name}: {fault.message}" if fault.message else fault.name
