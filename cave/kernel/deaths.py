"""How a kernel ended: what its keeper saw of it, and what was noted in its folder before."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from cave.events import EndReason
from cave.kernel.launch import Record
from cave.ports import Death


def death_of(
    record: Record,
    home: Path,
    found: Mapping[str, object] | None,
    *,
    ending: EndReason | None = None,
) -> Death:
    """How the kernel ended, from the keeper's word and its own."""
    found = found or {}
    number, status = found.get("signal"), found.get("status")
    oom = "the system ended it for want of memory" if found.get("oom") else ""
    return Death(
        pid=record.pid,
        reason=ending or _noted(home),
        signal=number if isinstance(number, int) else None,
        status=status if isinstance(status, int) else None,
        detail=oom or _read(home, "why"),
    )


def note(home: Path, text: str, name: str = "reason") -> None:
    """Write a word into a kernel's folder, for whoever looks there next."""
    with contextlib.suppress(OSError):
        (home / name).write_text(text, "utf-8")


def _read(home: Path, name: str) -> str:
    try:
        return (home / name).read_text("utf-8")
    except OSError:
        return ""


def _noted(home: Path) -> EndReason:
    match _read(home, "reason"):
        case "idle" | "closed" | "restart" as reason:
            return reason
        case _:
            return "died"
