"""The wish of one process that the work of another shall stop.

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

from cave.errors import SessionBusy

POLL = 0.2
"""Seconds between looks at the wish."""
PATIENCE = 20.0
"""Seconds that a wish waits for its answer: the grace time of SIGINT and some more."""


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


def taken(folder: Path) -> bool | None:
    """Take the wish away: whether it wants to kill; None when there is none."""
    path = folder / "interrupt"
    try:
        wish = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    except FileNotFoundError:
        return None
    return bool(wish.get("kill"))


def answer(folder: Path, came: Interruption) -> None:
    """Tell whoever wished what came of it."""
    _write(folder / "interrupted", asdict(came))


async def send(
    folder: Path, idle: Callable[..., Awaitable[Interruption]], *, kill: bool
) -> Interruption:
    """Wish for a stop and wait for the answer; `idle` does it when nobody operates."""
    try:
        return await idle(kill=kill)
    except SessionBusy:
        pass
    reply = folder / "interrupted"
    reply.unlink(missing_ok=True)
    _write(folder / "interrupt", {"kill": kill})
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
