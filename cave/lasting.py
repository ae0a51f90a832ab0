"""What of a session lasts: its snapshots, and which variables the latest one holds.

A part of the fold of the journal (see `cave.history`): fed every durable event once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cave.events import (
    CellFinished,
    CellResumed,
    CellStarted,
    Event,
    Inside,
    KernelEnded,
    KernelStarted,
    Restored,
    SnapshotCommitted,
    SnapshotFailed,
    SnapshotsRetired,
    TurnFinished,
    TurnStarted,
    ValuesDeleted,
    ValuesPut,
    Variable,
)
from cave.facts import NOT_RUN
from cave.image import Note, worst


@dataclass(frozen=True, slots=True)
class Change:
    """Names that an event changed, and the cell that it is the end of."""

    seq: int
    names: frozenset[str]
    cell: int | None


@dataclass(frozen=True, slots=True)
class Done:
    """A cell whose work the namespace holds, and the one before it."""

    seq: int
    cell: int
    before: Done | None


class Line:
    """The cells whose work the namespace holds: back with it, forward again on another way."""

    def __init__(self) -> None:
        self._last: Done | None = None
        self._at: dict[str, Done | None] = {}

    def feed(self, event: Event) -> None:
        """Take in one durable event."""
        match event:
            case CellFinished():
                self._last = Done(event.seq, event.cell, self._last)
            case SnapshotCommitted():
                at = self._last
                while at is not None and at.seq > event.covers:
                    at = at.before
                self._at[event.snapshot] = at
            case Restored():
                self._last = self._at.get(event.snapshot)
            case _:
                pass

    def cells(self, snapshot: str | None = None) -> list[int]:
        """Those of now, or of a snapshot, in their order."""
        at = self._last if snapshot is None else self._at.get(snapshot)
        found = []
        while at is not None:
            found.append(at.cell)
            at = at.before
        return found[::-1]


class Lasting:
    """The snapshots of a session, as its events tell of them."""

    def __init__(self) -> None:
        self.snapshots: dict[str, SnapshotCommitted] = {}
        """Those that are kept, by id, oldest first."""
        self.latest: str = ""
        """Id of the one that a new kernel would come back to; empty without one."""
        self.image: str | None = None
        """Id of the image that the live kernel's namespace was at last."""
        self.seq = 0
        """Number of the last event."""
        self.last_cell = 0
        self.failure = ""
        """Why the last snapshot could not be taken; empty when it was."""
        self.restored: Restored | None = None
        """The last time that the namespace was brought back."""
        self.made_durable: list[int] = []
        """Cells that the latest snapshot made durable."""
        self.notes: dict[str, Note] = {}
        """By variable: what the latest snapshot would not bring back exactly."""
        self.of_cell: dict[int, str] = {}
        """By cell: the image of the namespace right after it."""
        self.before_turn: dict[int, str] = {}
        self.after_turn: dict[int, str] = {}
        self.parents: dict[str, str] = {}
        """By snapshot: the one whose namespace it went on from."""
        self.fresh = False
        """Whether the kernel has started and nothing has been done with it."""
        self.changed: dict[str, frozenset[str]] = {}
        """By snapshot: names that were seen to change since the one that it went on from."""
        self.past = Line()
        self.beyond: tuple[int, int] | None = None
        """How many snapshots there were when it was counted last how many may go, and these;
        None since some went."""
        self._changes: list[Change] = []

    def feed(self, event: Event) -> None:
        """Take in one durable event."""
        self.seq = max(self.seq, event.seq)
        self.past.feed(event)
        match event:
            case KernelStarted():
                self.fresh = True
            case CellStarted():
                self.fresh = False
            case CellFinished():
                self._cell_finished(event)
            case CellResumed():  # what it had come to before it ran again is no moment after it
                self.of_cell.pop(event.cell, None)
            case ValuesPut():
                self._changed(v.name for v in event.variables)
            case ValuesDeleted():
                self._changed(event.names)
            case SnapshotCommitted():
                self._committed(event)
            case SnapshotFailed():
                self.failure = event.reason
            case SnapshotsRetired():
                self.beyond = None
                for old in event.snapshots:
                    self.snapshots.pop(old, None)
            case Restored():
                self._restored(event)
            case TurnStarted():
                self.before_turn[event.turn] = self.latest
            case TurnFinished():
                self.after_turn[event.turn] = self.latest
            case KernelEnded():
                self.image, self._changes = None, []
            case _:
                pass

    def _cell_finished(self, event: CellFinished) -> None:
        self.last_cell = max(self.last_cell, event.cell)
        if event.kept and not (event.error and event.error.name == NOT_RUN):
            delta = event.delta
            names = {*delta.removed, *(v.name for v in (*delta.added, *delta.changed))}
            self._changed(names, event.cell)

    def _changed(self, names: Iterable[str], cell: int | None = None) -> None:
        self._changes.append(Change(self.seq, frozenset(names), cell))
        self.fresh = False

    def _committed(self, event: SnapshotCommitted) -> None:
        self.snapshots[event.snapshot] = replace(event, file="")  # it is in the journal
        self.parents[event.snapshot] = self.latest
        self.latest = self.image = event.snapshot
        held = [change for change in self._changes if change.seq <= event.covers]
        self._changes = self._changes[len(held) :]
        self.changed[event.snapshot] = frozenset(event.missed).union(
            *(change.names for change in held)
        )
        if event.inside is None:
            self._stands_for(event, again=not held)
        self.made_durable = [change.cell for change in held if change.cell is not None]
        self.fresh, self.failure, self.notes = False, "", worst(event.notes)

    def _stands_for(self, event: SnapshotCommitted, *, again: bool) -> None:
        """Moments that it is; also those of the one before, when it has only been looked at
        again since: what was assumed then is known now."""
        before = self.of_cell.setdefault(event.cell, event.snapshot)
        if again and before == self.parents[event.snapshot] and self._assumed:
            self.of_cell[event.cell] = event.snapshot
            turn = next(reversed(self.after_turn), None)
            if turn is not None and self.after_turn[turn] == before:
                self.after_turn[turn] = event.snapshot

    @property
    def _assumed(self) -> bool:
        return any(note.kind == "assumed" for note in self.notes.values())

    def _restored(self, event: Restored) -> None:
        self.restored = event
        self.latest = self.image = event.snapshot
        self._changes, self.fresh, self.notes = [], False, worst(event.notes)

    def inside(self, cell: int) -> Inside | None:
        """Where the latest snapshot is inside that cell; None when it is not."""
        latest = self.snapshots.get(self.latest)
        found = None if latest is None else latest.inside
        return found if found is not None and found.cell == cell else None

    @property
    def unsaved(self) -> bool:
        """Whether something may have changed since `latest`."""
        return bool(self._changes)

    @property
    def waiting(self) -> int:
        """Cells that have ended since `latest`."""
        return sum(change.cell is not None for change in self._changes)

    @property
    def volatile(self) -> set[str]:
        """Names that have changed since `latest`."""
        return {name for change in self._changes for name in change.names}

    @property
    def line(self) -> list[str]:
        """Kept snapshots from the latest one back, each with the one that it went on from."""
        found, at = [], self.latest
        while at and at not in found:
            if at in self.snapshots:
                found.append(at)
            at = self.parents.get(at, "")
        return found

    def of(self, variables: Iterable[Variable]) -> tuple[Variable, ...]:
        """The variables, each with the fidelity that it would come back with."""
        volatile = self.volatile
        return tuple(replace(v, fidelity=self._fidelity(v.name, volatile)) for v in variables)

    def _fidelity(self, name: str, volatile: set[str]) -> str:
        if not self.latest or name in volatile:
            return "volatile"
        note = self.notes.get(name)
        return "exact" if note is None else note.kind
