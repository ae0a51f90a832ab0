"""Approvals: what waits for a person's leave, and what was answered; a fold of the journal.

A request is bound to the exact bytes of what is to be done (its `digest`) and to its place:
a cell, or the lane and number of a call in it. Both come again when a cell
runs again after a death, so an answer is for that one call, for all of its attempts, and for
no other. An answer with the scope `session` is for every later request that `covers` the
same: a skill as long as its declaration stays, a rule of the policy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cave.events import (
    ApprovalRequested,
    ApprovalScope,
    ApprovalSettled,
    ApprovalState,
    CellStarted,
    Event,
    Restored,
    StoredValue,
    TurnStarted,
    ValuesDeleted,
    ValuesPut,
)

Place = tuple[int | None, str, int]
"""Cell, lane and ordinal of a call; the ordinal of a cell itself is 0."""


def digest_of(source: str) -> str:
    """SHA-256 of a cell, as approvals are bound to it."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for leave, and what came of it."""

    id: str
    what: str
    skill: str
    """Empty for a cell."""
    arguments: dict[str, str] = field(default_factory=dict)
    source: str = ""
    reason: str = ""
    asked_at: float = 0.0
    expires_at: float | None = None
    state: ApprovalState = "pending"
    actor: str = ""
    digest: str = ""
    """SHA-256 of the exact arguments or cell."""
    covers: str = ""
    scope: ApprovalScope = "once"
    via: str = ""
    said: str = ""
    """The reason that was given with the answer."""
    settled_at: float | None = None
    session: str = ""
    edits: dict[str, str] = field(default_factory=dict)
    edited: str = ""
    given: StoredValue | None = None
    """The arguments that are to be taken instead."""
    original: StoredValue | None = None
    """The arguments as they were."""
    cell: int | None = None

    @property
    def pending(self) -> bool:
        """Whether it waits for an answer."""
        return self.state == "pending"

    def is_over(self, now: float) -> bool:
        """Whether its time has passed with no answer."""
        return self.pending and self.expires_at is not None and now >= self.expires_at


class Approvals:
    """The approvals of a session, as its events tell of them."""

    def __init__(self) -> None:
        self.entries: dict[str, Approval] = {}
        """By id, in the order of the requests."""
        self.newest = 0
        """The number in the highest id."""
        self._at: dict[Place, str] = {}
        self._whole: dict[str, str] = {}
        """What a session-wide yes covers, and the approval that gave it."""

    def feed(self, event: Event) -> None:
        """Take in one durable event."""
        match event:
            case ApprovalRequested() if event.approval not in self.entries:
                self._requested(event)
            case ApprovalSettled():
                self._settled(event)
            case CellStarted() | TurnStarted() | ValuesPut() | ValuesDeleted():
                self._move_on()
            case Restored() if event.reason == "asked":
                self._move_on()
            case _:
                pass

    def _requested(self, event: ApprovalRequested) -> None:
        self.entries[event.approval] = Approval(
            id=event.approval,
            what=event.what,
            skill=event.skill,
            arguments=event.arguments,
            source=event.source,
            reason=event.reason,
            asked_at=event.at,
            expires_at=event.expires_at,
            digest=event.digest,
            covers=event.covers,
            session=event.session,
            original=event.given,
            cell=event.cell,
        )
        self.newest = max(self.newest, int(event.approval[1:]))
        self._at[place_of(event)] = event.approval

    def _move_on(self) -> None:
        """Nothing comes back to what waits: its cell does not run again."""
        for asked in list(self.pending):
            self.entries[asked.id] = replace(
                asked, state="expired", said="the session went on without it"
            )

    def _settled(self, event: ApprovalSettled) -> None:
        """The first answer counts, and only for the bytes that were shown."""
        asked = self.entries.get(event.approval)
        if asked is None or not asked.pending or event.digest != asked.digest:
            return
        if event.state == "pending":
            return
        state = event.state
        at = event.at if event.answered_at is None else event.answered_at
        if state == "approved" and asked.expires_at is not None and at >= asked.expires_at:
            state = "expired"
        self.entries[event.approval] = replace(
            asked,
            state=state,
            actor=event.actor,
            scope=event.scope,
            via=event.via,
            said=event.reason,
            settled_at=at,
            edits=event.edits,
            edited=event.edited,
            given=event.given,
        )
        if state == "approved" and event.scope == "session" and asked.covers:
            self._whole[asked.covers] = event.approval

    @property
    def next_id(self) -> str:
        """The id of the next request."""
        return f"a{self.newest + 1}"

    @property
    def pending(self) -> Iterator[Approval]:
        """Those that wait, the oldest first."""
        return (entry for entry in self.entries.values() if entry.pending)

    def overdue(self, now: float) -> Iterator[Approval]:
        """Those whose time has passed: they are to be settled as expired."""
        return (entry for entry in self.entries.values() if entry.is_over(now))

    def at(self, place: Place, digest: str) -> Approval | None:
        """What was asked or answered about these bytes at this very place."""
        at = self.entries.get(self._at.get(place, ""))
        return at if at is not None and at.digest == digest else None

    def found(self, place: Place, *, digest: str, covers: str) -> Approval | None:
        """What was asked or answered about this before; None: it has to be asked.

        An answer about other bytes at the same place is none.
        """
        at = self.at(place, digest)
        if at is not None:
            return at
        return self.entries.get(self._whole.get(covers, "")) if covers else None


def place_of(event: ApprovalRequested) -> Place:
    """Where in the session's work the request stands."""
    return event.cell, event.lane, event.ordinal
