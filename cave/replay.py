"""Running again what a death has cut, where that is safe; saying why where it is not.

The plan is made from facts alone: a cell runs again when all that it did to the world is in
the ledger, which answers it the second time. A cell that did something else outside, that
waits for a person, or that has died of its own second run, is left to a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cave.broker import Broker
from cave.events import Inside, Recovered
from cave.history import History
from cave.image import Note
from cave.ledger import Entry
from cave.loop import Work, rerun_cell
from cave.ports import Kernel
from cave.turn import Cell, Shown

_LEAST = 1
"""How often a cell runs again by itself: one that dies of it is left to a person."""


@dataclass(frozen=True, slots=True)
class Planned(Shown):
    """One cell of a plan."""

    cell: int
    source: str
    obstacle: str
    """Why it does not run again; empty when it does."""
    effects: tuple[str, ...] = ()
    """Its effects, each with what becomes of it."""
    at: str = ""
    """Where in its midst it goes on; empty when it begins at its start."""
    waits: bool = False
    """Whether a person has to settle or approve something first."""

    def __str__(self) -> str:
        head = self.source.strip().split("\n", 1)[0][:60]
        what = f"is left: {self.obstacle}" if self.obstacle else "runs again"
        if self.at and not self.obstacle:
            what = f"goes on at {self.at}"
        return "\n".join([f"cell {self.cell} ({head}) {what}", *(f"  {e}" for e in self.effects)])


@dataclass(frozen=True, slots=True)
class Plan(Shown):
    """What a recovery does with the cells that a death has cut."""

    snapshot: str
    after: int
    """The snapshot holds the namespace as it was after this cell."""
    cells: tuple[Planned, ...] = ()
    inside: int = 0
    """The cell in the midst of which it was taken; 0 for one between cells."""
    stopped: int = 0
    """The cell that stopped at what a person had to settle; 0 when none has."""

    @property
    def runs(self) -> tuple[int, ...]:
        """Cells that run again: up to the first that cannot."""
        numbers = []
        for planned in self.cells:
            if planned.obstacle:
                break
            numbers.append(planned.cell)
        return tuple(numbers)

    @property
    def concerns_effects(self) -> bool:
        """Whether any of the cells has made calls that are in the ledger."""
        return any(planned.effects for planned in self.cells)

    @property
    def left(self) -> tuple[tuple[int, str], ...]:
        """Cells that do not run again, and why."""
        done = len(self.runs)
        rest = self.cells[done:]
        behind = f"cell {rest[0].cell}, which comes before it, does not" if rest else ""
        return tuple((planned.cell, planned.obstacle or behind) for planned in rest)

    def __str__(self) -> str:
        begin = f"the namespace comes back as it was after cell {self.after}"
        if self.inside:
            begin = f"the namespace comes back as it was inside cell {self.inside}"
        if self.stopped:
            begin = f"the namespace goes back to before cell {self.stopped}, which had stopped"
        elif not self.snapshot:
            begin = "there is no snapshot: the namespace begins empty"
        return "\n".join([begin, *map(str, self.cells)] if self.cells else [begin, _NOTHING])


_NOTHING = "no cell was cut: nothing has to run again"


def plan(history: History, *, asked: bool) -> Plan:
    """What would be done now. `asked`: a person wants it, also what is never done by itself."""
    lasting, cut = history.lasting, history.cut
    at = lasting.snapshots.get(lasting.latest)
    numbers = [n for n in cut.cells if asked or n not in cut.died or not cut.alone]
    return Plan(
        snapshot=lasting.latest,
        after=at.cell if at is not None else 0,
        cells=tuple(planned(history, n, asked=asked) for n in numbers),
        inside=at.inside.cell if at is not None and at.inside is not None else 0,
    )


def with_stopped(wanted: Plan, history: History, n: int) -> Plan:
    """The plan with the cell first that stopped at what a person had to settle."""
    return replace(wanted, cells=(planned_stopped(history, n), *wanted.cells), stopped=n)


def planned_stopped(history: History, n: int) -> Planned:
    """What becomes of a cell that stopped."""
    entries = history.ledger.of_cell(n)
    why = next((_unsettled(entry) for entry in entries if entry.state == "in_doubt"), "")
    asked = [approval for approval in history.approvals.pending if approval.cell == n]
    if asked:
        why = f"approval {asked[0].id} waits: a person has to answer it"
    source = history.cells[n].source
    return Planned(n, source, why, tuple(map(_becomes, entries)), waits=bool(why))


def planned(history: History, n: int, *, asked: bool) -> Planned:
    """What becomes of one cell."""
    cell, entries, inside = history.cells[n], history.ledger.of_cell(n), history.lasting.inside(n)
    again = [e for e in entries if not _is_past(inside, e)]
    return Planned(
        n,
        cell.source,
        _obstacle(history, cell, entries, asked=asked),
        tuple(map(_becomes, again)),
        "" if inside is None else str(inside),
    )


def _is_past(inside: Inside | None, entry: Entry) -> bool:
    """Whether a cell that goes on there does not come to this effect again."""
    return inside is not None and inside.past(entry.intent.lane, entry.intent.ordinal)


def _obstacle(history: History, cell: Cell, entries: Sequence[Entry], *, asked: bool) -> str:
    if reason := _unfit(history, cell):
        return reason
    for entry in entries:
        if entry.state == "in_doubt" or (entry.state == "begun" and _asks(entry)):
            return _unsettled(entry)
        if entry.state == "given_up":
            return f"effect {entry.id} ({entry.intent.skill}) was given up"
    if asked:
        return ""
    if history.cut.runs[cell.n] >= _LEAST:
        return "its kernel died when it ran again"
    if not entries and _profile(history) == "open":
        return "nothing confines cells here, so what it did is not known; s.recover() runs it again"
    return ""


def _unfit(history: History, cell: Cell) -> str:
    """Why a cell may not, or cannot, run as it was."""
    if cell.origin == "foreign":
        return "another client of the kernel ran it"
    if history.source_of(cell.n) is None:
        return (
            "a secret in its source is masked in the journal; run it again yourself, with the "
            "secret from a variable of the environment"
        )
    if cell.observed:
        return f"it touched the world outside of the ledger: {'; '.join(cell.observed[:5])}"
    return ""


def _unsettled(entry: Entry) -> str:
    return f"effect {entry.id} ({entry.intent.skill}) is in doubt: a person has to settle it"


def _profile(history: History) -> str:
    started = history.kernel
    return "open" if started is None else started.profile


def _asks(entry: Entry) -> bool:
    return entry.intent.effect_kind == "write" and entry.intent.in_doubt == "ask"


_BECOMES = {
    "done": "was done: it is answered from the ledger",
    "failed": "failed: the same error comes from the ledger",
    "not_done": "was not done: it is called",
    "in_doubt": "is in doubt",
    "given_up": "was given up",
}


def _becomes(entry: Entry) -> str:
    intent = entry.intent
    if entry.state == "begun" and intent.effect_kind == "read":
        what = "was under way: it is read again"
    elif entry.state == "begun":
        how = {"ask": "a person is asked", "retry": "called again with its key"}
        what = f"was under way: {how.get(intent.in_doubt, 'its probe is asked')}"
    else:
        what = _BECOMES[entry.state]
    return f"{entry.id} {entry.said} {what}"


async def replay(work: Work, broker: Broker, kernel: Kernel, wanted: Plan) -> Recovered:
    """Run the plan's cells again, up to the first that does not end as it should."""
    ran: list[int] = []
    left = list(wanted.left)
    notes: list[Note] = []
    for n in wanted.runs:
        before = work.journal.history.cells[n]
        inside = work.journal.history.lasting.inside(n)
        broker.began(n)
        cell = await rerun_cell(work, kernel, n)
        ran.append(n)
        notes += _differences(broker, before, cell, inside)
        if reason := _stopped(broker, before, cell):
            left += [(m, f"cell {n} {reason}") for m in wanted.runs[len(ran) :]]
            break
    event = Recovered(cells=tuple(ran), left=tuple(left), notes=tuple(notes))
    if ran or left:
        await work.journal.append(event, sync=True)
    return event


def _stopped(broker: Broker, before: Cell, cell: Cell) -> str:
    """Why nothing may follow this cell; empty when it ended as the first time."""
    if diverged := broker.diverged(cell.n):
        return f"called something else: {diverged}"
    wanted = "ok" if before.status == "died" else before.status
    if cell.status != wanted:
        return f"ended as {cell.status}, not as {wanted}"
    return ""


def _differences(broker: Broker, before: Cell, cell: Cell, inside: Inside | None) -> list[Note]:
    """Names that came out otherwise, and effects that were not reached again."""
    notes = [
        Note("changed", entry.id, entry.intent.skill, f"cell {cell.n} ran again without this call")
        for entry in broker.unreached(cell.n)
        if not _is_past(inside, entry)
    ]
    if before.status == "died":
        return notes
    was, now = before.delta.prints, cell.delta.prints
    types = {v.name: v.type for v in (*cell.delta.added, *cell.delta.changed)}
    return notes + [
        Note(
            "changed", name, types.get(name, "object"), f"cell {cell.n} ran again and made another"
        )
        for name, text in was.items()
        if text and text != now.get(name, text)
    ]
