"""Calls of skills that run in this process: attempts, time limits, results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import stamina

from cave import failpoints, logs
from cave.broker.invoking import TimedOut, invoke
from cave.broker.pen import Pen
from cave.broker.terms import Work, fault_of, said
from cave.errors import EffectInDoubt, LeaseLost
from cave.events import EffectIntent, Event, Fault
from cave.ledger import Entry
from cave.ports import Caller, SkillAnswer
from cave.skills import SkillContext

Transient = tuple[type[BaseException], ...]


class HostCalls:
    """Calls functions of the host for one session's cells."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self._late: dict[str, asyncio.Task[None]] = {}
        """Calls that ran out of their time and may still do what they do, by key."""

    @property
    def late(self) -> list[asyncio.Task[None]]:
        """Calls that ran out of their time and have not ended."""
        return list(self._late.values())

    async def plain(self, work: Work) -> SkillAnswer:
        """A call that touches nothing: not journaled, and made again when its cell is."""

        async def once(attempt: int, transient: Transient) -> Any:
            return await self._invoked(work, attempt, _nothing, transient)

        outcome = await _tried(work, 1, once)
        if isinstance(outcome, TimedOut):
            return SkillAnswer("error", fault=_over(work, outcome))
        if isinstance(outcome, Fault):
            return SkillAnswer("error", fault=outcome)
        return SkillAnswer("ok", value=self._pen.encoded(outcome, work))

    async def effect(self, work: Work) -> SkillAnswer:
        """Call, and again after an error that the skill names as transient."""

        async def once(attempt: int, transient: Transient) -> SkillAnswer:
            return await self._attempt(work, attempt, transient)

        answer: SkillAnswer = await _tried(work, work.attempt, once)
        return answer

    async def ended(self, entry: Entry, timeout: float | None) -> None:
        """A call that had run out of its time has to end before it is made again."""
        late = self._late.get(entry.intent.key)
        if late is None:
            return
        await asyncio.wait({late}, timeout=timeout)
        if not late.done():
            raise EffectInDoubt(
                f"effect {entry.id} ({entry.intent.skill}) still runs in this process since its "
                f"time-out; wait for its end, or end this process"
            )

    # -- one attempt -------------------------------------------------------------------------

    async def _attempt(self, work: Work, attempt: int, transient: Transient) -> SkillAnswer:
        pen, writes = self._pen, work.terms.kind == "write"
        intent = await pen.begin(work, attempt) if writes else pen.intent(work, attempt)
        before = () if writes else (intent,)  # nothing is lost when a read is made twice
        began = pen.journal.clock.monotonic()
        outcome = await self._guarded(work, attempt, transient)
        failpoints.hit("effect.after_call")
        seconds = pen.journal.clock.monotonic() - began
        if isinstance(outcome, TimedOut):
            return await self._over_time(work, intent, outcome, seconds, before)
        if isinstance(outcome, Fault):
            return await pen.failed(intent, outcome, seconds=seconds, before=before)
        return await pen.done(work, intent, outcome, seconds=seconds, before=before)

    async def _guarded(self, work: Work, attempt: int, transient: Transient) -> Any:
        """Call while the lease is known to be ours, looking again as often as it takes."""
        if work.terms.kind == "read":
            return await self._invoked(work, attempt, _nothing, transient)
        while True:
            try:
                return await self._invoked(work, attempt, self._guard, transient)
            except _Lagging:
                await self._pen.look()

    def _guard(self) -> None:
        failpoints.hit("effect.before_call")
        if self._pen.lagging():
            raise _Lagging

    async def _invoked(
        self, work: Work, attempt: int, guard: Callable[[], None], transient: Transient
    ) -> Any:
        """What the skill gave; a `Fault` for what it raised, `TimedOut` when it has not ended."""
        skill, note = work.skill, work.caller.note
        assert skill is not None
        loop = asyncio.get_running_loop()
        context = SkillContext(
            idempotency_key=work.key,
            session=self._pen.journal.session,
            attempt=attempt,
            runtime=CallersRuntime(work.caller, loop),
            note=lambda text: _told(loop, note, text),
        )
        try:
            return await invoke(
                lambda: skill.invoke(work.arguments, context),
                note=note,
                timeout=work.terms.timeout,
                before=guard,
            )
        except (_Lagging, LeaseLost):
            raise
        except TimedOut as over:
            return over
        except transient as error:
            note(f"{work.terms.name}: {said(fault_of(error))}; it is called again")
            raise _Again from error
        except (Exception, SystemExit) as error:  # noqa: BLE001  a skill is anyone's code
            return fault_of(error)

    # -- time limits -------------------------------------------------------------------------

    async def _over_time(
        self,
        work: Work,
        intent: EffectIntent,
        over: TimedOut,
        seconds: float,
        before: tuple[Event, ...],
    ) -> SkillAnswer:
        """Nobody knows what a call without an end has done."""
        if work.terms.kind == "read":
            return await self._pen.failed(intent, _over(work, over), seconds=seconds, before=before)
        reason = str(over)
        if over.late is not None:
            self._watch(work, intent, over.late)
            reason += ", and may still run"
        raise await self._pen.doubt(intent, reason, seconds=seconds)

    def _watch(self, work: Work, intent: EffectIntent, late: asyncio.Future[Any]) -> None:
        """Journal how a call ends after all."""
        task = asyncio.ensure_future(self._tell_late(work, intent, late))
        self._late[intent.key] = task
        task.add_done_callback(lambda _: self._late.pop(intent.key, None))

    async def _tell_late(self, work: Work, intent: EffectIntent, late: asyncio.Future[Any]) -> None:
        pen = self._pen
        await asyncio.wait({late})
        error = late.exception() if not late.cancelled() else asyncio.CancelledError()
        with pen.late(intent):
            if error is not None:
                await pen.failed(intent, fault_of(error))
            else:
                await pen.done(work, intent, late.result())


async def _tried(work: Work, first: int, once: Callable[[int, Transient], Awaitable[Any]]) -> Any:
    """What an attempt gives; the next one is made after an error that is transient."""
    assert work.skill is not None
    retries, transient, outcome = work.terms.retries, work.skill.transient, None
    if not retries:
        return await once(first, ())
    logs.retries()
    async for trial in stamina.retry_context(
        on=_Again, attempts=retries + 1, timeout=None, wait_initial=0.1, wait_max=10.0
    ):
        with trial:
            again = transient if trial.num <= retries else ()
            outcome = await once(first + trial.num - 1, again)
    return outcome


class CallersRuntime:
    """The session's variables, for a skill that runs in a thread or on the loop."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop

    def get(self, name: str) -> Any:
        """The object called `name`; an async skill awaits it. Raises `UnknownName`."""
        return self._of(self._caller.get(name))

    def put(self, **values: Any) -> Any:
        """Bind objects to names; an async skill awaits it."""
        return self._of(self._caller.put(values))

    def _of(self, wanted: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(wanted, self._loop).result()
        return wanted


class _Again(Exception):
    """The skill names this error as transient: it is called once more."""


class _Lagging(Exception):
    """Too long since the lease was looked at."""


def _told(loop: asyncio.AbstractEventLoop, note: Callable[[str], None], text: str) -> None:
    loop.call_soon_threadsafe(note, text)


def _nothing() -> None:
    """Before a call that needs no look at the lease."""


def _over(work: Work, over: TimedOut) -> Fault:
    return Fault("TimeoutError", f"skill {work.terms.name!r}: {over}")
