"""What a death has cut: the cell that ran, and cells whose work no snapshot has.

A part of the fold of the journal (see `cave.history`): fed every durable event once.
"""

from __future__ import annotations

from collections import Counter

from cave.events import (
    ApprovalRequested,
    ApprovalSettled,
    CellFinished,
    CellResumed,
    CellStarted,
    Event,
    KernelEnded,
    Recovered,
    Restored,
    SnapshotCommitted,
    TurnStarted,
    ValuesDeleted,
    ValuesPut,
)
from cave.facts import NOT_RUN

DOUBTS = frozenset({"EffectInDoubt", "ApprovalRequired"})
"""Errors that stop a cell until a person has settled something."""


class Cut:
    """Cells that may be run again, until the namespace has moved on without them."""

    def __init__(self) -> None:
        self.died: tuple[int, ...] = ()
        """Cells that a death cut."""
        self.alone = True
        """Whether its kernel died and its host lived."""
        self.undone: tuple[int, ...] = ()
        """Cells that had ended, and whose work went with the kernel."""
        self.stopped: int | None = None
        """The cell that stopped at an effect in doubt, or at what a person has to approve."""
        self._asks: dict[str, int] = {}
        """What waits to be approved, and the cell that wants it."""
        self.runs: Counter[int] = Counter()
        """How often cells were sent again."""
        self.deaths: Counter[str] = Counter()
        """By item of a loop: how often the kernel died under it."""
        self.told = False
        """Whether it was decided already what of it runs by itself."""

    def feed(self, event: Event) -> None:
        """Take in one durable event."""
        match event:
            case CellStarted() | ValuesPut() | ValuesDeleted():
                self._move_on()
            case TurnStarted() if self._asks:
                self.stopped = None
                self._asks.clear()
            case CellResumed():
                self.runs[event.cell] += 1
            case CellFinished():
                self._finished(event)
            case ApprovalRequested() if event.cell is not None:
                self._asks[event.approval] = event.cell
            case ApprovalSettled():
                self._asks.pop(event.approval, None)
            case KernelEnded():
                self.alone, self.told = event.alone, False
                if event.item and event.reason == "died":
                    self.deaths[event.item] += 1
            case SnapshotCommitted() if event.inside is not None:
                del self.runs[event.inside.cell]  # it has come further
            case Recovered():
                self.told = True
            case Restored() if event.reason == "asked":
                self._move_on()
            case Restored():
                self.undone = tuple(sorted({*self.undone, *event.undone}))
                if self.stopped in event.undone:
                    self.stopped = None
            case _:
                pass

    def _move_on(self) -> None:
        self.died, self.undone, self.stopped = (), (), None
        self._asks.clear()
        self.deaths.clear()

    def _finished(self, event: CellFinished) -> None:
        n, error = event.cell, event.error
        if error is not None and error.name == NOT_RUN:  # all is as it was
            self.runs[n] = max(self.runs[n] - 1, 0)
            if event.status == "died" and n not in self.cells:
                self.died = (*self.died, n)
            return
        self.undone = tuple(other for other in self.undone if other != n)
        self.died = tuple(other for other in self.died if other != n)
        if event.status == "died":
            self.died = (*self.died, n)
        failed = event.status in {"error", "denied"} and error is not None
        doubt = failed and error is not None and error.name in DOUBTS
        self.stopped = n if doubt or n in self._asks.values() else None

    @property
    def cells(self) -> tuple[int, ...]:
        """All that would have to run again, in order."""
        return tuple(sorted({*self.undone, *self.died}))
