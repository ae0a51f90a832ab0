"""What happened to the namespace apart from the operator's own cells, told in lines."""

from __future__ import annotations

from collections.abc import Sequence

from cave.events import (
    CellFinished,
    Checked,
    EffectResult,
    EffectSettled,
    Event,
    KernelEnded,
    OutputLate,
    Recovered,
    Restored,
    SkillsOffered,
    ValuesDeleted,
    ValuesPut,
)
from cave.history import History
from cave.ports import Death
from cave.report import RestoreReport, told_skills
from cave.stream.cells import summary
from cave.stream.facts import describe, lost, one_line
from cave.turn import clip, plain, text_of

NEWS = 30
"""Events that are told; of more, the latest. Ends of kernels always are."""
LATE = 500
"""Characters of output that came late."""


def news(
    history: History,
    events: Sequence[Event],
    *,
    title: str = "Since then:",
    first: bool = False,
) -> str:
    """A line for each of `events`. Before the `first` request the facts of values are left to
    the list of all variables."""
    lines = [(e, line) for e in events if (line := _told(history, e, described=not first))]
    cut = len(lines) - NEWS
    kept = [
        line
        for at, (e, line) in enumerate(lines)
        if at >= cut or isinstance(e, KernelEnded | Restored | Recovered)
    ]
    if not kept:
        return ""
    left_out = [f"({len(lines) - len(kept)} earlier events are left out)"]
    return "\n".join(
        [
            "Before this request:" if first else title,
            *(left_out if len(kept) < len(lines) else []),
            *kept,
        ]
    )


def _told(history: History, event: Event, *, described: bool = True) -> str:
    """One line on what happened to the namespace apart from the operator's own cells."""
    match event:
        case CellFinished():
            cell = history.cells[event.cell]
            who = "another client" if cell.origin == "foreign" else "the person"
            return f"{who} ran {summary(cell, source=True)}"
        case ValuesPut():
            what = [describe(v) if described else v.name for v in event.variables]
            return f"the person put: {'; '.join(what)}"
        case ValuesDeleted():
            return f"the person deleted: {', '.join(event.names)}"
        case OutputLate():
            text = clip(plain(text_of(event.outputs)).strip("\n"), LATE)
            return f"cell {event.cell} printed after its end: {text}" if text else ""
        case EffectResult():
            entries = history.ledger.entries
            undoing = entries[event.effect]
            undone = entries[undoing.first.undoes]
            return (
                f"the person had effect {undone.id}, {undone.said} of cell {undone.intent.cell}, "
                f"undone by {undoing.intent.skill}: it does not stand any more"
            )
        case _:
            return _told_of_death(event)


def _told_of_death(event: Event) -> str:
    """How a kernel ended, what came back, and what a person decided of it."""
    match event:
        case KernelEnded():
            return ended(event)
        case Restored():
            return restored(event)
        case Recovered():
            return recovered(event)
        case EffectSettled():
            return f"the person said of effect {event.effect}: {event.decision}"
        case SkillsOffered():
            return told_skills(event)
        case Checked():
            return checked(event)
        case _:
            return ""


def checked(event: Checked) -> str:
    """What is still missing when the operator has finished; empty when nothing is."""
    failed = [result for result in event.results if not result.passed]
    if not failed:
        return ""
    lines = [one_line(f"{r.name}: {r.message}".removesuffix(": "), 300) for r in failed[:NEWS]]
    return "\n  ".join(["the request is not fulfilled yet; this does not hold:", *lines])


def recovered(event: Recovered) -> str:
    """Which cells ran again after a death, and what differs now."""
    lines = []
    if event.cells:
        ran = ", ".join(map(str, event.cells))
        lines.append(f"run again after that, effects answered from the ledger: cell {ran}")
    lines += [f"cell {n} was not run again: {one_line(why, 300)}" for n, why in event.left]
    lines += [f"{note.kind}: {note.name} ({note.type}): {note.reason}" for note in event.notes]
    return "\n  ".join(lines[:NEWS])


def ended(event: KernelEnded) -> str:
    """How a kernel ended and every name that went with it."""
    match event.reason:
        case "restart":
            how = "the person restarted the kernel"
        case "closed":
            how = "the person closed the session, which ended the kernel"
        case _:
            how = f"the {Death(event.pid, event.reason, event.signal, event.status)}"
    how += f" [{one_line(event.detail, 200)}]" if event.detail else ""
    if not event.lost:
        return f"{how}; no variables were lost"
    return f"{how}. lost: {lost(event.lost)}; they do not exist any more"


def restored(event: Restored) -> str:
    """How the namespace came back, and each name that is not what it was."""
    report = RestoreReport.of(event)
    how = "the person went back in time" if event.reason == "asked" else "a new kernel serves"
    if event.reason == "opened" and report.exact:
        return ""
    lines = [f"{how}: {report.lines[0]}", *report.lines[1:]]
    shown = [one_line(line, 300) for line in lines[:NEWS]]
    return "\n  ".join([*shown, *([f"({len(lines) - NEWS} more)"] if len(lines) > NEWS else [])])
