"""How a kernel ended: what its keeper saw of it, and what was noted in its folder before."""

from __future__ import annotations

import contextlib
import os
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


def _own_word(home: Path) -> str:
    """What the kernel noted, in a folder where it may have put anything."""
    try:
        at = os.open(home / "pending" / "reason", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(at, 16).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(at)


def _noted(home: Path) -> EndReason:
    match _read(home, "reason") or _own_word(home):
        case "idle" | "closed" | "restart" as reason:
            return reason
        case _:
            return "died"
