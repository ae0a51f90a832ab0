"""Stopping and steering what runs, from any process. A part of `cave.session.AsyncSession`.

The process that operates the session does it; another one leaves a wish (see `cave.wishes`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from cave import loop, wishes
from cave.errors import ConfigError
from cave.events import TurnFinished, clean
from cave.history import History
from cave.home import Home
from cave.journal import Journal
from cave.operations import Operations
from cave.wishes import How, Interruption, Wish

POLL = 0.01
"""Seconds between looks at a kernel that is being taken over."""


class Steering:
    """What a session does with a cell that runs, and with a turn that runs or waits."""

    name: str
    home: Home
    _journal: Journal
    _fold: History
    _work: loop.Work
    _operations: Operations
    _grants: set[asyncio.Task[None]]

    @abstractmethod
    def _operation(self) -> AbstractAsyncContextManager[bool]: ...

    @abstractmethod
    def _adopt_later(self) -> asyncio.Task[None]: ...

    @abstractmethod
    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    async def interrupt(self, *, kill: bool = False) -> Interruption:
        """Stop what runs: SIGINT, and after 10 seconds SIGKILL when `kill`.

        Works from any process; needs no lease.
        """
        return await self._wish(Wish("kill" if kill else "interrupt"))

    async def pause(self, reason: str = "") -> Interruption:
        """Let the turn that runs end after its present step; `resume` goes on with it."""
        return await self._wish(Wish("pause", clean(reason)))

    async def cancel(self, reason: str = "") -> Interruption:
        """End a turn for good: the one that runs (its cell is interrupted) or the one that waits.

        `resume` does not go on with it; `turn.reason` keeps the reason.
        """
        return await self._wish(Wish("cancel", clean(reason)))

    async def hand_to(self, who: str, reason: str = "") -> Interruption:
        """Let the turn that runs end after its present step as `needs_attention`.

        A person works on; `resume` gives it back to the operator, who is told what was done.
        Raises `ConfigError` for anybody but "human".
        """
        if who != "human":
            raise ConfigError(f"a turn is handed to 'human', not to {who!r}")
        return await self._wish(Wish("hand", clean(reason)))

    async def _wish(self, wish: Wish) -> Interruption:
        if self._journal.operating:
            return await self._grant_own(wish)
        return await wishes.send(self.home.folder(self.name), self._grant_idle, wish)

    async def _grant_own(self, wish: Wish) -> Interruption:
        """This process operates."""
        if wish.how in {"interrupt", "kill"}:
            return await self._stop(kill=wish.how == "kill")
        turn = self._fold.turn
        if turn is None:
            return Interruption(
                stopped=False, message="no turn runs; s.interrupt() stops what does"
            )
        self._work.stop.halt = _halt(wish.how, wish.reason)
        if wish.how == "cancel":
            return await self._stop(kill=False)
        return Interruption(stopped=True, message=f"turn {turn.n} ends after its step")

    async def _stop(self, *, kill: bool) -> Interruption:
        return await self._operations.stop(loop.stop_cell(self._work, kill=kill))

    async def _give_up(self) -> None:
        """Nobody waits any longer for what was begun."""
        if self._journal.operating:
            await self._stop(kill=False)

    async def _grant_idle(self, wish: Wish) -> Interruption:
        """Nobody operates."""
        if wish.how in {"interrupt", "kill"}:
            return await self._stop_left_behind(kill=wish.how == "kill")
        async with self._operation():
            waiting = self._fold.turn or self._fold.waiting
            if waiting is None or wish.how != "cancel":
                return Interruption(stopped=True, message="no turn runs")
            halt = _halt(wish.how, wish.reason)
            await self._journal.append(
                TurnFinished(turn=waiting.n, status=halt.status, reason=halt.reason, over=True)
            )
        return Interruption(stopped=True, message=f"turn {waiting.n} is {halt.reason}")

    async def _stop_left_behind(self, *, kill: bool) -> Interruption:
        """A cell may still run in a kernel whose host died."""
        async with self._journal.operation():
            if self._fold.running is None:
                return Interruption(stopped=True, message="nothing runs")
        adoption = self._adopt_later()
        while not adoption.done() and self._work.supply.kernel is None:
            await asyncio.wait({adoption}, timeout=POLL)
        return await self._stop(kill=kill)

    async def _watch_wishes(self) -> None:
        folder = self.home.folder(self.name)
        while True:
            await asyncio.sleep(wishes.POLL)
            wish = wishes.taken(folder)
            if wish is not None:
                grant = self._spawn(self._grant(folder, wish))
                self._grants.add(grant)
                grant.add_done_callback(self._grants.discard)

    async def _grant(self, folder: Path, wish: Wish) -> None:
        wishes.answer(folder, await self._grant_own(wish))


def _halt(how: How, reason: str) -> loop.Halt:
    why = f": {reason}" if reason else ""
    match how:
        case "cancel":
            return loop.Halt("interrupted", f"cancelled{why}", over=True)
        case "hand":
            return loop.Halt("needs_attention", f"handed to a person{why}; go on with s.resume()")
        case _:
            return loop.Halt("interrupted", f"paused{why}; go on with s.resume()")
