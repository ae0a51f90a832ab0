"""The fold of a journal: events in, and what the session knows of itself out.

`History` is fed every durable event once, in order; it holds the cells, turns, usage and
variables that those events add up to, and the little that recovery needs: what was
started and has not ended. The journal stays the truth; this is derived and can be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cave.approval import Approvals
from cave.cut import Cut
from cave.errors import CellError
from cave.events import (
    BudgetPaused,
    CellFinished,
    CellResumed,
    CellStarted,
    Checked,
    CheckResult,
    CheckSpec,
    EffectIntent,
    EffectResult,
    EffectSettled,
    Event,
    Fault,
    ForeignAdmitted,
    Inside,
    KernelEnded,
    KernelStarted,
    Output,
    OutputLate,
    Recovered,
    Restored,
    SessionOpened,
    SkillRef,
    SkillsOffered,
    SnapshotCommitted,
    StepReplied,
    StepStarted,
    StoredValue,
    TurnFinished,
    TurnResumed,
    TurnStarted,
    Usage,
    ValuesDeleted,
    ValuesPut,
    Variable,
)
from cave.facts import Amount
from cave.lasting import Lasting
from cave.ledger import Ledger
from cave.turn import Cell, Effect, Step, Turn, ended

BlobReader = Callable[[str], str]
"""Gives the text of a blob by its key."""
ValueReader = Callable[[StoredValue], Any]
"""Gives the object of what a skill gave, or None where only a kernel can have it."""


_FINAL = {"done"}
"""Statuses of turns that cannot go on."""


@dataclass(slots=True)
class OpenTurn:
    """A turn while its events come in."""

    n: int
    prompt: str
    steps: list[StepReplied] = field(default_factory=list)
    cells: dict[int, int] = field(default_factory=dict)
    """Cell number by step number."""
    asked: int = 0
    """The last step that the operator was asked for."""
    before: tuple[Event, ...] = ()
    """What happened to the namespace since the turn before: cells of people, values put or
    deleted, kernels that ended, output that came late."""
    variables: tuple[Variable, ...] = ()
    """The namespace as it was when the turn began."""
    limits: Amount | None = None
    """What it may spend."""
    checks: tuple[CheckSpec, ...] = ()
    """What has to hold when it is done."""
    results: tuple[CheckResult, ...] = ()
    """How these came out when the operator finished last."""
    calls: int = 0
    """How often the operator was asked: a step cut off by a death is asked for again."""
    replied: list[int] = field(default_factory=list)
    """For each of `steps`, the call that it answers."""
    during: list[tuple[int, Event]] = field(default_factory=list)
    """The same as `before`, from the turn's beginning on, each with the last call before it."""
    deaths: list[tuple[int, KernelEnded]] = field(default_factory=list)
    """Kernels that ended in this turn, with the step that was under way."""


def error_of(fault: Fault | None) -> CellError | None:
    """The exception value of a journaled fault."""
    return (
        None if fault is None else CellError(fault.name, fault.message, fault.traceback, fault.hint)
    )


