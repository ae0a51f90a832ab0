"""Effects that a kernel runs itself: leave before, a record after."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from cave.broker.pen import Pen
from cave.broker.terms import Work
from cave.events import EffectResult, Fault
from cave.ledger import Entry
from cave.ports import SkillAnswer, SkillCall
from cave.skills import Skill

_FIRST, _LONGEST = 0.1, 10.0
"""Seconds before it runs again: at first, and at most."""
_MOST = 100
"""Retries that a cell may want of its own skills."""


class KernelCalls:
    """Gives one session's kernel leave to run its skills, and records what came of them."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    async def leave(self, work: Work) -> SkillAnswer:
        """Leave to run it now. Asked again by a kernel that never got it, the same leave."""
        entry = work.entry
        if entry is not None and entry.state == "begun" and self.asked_again(entry):
            return self._go(work, entry.intent.attempt)
        intent = await self._pen.begin(work, work.attempt)
        return self._go(work, intent.attempt)

    def _go(self, work: Work, attempt: int) -> SkillAnswer:
        return SkillAnswer("go", key=work.key, attempt=attempt, value=work.changed)

    def asked_again(self, entry: Entry) -> bool:
        """Whether the kernel that was to run it is still the one that asks: it has not."""
        return entry.intent.runs == "kernel" and entry.intent.kernel == self._pen.kernel()

    async def ended(self, call: SkillCall, skill: Skill | None) -> SkillAnswer:
        """Record the end of a run; `go` has it run once more."""
        place = (call.cell or 0, call.lane, call.ordinal)
        entry = self._pen.journal.history.ledger.at(place)
        if entry is None or entry.intent.attempt != call.attempt or not entry.open:
            return SkillAnswer("ok")  # recorded by an owner that could not say so any more
        if _is_transient(call, skill):
            return await self._once_more(entry)
        await self._record(entry, call)
        return SkillAnswer("ok")

    async def _once_more(self, entry: Entry) -> SkillAnswer:
        wait = min(_LONGEST, _FIRST * 2**entry.intent.attempt)
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  as to spread calls
        again = replace(entry.intent, attempt=entry.intent.attempt + 1, seq=0)
        await self._pen.write(again, sync=again.effect_kind == "write", fenced=True)
        return SkillAnswer("go", key=again.key, attempt=again.attempt)

    async def _record(self, entry: Entry, call: SkillCall) -> None:
        fault, writes = call.fault, entry.intent.effect_kind == "write"
        if not call.ran:
            fault = Fault("KeyboardInterrupt", "it was interrupted before it was called")
        if call.ran and writes and (call.over or call.cut):
            raise await self._pen.doubt(entry.intent, _stopped(entry, call))
        if fault is not None and not call.done:
            await self._pen.failed(entry.intent, fault)
            return
        value, error = await self._pen.stored(call.skill, call.result)
        result = EffectResult(
            effect=entry.id, attempt=call.attempt, state="done", value=value, error=fault or error
        )
        await self._pen.result(result, sync=writes)


def _stopped(entry: Entry, call: SkillCall) -> str:
    if not call.over:
        return f"it was stopped in its midst ({call.fault.name if call.fault else 'interrupt'})"
    limit = entry.intent.timeout
    return f"it did not end{'' if limit is None else f' within {limit:g} s'}, and was stopped"


def _is_transient(call: SkillCall, skill: Skill | None) -> bool:
    if call.fault is None or call.done or call.over or not call.ran:
        return False
    retries, kinds = _retries(call, skill)
    return call.attempt <= retries and not kinds.isdisjoint(call.bases)


def _retries(call: SkillCall, skill: Skill | None) -> tuple[int, set[str]]:
    """How often, and after which errors; a cell says it of its own skills."""
    if skill is not None:
        return skill.retries, {kind.__name__ for kind in skill.transient}
    told = call.declaration or {}
    retries, kinds = told.get("retries"), told.get("transient")
    if not isinstance(retries, int) or not isinstance(kinds, list):
        return 0, set()
    return min(retries, _MOST), set(map(str, kinds))
