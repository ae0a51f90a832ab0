"""Writing effects into the journal: intents before calls, results after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import structlog

from cave import failpoints
from cave.broker import quiescence, storing
from cave.broker.terms import Work, short
from cave.errors import (
    CaveError,
    EffectInDoubt,
    LeaseLost,
    SessionBusy,
    SkillError,
    StoreError,
)
from cave.events import EffectIntent, EffectResult, Event, Fault
from cave.journal import Journal
from cave.ledger import Entry
from cave.ports import BlobStore, Encoded, Holder, SkillAnswer

log = structlog.get_logger("cave.broker")


class Pen:
    """Writes the effects of one session, in the operation under way or in one of its own."""

    def __init__(
        self,
        journal: Journal,
        blobs: BlobStore,
        *,
        owner: Holder,
        kernel: Callable[[], int],
        encode: Callable[[Any], Encoded],
    ) -> None:
        self.journal = journal
        self.blobs = blobs
        self.owner = owner
        self.kernel = kernel
        self._encode = encode
        self._looked = 0.0
        self._given = 0
        """The number in the last id that was given: calls of one cell begin side by side."""

    async def write(self, *events: Event, sync: bool = False, fenced: bool = False) -> None:
        """Journal. `fenced`: only if nobody else can have operated since this process did.

        Raises `LeaseLost`, `SessionBusy`, `StoreError`.
        """
        journal = self.journal
        if journal.operating:
            try:
                await journal.append(*events, sync=sync)
            except LeaseLost:
                if journal.operating:
                    raise  # not that the operation has just ended: another process has it
            else:
                return
        async with journal.operation() as news:
            if news and fenced:
                raise LeaseLost(f"session {journal.session!r} was operated by another process")
            await journal.append(*events, sync=sync)

    @contextmanager
    def late(self, intent: EffectIntent) -> Iterator[None]:
        """Around journaling what nobody waits for: another owner finds the doubt instead."""
        try:
            yield
        except (LeaseLost, SessionBusy, StoreError) as error:
            log.warning("a late result is not kept", effect=intent.effect, reason=str(error))

    # -- intents -----------------------------------------------------------------------------

    def intent(self, work: Work, attempt: int) -> EffectIntent:
        """The intent of the next call."""
        terms, (cell, lane, ordinal), owner = work.terms, work.place, self.owner
        assert terms.kind != "none"
        return EffectIntent(
            effect=self._new_id() if work.entry is None else work.entry.id,
            attempt=attempt,
            skill=terms.name,
            effect_kind=terms.kind,
            runs=terms.runs,
            cell=cell,
            lane=lane,
            ordinal=ordinal,
            digest=work.call.digest,
            key=work.key,
            arguments={name: short(value) for name, value in work.call.arguments.items()},
            version=terms.version,
            hash=terms.hash,
            module=terms.module,
            in_doubt=terms.doubt,
            timeout=terms.timeout,
            kernel=self.kernel(),
            owner=(owner.host, owner.boot, owner.pid, owner.started),
            since_boot=self.journal.clock.monotonic(),
            undoes=work.undoes,
        )

    async def whole(self, intent: EffectIntent, work: Work) -> EffectIntent:
        """An intent with what its compensation will need."""
        if not work.terms.undo or work.entry is not None:
            return intent
        given = await storing.store(self._encode(dict(work.call.arguments)), self.blobs)
        return replace(intent, given=given, undo=work.terms.undo)

    def _new_id(self) -> str:
        self._given = max(self._given, self.journal.history.ledger.newest) + 1
        return f"e{self._given}"

    async def begin(self, work: Work, attempt: int) -> EffectIntent:
        """Have an intent on disk: what cannot be journaled is not called."""
        failpoints.hit("effect.before_intent")
        looked = self.journal.clock.monotonic()
        intent = await self.whole(self.intent(work, attempt), work)
        await self.write(intent, sync=work.terms.kind == "write", fenced=True)
        self._looked = looked
        work.entry = self.journal.history.ledger.entries[intent.effect]
        failpoints.hit("effect.after_intent")
        return intent

    # -- the last look before a call ------------------------------------------------------------

    def lagging(self) -> bool:
        """Whether the last look at the lease is too old for a call to begin now."""
        return self.journal.clock.monotonic() > self._looked + quiescence.LAG

    async def look(self) -> None:
        """Make sure that nobody else has taken over. Raises `LeaseLost`."""
        looked = self.journal.clock.monotonic()
        await self.journal.look()
        self._looked = looked

    # -- results -----------------------------------------------------------------------------

    def encoded(self, value: Any, work: Work) -> Encoded | None:
        """A result as it travels. Raises `SkillError`."""
        if value is None:
            return None
        try:
            return self._encode(value)
        except CaveError as error:
            raise SkillError(
                f"what {work.terms.name!r} gave, a {type(value).__name__}, cannot be sent to the "
                f"cell: {error}"
            ) from error

    async def done(
        self,
        work: Work,
        intent: EffectIntent,
        value: Any,
        *,
        seconds: float = 0.0,
        source: Literal["call", "probe"] = "call",
        before: tuple[Event, ...] = (),
    ) -> SkillAnswer:
        """Have it on disk that the effect was done, and what it gave."""
        encoded, stored, error = None, None, None
        try:
            encoded = self.encoded(value, work)
        except SkillError as refused:
            error = Fault("SkillError", f"{work.terms.name} was done; {refused}")
        if encoded is not None:
            stored = await storing.store(encoded, self.blobs)
        await self.result(
            *before,
            EffectResult(
                effect=intent.effect,
                attempt=intent.attempt,
                state="done",
                value=stored,
                error=error,
                seconds=seconds,
                source=source,
            ),
            sync=work.terms.kind == "write",
        )
        if error is not None:
            return SkillAnswer("error", fault=error)
        return SkillAnswer("ok", value=encoded)

    async def failed(
        self,
        intent: EffectIntent,
        error: Fault,
        *,
        seconds: float = 0.0,
        before: tuple[Event, ...] = (),
    ) -> SkillAnswer:
        """Have it on disk what the skill raised."""
        result = EffectResult(
            effect=intent.effect,
            attempt=intent.attempt,
            state="failed",
            error=error,
            seconds=seconds,
        )
        await self.result(*before, result, sync=intent.effect_kind == "write")
        return SkillAnswer("error", fault=error)

    async def result(self, *events: Event, sync: bool) -> None:
        """Journal what came of a call."""
        failpoints.hit("effect.before_result")
        await self.write(*events, sync=sync)
        failpoints.hit("effect.after_result")

    async def doubt(
        self,
        intent: EffectIntent,
        reason: str,
        *,
        seconds: float = 0.0,
        before: tuple[Event, ...] = (),
    ) -> EffectInDoubt:
        """Have it on disk that nobody knows; gives the error that tells whom to ask."""
        result = EffectResult(
            effect=intent.effect,
            attempt=intent.attempt,
            state="in_doubt",
            reason=reason,
            seconds=seconds,
        )
        await self.write(*before, result, sync=True)
        return doubt_of(self.journal.history.ledger.entries[intent.effect], reason)


def doubt_of(entry: Entry, reason: str) -> EffectInDoubt:
    """The error that an effect in doubt is in the cell."""
    effect, what = entry.id, f"{entry.id}, {entry.said} {entry.where}"
    if entry.first.repeats:
        return EffectInDoubt(
            f"effect {what}, was not called: {reason}. Type s.settle({effect!r}, 'not_done') to "
            f"have it called all the same, s.settle({effect!r}, 'done') to take that for this "
            f"call, or s.settle({effect!r}, 'give_up'); then s.resume()"
        )
    return EffectInDoubt(
        f"nobody knows whether effect {what}, was done: {reason}. Look it up, then type "
        f"s.settle({effect!r}, 'done', result=...), s.settle({effect!r}, 'not_done') to have it "
        f"called, or s.settle({effect!r}, 'give_up')"
    )