class History:
    """What the events so far add up to."""

    foreign = False
    """Whether other clients may run cells in the kernel that serves."""
    paused: BudgetPaused | None = None
    """The limit at which the turn stopped last, until it goes on."""

    def __init__(
        self, read_text: BlobReader | None = None, read_value: ValueReader | None = None
    ) -> None:
        self._read_text = read_text
        self.ledger = Ledger(read_value)
        self.approvals = Approvals()
        self.skills: dict[str, SkillRef] = {}
        """The skills that cells may call, and those that they could call once."""
        self.seq = self._newest = 0
        self.opened: SessionOpened | None = None
        self.cells: dict[int, Cell] = {}
        self.turns: dict[int, Turn] = {}
        self.usage = Usage()
        self.variables: dict[str, Variable] = {}
        """The namespace as last seen, in the order of its making."""
        self.kernel: KernelStarted | None = None
        """The kernel that serves now; None when it ended."""
        self.kernels = 0
        self.ended: KernelEnded | None = None
        """How the last kernel ended, when none serves."""
        self.last_end: KernelEnded | None = None
        """How the kernel before the present one ended."""
        self.lost: tuple[Variable, ...] = ()
        """Variables lost with a kernel and not made again since."""
        self.spool = 0
        """The last message of the kernel that is journaled."""
        self.running: CellStarted | None = None
        self.turn: OpenTurn | None = None
        """The turn that is under way, or was when its host died."""
        self.waiting: OpenTurn | None = None
        """The last turn, when it ended without an answer and can go on."""
        self.resumed: Inside | None = None
        """Where the cell that runs went on from, when that is not its start."""
        self.cut = Cut()
        """What a death has cut, and may be run again."""
        self.lasting = Lasting()
        """The snapshots, and what of the namespace they would bring back."""
        self.held: dict[str, Variable] = {}
        """The variables that the latest snapshot holds."""
        self.sources: dict[int, str] = {}
        """What ran, of cells whose source is masked in the journal: this process alone knows."""
        self._started: dict[int, CellStarted] = {}
        self._between: list[Event] = []
        self.before: dict[int, tuple[Event, ...]] = {}
        """By turn: `OpenTurn.before` of the turns that have ended."""
        self.past: dict[int, OpenTurn] = {}
        """By number: the turns that have ended, as their events came in."""

    @property
    def next_cell(self) -> int:
        """The number that the next cell gets."""
        return self._newest + 1

    @property
    def next_turn(self) -> int:
        """The number that the next turn gets."""
        return max([*self.turns, self.turn.n if self.turn else 0], default=0) + 1

    @property
    def pending(self) -> Turn | None:
        """The turn that was cut or ended without an answer; None when nothing waits."""
        if self.turn is not None:
            cut = TurnFinished(
                turn=self.turn.n, status="interrupted", reason="cut; go on with s.resume()"
            )
            return self.turn_of(self.turn, cut)
        return None if self.waiting is None else self.turns[self.waiting.n]

    def not_held(self) -> tuple[Variable, ...]:
        """The variables that would be lost if the kernel ended now."""
        lost = {name for name, note in self.lasting.notes.items() if note.kind == "lost"}
        held = self.held.keys() - lost
        return tuple(v for v in self.variables.values() if v.name not in held)

    def feed(self, events: Iterable[Event]) -> None:
        """Take in durable events, in their order."""
        for event in events:
            if event.seq:
                self.seq = event.seq
            self.lasting.feed(event)
            self.ledger.feed(event)
            self.approvals.feed(event)
            self.cut.feed(event)
            self._feed(event)

    def _feed(self, event: Event) -> None:
        match event:
            case SessionOpened():
                self.opened = event
            case KernelStarted():
                self.kernel, self.kernels = event, event.kernel
                self.ended, self.spool, self.foreign = None, 0, False
            case KernelEnded():
                self._kernel_ended(event)
            case ForeignAdmitted():
                self.foreign = True
            case CellStarted():
                self._started[event.cell] = event
                self._newest = max(self._newest, event.cell)
                self.running = event
                if self.turn is not None and event.step is not None:
                    self.turn.cells[event.step] = event.cell
            case CellFinished():
                self._cell_finished(event)
            case OutputLate():
                self._output_late(event)
            case ValuesPut():
                self._bind(event.variables)
                self._note(event)
            case ValuesDeleted():
                for name in event.names:
                    self.variables.pop(name, None)
                self._note(event)
            case TurnStarted():
                self._turn_started(event)
            case TurnResumed() if self.waiting is not None:
                self._turn_resumed(self.waiting, event.limits)
            case StepStarted() if self.turn is not None:
                self.turn.asked = event.step
                self.turn.calls += 1
            case StepReplied() if self.turn is not None:
                self.turn.steps.append(event)
                self.turn.replied.append(self.turn.calls)
                self.usage += event.usage
            case Checked() if self.turn is not None:
                self.turn.results = event.results
                self._note(event)
            case TurnFinished():
                self._turn_finished(event)
            case _:
                self._feed_lasting(event)

    def _feed_lasting(self, event: Event) -> None:
        match event:
            case SnapshotCommitted():
                if event.inside is not None:
                    self.variables = {v.name: v for v in event.inside.variables}
                self._made_durable()
            case Restored():
                self._restored(event)
            case CellResumed() if event.cell in self._started:
                self.running = replace(self._started[event.cell], kernel=event.kernel)
                self.resumed = self.lasting.inside(event.cell)
            case BudgetPaused():
                self.paused = event
            case Recovered() if event.cells or event.left:
                self._note(event)
            case SkillsOffered():
                self.skills |= {ref.name: ref for ref in event.skills}
                if event.changed:
                    self._note(event)
            case EffectIntent() | EffectResult() | EffectSettled():
                self._effect(event)
            case _:
                pass

    def _effect(self, event: EffectIntent | EffectResult | EffectSettled) -> None:
        """What came of an effect after its cell had ended is told of by that cell too; of one
        that runs again its next end tells."""
        running = None if self.running is None else self.running.cell
        entry = self.ledger.entries.get(event.effect)
        undone = None if entry is None else self.ledger.entries.get(entry.first.undoes)
        for one in filter(None, (entry, undone)):
            cell = self.cells.get(one.intent.cell)
            if cell is not None and cell.n != running:
                self.cells[cell.n] = replace(cell, effects=self.effects_of(cell.n))
        if isinstance(event, EffectSettled) or (undone is not None and undone.undone):
            self._note(event)

    def source_of(self, cell: int) -> str | None:
        """What ran as that cell; None where the journal has it masked and nobody else knows."""
        started = self._started[cell]
        return self.sources.get(cell) if started.masked else started.source

    def outputs_before(self, cell: int) -> tuple[Output, ...]:
        """What the cell that runs had put out where it went on from."""
        resumed = self.resumed
        return () if resumed is None or resumed.cell != cell else resumed.outputs

    def effects_of(self, cell: int) -> tuple[Effect, ...]:
        """The recorded calls of a cell."""
        return tuple(map(self.ledger.effect, self.ledger.of_cell(cell)))

    def _note(self, event: Event) -> None:
        if self.turn is None:
            self._between.append(event)
            return
        self.turn.during.append((self.turn.calls, event))
        if isinstance(event, KernelEnded):
            self.turn.deaths.append((self.turn.asked, event))

    def _bind(self, variables: Iterable[Variable]) -> None:
        names = set()
        for variable in variables:
            self.variables[variable.name] = variable
            names.add(variable.name)
        self.lost = tuple(v for v in self.lost if v.name not in names)

    def _kernel_ended(self, event: KernelEnded) -> None:
        self.kernel, self.ended, self.last_end = None, event, event
        known = {v.name for v in event.lost}
        self.lost = (*(v for v in self.lost if v.name not in known), *event.lost)
        self.variables = {}
        if event.reason != "closed" or event.lost:
            self._note(event)

    def _cell_finished(self, event: CellFinished) -> None:
        started = self._started[event.cell]
        if self.running is not None and self.running.cell == event.cell:
            self.running = self.resumed = None
        self.spool = max(self.spool, event.spool)
        self._bind((*event.delta.added, *event.delta.changed))
        for name in event.delta.removed:
            self.variables.pop(name, None)
        self.usage += Usage(cells=1, seconds=event.seconds)
        known = event.cell in self.cells  # it ran again: `Recovered` tells of that
        if not known and (self.turn is None or started.turn != self.turn.n):
            self._note(event)
        self.cells[event.cell] = self.cell_of(started, event)

    def cell_of(self, started: CellStarted, event: CellFinished) -> Cell:
        """The Cell that these two events are."""
        read, key, error = self._read_text, event.full_blob, error_of(event.error)
        return Cell(
            n=event.cell,
            source=started.source,
            note=started.note,
            origin=started.origin,
            status=event.status,
            outputs=event.outputs,
            error=error,
            seconds=event.seconds,
            kept=event.kept,
            effects=self.effects_of(event.cell),
            delta=event.delta,
            full_size=event.full_size,
            bound=event.bound,
            observed=event.observed,
            _full=(lambda: ended(read(key), error)) if read is not None and key else None,
        )

    def _made_durable(self) -> None:
        later = self.lasting.volatile - self.held.keys()
        self.held = {n: v for n, v in self.variables.items() if n not in later}
        for n in self.lasting.made_durable:
            if n in self.cells:
                self.cells[n] = replace(self.cells[n], durable=True)

    def _restored(self, event: Restored) -> None:
        before, self.variables = self.held, {v.name: v for v in event.variables}
        self.held = dict(self.variables)
        gone = {n.name for n in event.notes if n.kind == "lost" and not n.path}
        self.lost = (
            *(v for v in self.lost if v.name not in self.variables and v.name not in gone),
            *(before[name] for name in before if name in gone and name not in self.variables),
        )
        self._note(event)

    def _output_late(self, event: OutputLate) -> None:
        self.spool = max(self.spool, event.spool)
        cell = self.cells.get(event.cell)
        if cell is not None:
            outputs, late = (*cell.outputs, *event.outputs), cell.late + len(event.outputs)
            self.cells[event.cell] = replace(cell, outputs=outputs, late=late)
            self._note(event)

    def _turn_started(self, event: TurnStarted) -> None:
        before, self._between, self.waiting = tuple(self._between), [], None
        self.turn = OpenTurn(
            event.turn,
            event.prompt,
            before=before,
            variables=tuple(self.variables.values()),
            limits=event.limits,
            checks=event.checks,
        )
        self.paused = None

    def _turn_resumed(self, turn: OpenTurn, limits: Amount | None) -> None:
        self.turn, self.waiting, self.paused = turn, None, None
        turn.limits = turn.limits if limits is None else limits
        self.turns.pop(turn.n, None)
        self.past.pop(turn.n, None)
        turn.during += ((turn.calls, event) for event in self._between)
        self._between = []

    def _turn_finished(self, event: TurnFinished) -> None:
        if self.turn is not None and self.turn.n == event.turn:
            self.turns[event.turn] = self.turn_of(self.turn, event)
            self.before[event.turn] = self.turn.before
            self.past[event.turn] = self.turn
            over = event.over or event.status in _FINAL
            self.waiting = None if over else self.turn
            self.turn = None
        elif self.waiting is not None and self.waiting.n == event.turn and event.over:
            self.turns[event.turn] = self.turn_of(self.waiting, event)
            self.waiting = None

    def turn_of(self, turn: OpenTurn, event: TurnFinished) -> Turn:
        """The Turn that its events are."""
        return Turn(
            n=turn.n,
            prompt=turn.prompt,
            answer=event.answer,
            status=event.status,
            steps=self.steps_of(turn),
            usage=event.usage,
            reason=event.reason,
            checks=turn.results,
            reward=sum(r.reward for r in turn.results) if turn.results else None,
        )

    def steps_of(self, turn: OpenTurn) -> tuple[Step, ...]:
        """The steps of a turn so far."""
        return tuple(
            Step(s.step, s.note, self.cells.get(turn.cells.get(s.step, 0)), s.usage)
            for s in turn.steps
        )
