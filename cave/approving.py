"""What waits for a person's leave, and answers to it. A part of `cave.session.AsyncSession`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cave import broker, logs
from cave.approval import Approval
from cave.config import Options
from cave.display.waiting import Waiting
from cave.errors import CaveError, ConfigError
from cave.events import ApprovalScope
from cave.history import History
from cave.home import Home
from cave.journal import Journal
from cave.policy import Policy
from cave.policy.answering import Answer, choose, decoded, person
from cave.policy.masking import Mask

POLL = 0.3
"""Seconds between looks at what people have answered, while this process has the session."""

log = logs.logger("cave.approvals")


class Approving:
    """What a session asks people for."""

    name: str
    home: Home
    _options: Options
    _policy: Policy | None
    _journal: Journal
    _fold: History
    _asking: broker.Asking
    _mask: Mask
    _watching: asyncio.Task[None] | None = None

    @abstractmethod
    async def _go_on_by_itself(self) -> None: ...

    @abstractmethod
    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    def _rules(self) -> broker.Rules:
        return broker.Rules(self._policy, self._options.approver)

    # -- looking -----------------------------------------------------------------------------

    async def approvals(self) -> Waiting:
        """What waits for an answer, the oldest first."""
        if not self._journal.operating:
            await self._journal.refresh()
        return await waiting(self._fold, self._journal)

    async def _answered(self) -> bool:
        """Whether all that the session waits for has its answer."""
        asked = list(self._fold.approvals.pending)
        return bool(asked) and not await waiting(self._fold, self._journal)

    # -- answering ---------------------------------------------------------------------------

    async def approve(
        self,
        id: str | None = None,
        *,
        edits: Mapping[str, Any] | None = None,
        scope: ApprovalScope = "once",
        actor: str = "",
        via: str = "python",
    ) -> Approval:
        """Say yes: to the one that waits, or to `id`. `edits` are arguments to take instead,
        which the skill validates; `scope="session"` is for all later calls of the kind.

        It only records; a process that has the session open goes on by itself, and
        `s.resume()` does. Raises `ConfigError` for what does not wait (any more), `SkillError`
        for edits that the skill refuses.
        """
        asked = choose(list(await self.approvals()), id)
        if edits:
            await self._asking.check(asked, edits)
        answer = Answer(
            state="approved",
            digest=asked.digest,
            scope=scope,
            actor=actor or person(),
            via=via,
            edits=None if edits is None else dict(edits),
        )
        return await self._answer(asked, answer)

    async def deny(
        self, id: str | None = None, *, reason: str = "", actor: str = "", via: str = "python"
    ) -> Approval:
        """Say no: to the one that waits, or to `id`; the operator is told `reason`."""
        asked = choose(list(await self.approvals()), id)
        answer = Answer(
            state="denied", digest=asked.digest, actor=actor or person(), via=via, reason=reason
        )
        return await self._answer(asked, answer)

    async def _answer(self, asked: Approval, answer: Answer) -> Approval:
        """Record an answer, unless there is one. Raises `ConfigError` then."""
        answer = replace(answer, at=self._journal.clock.now())
        body = answer.encoded()
        store = self._journal.store
        counts = await store.answer(self.name, asked.id, body, until=asked.expires_at)
        if counts is None:
            raise ConfigError(f"{asked.id} ({asked.what}) has expired: it counts as denied")
        if counts != body:
            first = decoded(counts)
            who = f" by {first.actor}" if first.actor else ""
            raise ConfigError(f"{asked.id} ({asked.what}) is {first.state} already{who}")
        return replace(
            asked,
            state=answer.state,
            actor=answer.actor,
            scope=answer.scope,
            via=answer.via,
            said=answer.reason,
        )

    # -- going on ----------------------------------------------------------------------------

    def _watch_answers(self) -> None:
        """Go on by itself once people have answered, while nothing else is done."""
        if not any(self._fold.approvals.pending) or self._fold.cut.stopped is None:
            return
        if self._watching is None or self._watching.done():
            self._watching = self._spawn(self._watch())

    async def _watch(self) -> None:
        with suppress(CaveError):  # the store is gone, or closed: nobody waits any more
            while not await self._answered():
                await asyncio.sleep(POLL)
                if self.closed or not any(self._fold.approvals.pending):
                    return
        await asyncio.sleep(POLL)  # who answers here, and types s.resume(), comes first
        if self.closed or not any(self._fold.approvals.pending):
            return
        self._watching = None
        try:
            await self._go_on_by_itself()
        except CaveError as error:
            log.warning(
                "cannot go on by itself", session=self.name, reason=self._mask.text(str(error))
            )


async def waiting(fold: History, journal: Journal) -> Waiting:
    """The requests of a session that nobody has answered, and whose time is not over."""
    asked = list(fold.approvals.pending)
    if not asked:
        return Waiting()
    given = await journal.store.answers(journal.session)
    now = journal.clock.now()
    return Waiting(
        replace(entry, session=journal.session)
        for entry in asked
        if entry.id not in given and not entry.is_over(now)
    )
