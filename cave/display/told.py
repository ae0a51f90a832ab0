"""What happened to a session's kernel, in words for people."""

from __future__ import annotations

from collections.abc import Sequence

from cave.events import InterruptSent, KernelEnded, Restored, SkillsOffered, SnapshotFailed
from cave.ports import Death
from cave.report import RestoreReport, told_skills


def told(event: KernelEnded | Restored | SkillsOffered | SnapshotFailed) -> str:
    """What a person must know at once; nothing where all is as expected."""
    match event:
        case KernelEnded():
            return told_death(event)
        case Restored():
            return told_return(event)
        case SkillsOffered():
            return told_skills(event)
        case SnapshotFailed():
            return f"no snapshot was taken, what cells made is in memory only: {event.reason}"


OPEN = "profile open: cells may do what you may"
STALE = (
    "the kernel was started under another policy and keeps to that: s.restart() puts this one on"
)


def told_open(profile: str, degraded: Sequence[str]) -> list[str]:
    """What nothing keeps cells from here, a line each; none where every layer holds."""
    return [OPEN] if profile == "open" else list(degraded)


def told_interrupt(event: InterruptSent) -> str:
    """One step of stopping a cell, in words."""
    match event.action:
        case "sigint":
            return "interrupting ..."
        case "sigkill":
            return "it did not stop: the kernel is being ended"
        case _:
            return f"not stopped: {event.reason}"


def told_death(event: KernelEnded) -> str:
    """How a kernel ended and what went with it, in words."""
    how = str(Death(event.pid, event.reason, event.signal, event.status))
    lost = ", ".join(f"{v.name} ({v.type})" for v in event.lost)
    return f"{how}; lost: {lost}" if lost else f"{how}; no variable was lost"


def told_return(event: Restored) -> str:
    """How the namespace came back, in words; nothing where that was to be expected."""
    report = RestoreReport.of(event)
    if event.reason not in {"death", "asked"} and report.exact and not report.versions:
        return ""
    return "\n  ".join(report.lines)
