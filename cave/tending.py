"""What a session does for its snapshots while nobody asks for anything.

After an operation it waits a little. Then what was put and no cell has followed goes to
disk, a snapshot that was on its way is journaled, what was only assumed to be unchanged is
looked at, and snapshots beyond the rule of retention go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from cave import thinning
from cave.errors import KernelDied, LeaseLost, SessionBusy, StoreError
from cave.history import History
from cave.lineage import Lineage

QUIET = 0.5
"""Seconds after which the session counts as idle."""
VERIFY = 0.5
"""Seconds of idleness before what was assumed is looked at."""

LONGEST = 5.0
"""Seconds for which somebody who asks again and again can put the idle work off."""


class Tended(Protocol):
    """What is tended: a session."""

    async def keep(self, *, verify: bool) -> None:
        """Take a snapshot as an operation of its own."""

    async def retire(self) -> object:
        """Let go of snapshots."""


class Tending:
    """The idle work of one session; a new operation puts it off."""

    def __init__(
        self,
        session: Tended,
        lineage: Lineage,
        fold: History,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._session = session
        self._lineage = lineage
        self._fold = fold
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._working = False
        self._since: float | None = None
        """When the idle work that is put off was wanted first."""

    def put_off(self) -> None:
        """An operation begins; what is already being done is carried through."""
        if self._task is not None and not self._working:
            self._task.cancel()
            self._task = None

    def later(self) -> None:
        """An operation has ended; what there is to do is found out when it is quiet."""
        if self._lineage.on and (self._task is None or self._task.done()):
            self._since = self._since or time.monotonic()
            self._task = self._spawn(self._tend())

    @property
    def _needed(self) -> bool:
        return bool(
            self._stale
            or self._lineage.assumes
            or thinning.overdue(self._fold, last=self._lineage.retention)
        )

    @property
    def _stale(self) -> bool:
        return self._lineage.under_way or self._lineage.stale

    def _quiet(self, seconds: float) -> float:
        waited = time.monotonic() - (self._since or time.monotonic())
        return 0.0 if waited > LONGEST else seconds

    async def _tend(self) -> None:
        await asyncio.sleep(self._quiet(QUIET))
        if self._needed:
            with suppress(SessionBusy, LeaseLost, KernelDied, StoreError):
                await self._catch_up()
        self._since = None

    async def _catch_up(self) -> None:
        if self._stale:
            await self._work(self._session.keep(verify=False))
        if thinning.overdue(self._fold, last=self._lineage.retention):
            await self._work(self._session.retire())
        if self._lineage.assumes:
            await asyncio.sleep(self._quiet(VERIFY))
            await self._work(self._session.keep(verify=True))

    async def _work(self, work: Awaitable[object]) -> None:
        self._working = True
        try:
            await work
        finally:
            self._working = False
