"""The audit of a session: who allowed what, when, and on which evidence.

Read from the journal alone. The evidence of a line is the digest of the exact bytes that it is
about (a call's arguments, a cell's source), the record's number, and the record's hash, which
the hash chain makes depend on every record before. An *anchor* is the number and hash of the
last record: kept elsewhere, it shows later whether the journal up to there is still the same,
also when everything behind it was written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cave.approval import Approvals
from cave.errors import ConfigError
from cave.events import (
    ApprovalRequested,
    ApprovalSettled,
    BudgetPaused,
    CellFinished,
    CellStarted,
    EffectIntent,
    EffectResult,
    EffectSettled,
    Event,
    ForeignAdmitted,
    InterruptSent,
    SessionOpened,
    TurnStarted,
)

Told = tuple[str, str, str, str]
_ANCHOR = re.compile(r"(\d+):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the audit."""

    seq: int
    at: float
    """Unix seconds."""
    deed: str
    """`asked`, `approved`, `called`, `done` ..."""
    what: str
    by: str
    """Who or what allowed or did it."""
    digest: str
    """SHA-256 of the bytes that it is about; empty where there are none."""
    record: str
    """SHA-256 of the record, over all records before it."""


def lines(events: Iterable[Event], seals: Mapping[int, str]) -> tuple[Line, ...]:
    """The audit of a session, from its events and the hashes of its records by number."""
    auditing = _Auditing()
    made = []
    for event in events:
        auditing.approvals.feed(event)
        told = auditing.told(event)
        if told is not None:
            deed, what, by, digest = told
            made.append(Line(event.seq, event.at, deed, what, by, digest, seals.get(event.seq, "")))
    return tuple(made)


def anchor(seals: Mapping[int, str]) -> str:
    """The number and hash of the last record: `57:9f86...`; empty for an empty journal."""
    last = max(seals, default=0)
    return f"{last}:{seals[last]}" if last else ""


def moved(seals: Mapping[int, str], known: str) -> str:
    """How the journal differs from one with that anchor; empty when it goes on from there.

    Raises `ConfigError` for what is no anchor.
    """
    match = _ANCHOR.fullmatch(known)
    if match is None:
        raise ConfigError(f"{known!r} is no anchor; `cave log NAME --audit` prints one")
    seq, wanted = int(match[1]), match[2]
    there = seals.get(seq)
    if there is None:
        return f"record {seq} of the anchor is gone: the journal ends at {max(seals, default=0)}"
    if there != wanted:
        return f"record {seq} is not the one of the anchor: what was journaled was written anew"
    return ""


class _Auditing:
    """What was allowed so far."""

    def __init__(self) -> None:
        self.approvals = Approvals()
        self._calls: dict[str, EffectIntent] = {}

    def told(self, event: Event) -> Told | None:
        """The deed, what, by whom, and the digest; None for what nobody has to answer for."""
        return self._leave_of(event) or self._effect(event) or _other(event)

    def _leave_of(self, event: Event) -> Told | None:
        match event:
            case CellFinished(status="denied"):
                why = event.error.message if event.error is not None else ""
                return "denied", f"cell {event.cell}", f"the policy: {why}", ""
            case ApprovalRequested():
                return "asked", f"{event.approval} {event.what}", event.reason, event.digest
            case ApprovalSettled():
                return self._settled(event)
            case _:
                return None

    def _settled(self, event: ApprovalSettled) -> Told:
        asked = self.approvals.entries.get(event.approval)
        what = event.approval if asked is None else f"{event.approval} {asked.what}"
        who = event.actor or ("nobody in time" if event.state == "expired" else "unknown")
        via = f" via {event.via}" if event.via else ""
        scope = " for the session" if event.scope == "session" else ""
        return event.state, what, who + via + scope, event.edited or event.digest

    def _effect(self, event: Event) -> Told | None:
        match event:
            case EffectIntent():
                self._calls[event.effect] = event
                return "called", _call(event), self._leave(event), event.digest
            case EffectResult():
                intent = self._calls.get(event.effect)
                digest = intent.digest if intent is not None else ""
                return event.state, event.effect, event.source, digest
            case EffectSettled():
                intent = self._calls.get(event.effect)
                digest = intent.digest if intent is not None else ""
                return "settled", f"{event.effect} as {event.decision}", "a person", digest
            case _:
                return None

    def _leave(self, intent: EffectIntent) -> str:
        """By whose leave a call was made."""
        place = intent.cell, intent.lane, intent.ordinal
        for asked in reversed(self.approvals.entries.values()):
            if asked.state != "approved" or asked.skill != intent.skill:
                continue
            here = (asked.cell, intent.lane, intent.ordinal) == place
            if intent.digest in {asked.digest, asked.edited} and here:
                return f"{asked.id}, {asked.actor or 'unknown'}"
            if asked.scope == "session" and asked.covers.endswith(intent.hash):
                return f"{asked.id}, {asked.actor or 'unknown'}, for the session"
        return "no rule that asks"


def _other(event: Event) -> Told | None:
    match event:
        case SessionOpened():
            return "opened", event.session, f"cave {event.version}", ""
        case TurnStarted():
            return "asked for", f"turn {event.turn}", f"a person, of {event.operator}", ""
        case CellStarted() if event.origin != "operator":
            return "ran", f"cell {event.cell}", _origin(event), ""
        case ForeignAdmitted():
            return "admitted", "other clients of the kernel", "a person", ""
        case InterruptSent():
            cell = "" if event.cell is None else f" cell {event.cell}"
            return "stopped", f"{event.action}{cell}", "a person or a limit", ""
        case BudgetPaused():
            what = f"{event.budget} has spent {event.spent:g} of {event.allowed:g}"
            return "paused", f"{event.limit}: {what}", "the budget", ""
        case _:
            return None


def _origin(event: CellStarted) -> str:
    return "a person" if event.origin == "person" else "another client of the kernel"


def _call(intent: EffectIntent) -> str:
    given = ", ".join(f"{name}={value}" for name, value in intent.arguments.items())
    again = f", attempt {intent.attempt}" if intent.attempt > 1 else ""
    return f"{intent.effect} {intent.skill}({given}){again}"
