"""The ledger of effects: what a session has called in the world, and what came of each call.

A part of the fold of the journal (see `cave.history`): fed every durable event once. An
effect has a place, which a cell that runs again reaches again: its cell, its lane and its
number there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cave.events import (
    EffectIntent,
    EffectResult,
    EffectSettled,
    EffectState,
    Event,
    Fault,
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

    def feed(self, event: Event) -> None:
        """Take in one durable event."""
        match event:
            case EffectIntent():
                self._intent(event)
            case EffectResult() if event.effect in self.entries:
                self._ended(event)
            case EffectSettled() if event.effect in self.entries:
                entry = self.entries[event.effect]
                self.entries[event.effect] = replace(
                    entry, state=_SETTLED[event.decision], value=event.value, error=None, reason=""
                )
            case _:
                pass

    def _intent(self, event: EffectIntent) -> None:
        known = self.entries.get(event.effect)
        first = event if known is None else known.first
        entry = self.entries[event.effect] = Entry(first, event)
        if known is None:
            self.newest = max(self.newest, int(event.effect[1:]))
            self._at[entry.place] = event.effect
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
            _value=(lambda: read(value)) if known else None,  # type: ignore[misc,arg-type]
        )


def _said(fault: Fault) -> str:
    return f"{fault.name}: {fault.message}" if fault.message else fault.name
