"""The wish of one process that the work of another shall stop, now or after its step.

The process that operates a session looks for the file `interrupt` in the session's folder;
whoever wishes writes it and waits for the file `interrupted`, the answer. So an interrupt
reaches model calls as well as cells, and is journaled by the one who may journal.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cave.errors import SessionBusy

POLL = 0.2
"""Seconds between looks at the wish."""
PATIENCE = 20.0
"""Seconds that a wish waits for its answer: the grace time of SIGINT and some more."""


How = Literal["interrupt", "kill", "pause", "cancel", "hand"]


@dataclass(frozen=True, slots=True)
class Wish:
    """That what runs shall stop: `interrupt` and `kill` a cell or a model's call, the others
    a turn, after its step or (`cancel`) at once and for good."""

    how: How = "interrupt"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Interruption:
    """What came of an interrupt; true when nothing runs any more."""

    stopped: bool
    message: str

    def __bool__(self) -> bool:
        return self.stopped


def _write(path: Path, value: object) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)


def taken(folder: Path) -> Wish | None:
    """Take the wish away; None when there is none."""
    path = folder / "interrupt"
    try:
        wish: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    except FileNotFoundError:
        return None
    return Wish(wish["how"], str(wish["reason"]))


def answer(folder: Path, came: Interruption) -> None:
    """Tell whoever wished what came of it."""
    _write(folder / "interrupted", asdict(came))


async def send(
    folder: Path, idle: Callable[[Wish], Awaitable[Interruption]], wish: Wish
) -> Interruption:
    """Wish for a stop and wait for the answer; `idle` does it when nobody operates."""
    try:
        return await idle(wish)
    except SessionBusy:
        pass
    reply = folder / "interrupted"
    reply.unlink(missing_ok=True)
    _write(folder / "interrupt", asdict(wish))
    for _ in range(int(PATIENCE / POLL)):
        await asyncio.sleep(POLL)
        if reply.exists():
            came = json.loads(reply.read_text(encoding="utf-8"))
            reply.unlink()
            return Interruption(stopped=bool(came["stopped"]), message=str(came["message"]))
    (folder / "interrupt").unlink(missing_ok=True)
    return Interruption(
        stopped=False, message="the process that operates the session did not answer"
    )
