"""The state of a running turn, as events build it up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cave.display.html import Shown
from cave.display.told import told_death, told_interrupt, told_return
from cave.errors import CellError
from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Checked,
    Event,
    InterruptSent,
    KernelEnded,
    Output,
    Restored,
    StepReplied,
    StepStarted,
    TextDelta,
    TurnFinished,
    TurnResumed,
    TurnStarted,
)
from cave.turn import Cell, Step

KEPT = 20_000
"""Characters of a running cell's stream that are kept; its end brings the journaled ones."""


@dataclass(slots=True)
class Progress:
    """What is known of the turn that runs."""

    shown: Shown = field(default_factory=lambda: Shown(0, ""))
    outputs: list[Output] = field(default_factory=list)

    def feed(self, event: Event) -> bool:
        """Take an event in; whether it is one to show at once."""
        shown = self.shown
        match event:
            case TurnStarted():
                self.shown = Shown(event.turn, event.prompt)
            case TurnResumed():
                self.shown = Shown(event.turn, "")
            case StepStarted() | StepReplied():
                shown.thinking = ""
                if isinstance(event, StepReplied):
                    shown.usage += event.usage
            case TextDelta():
                shown.thinking = (shown.thinking + event.text)[-KEPT:]
                return False
            case CellStarted():
                self._started(event)
            case CellOutput():
                self._output(event.output)
                return False
            case CellFinished():
                self._finished(event)
            case InterruptSent():
                shown.thinking = told_interrupt(event)
            case KernelEnded():
                shown.reason = told_death(event)
            case Restored():
                shown.reason = "\n".join(filter(None, [shown.reason, told_return(event)]))
            case Checked():
                shown.checks = event.results
            case TurnFinished():
                self._ended(event)
            case _:
                return False
        return True

    def _started(self, event: CellStarted) -> None:
        self.outputs = []
        cell = Cell(event.cell, event.source, event.note, event.origin)
        self.shown.running = event.cell
        self.shown.steps.append(Step(event.step or 0, event.note, cell))

    def _output(self, output: Output) -> None:
        last = self.outputs[-1] if self.outputs else None
        if last and last.kind == output.kind == "stream" and last.name == output.name:
            self.outputs[-1] = replace(last, text=(last.text + output.text)[-KEPT:])
        else:
            self.outputs = [*self.outputs[-50:], output]
        self._put(outputs=tuple(self.outputs))

    def _finished(self, event: CellFinished) -> None:
        fault = event.error
        self.shown.running = None
        self._put(
            status=event.status,
            outputs=event.outputs,
            error=fault and CellError(fault.name, fault.message, fault.traceback, fault.hint),
            seconds=event.seconds,
            kept=event.kept,
            delta=event.delta,
            full_size=event.full_size,
            bound=event.bound,
            observed=event.observed,
        )

    def _put(self, **fields: object) -> None:
        """Change the cell of the last step."""
        if self.shown.steps:
            last = self.shown.steps[-1]
            if last.cell is not None:
                cell = replace(last.cell, **fields)  # type: ignore[arg-type]  # fields of Cell
                self.shown.steps[-1] = replace(last, cell=cell)

    def _ended(self, event: TurnFinished) -> None:
        shown = self.shown
        shown.status, shown.answer, shown.running = event.status, event.answer, None
        shown.thinking, shown.usage = "", event.usage
        shown.reason = "\n".join(filter(None, [shown.reason, event.reason]))
