"""Writing effects into the journal: intents before calls, results after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from cave import failpoints, logs
from cave.broker import quiescence, storing
from cave.broker.terms import Work, short
from cave.errors import (
    CaveError,
    EffectInDoubt,
    LeaseLost,
    SessionBusy,
    SessionNotFound,
    SkillError,
    StoreError,
)
from cave.events import EffectIntent, EffectResult, Event, Fault, StoredValue
from cave.journal import Journal
from cave.ledger import Entry
from cave.ports import BlobStore, Encoded, Holder, SkillAnswer
from cave.store.disk import explain_os

T = TypeVar("T")
log = logs.logger("cave.broker")


class Reserve(Protocol):
    """Disk that is set aside for results."""

    @property
    def path(self) -> Path:
        """The file that holds it."""

    @property
    def held(self) -> bool:
        """Whether the space is set aside now."""

    def ensure(self) -> bool:
        """Set it aside; False when there is not so much."""

    def release(self) -> bool:
        """Give it back; False when there was none."""


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
        reserve: Reserve | None = None,
        veil: Callable[[], storing.Veil | None] = lambda: None,
    ) -> None:
        self.journal = journal
        self.blobs = blobs
        self.owner = owner
        self.kernel = kernel
        self.veil = veil
        """What keeps secrets out of what is stored."""
        self._encode = encode
        self._reserve = reserve
        self._owed: list[Event] = []
        """Results that no disk would take, for as long as this process lives."""
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
        except (LeaseLost, SessionBusy, SessionNotFound, StoreError) as error:
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

    @property
    def _folder(self) -> str:
        return str(self._reserve.path.parent) if self._reserve is not None else "the store"

    async def _set_aside(self, work: Work) -> None:
        """Have room for the result before anything is done that has one."""
        reserve = self._reserve
        if work.terms.kind != "write" or reserve is None or reserve.held:
            return
        if not await asyncio.to_thread(reserve.ensure):
            raise StoreError(
                f"the disk that holds {self._folder!r} has no room left for its result; make room "
                f"on it (8 MB or more) and run the cell again"
            )

    async def whole(self, intent: EffectIntent, work: Work) -> EffectIntent:
        """An intent with what its compensation will need."""
        if not work.terms.undo or work.entry is not None:
            return intent
        given = await self.keep(self._encode(dict(work.call.arguments)))
        return replace(intent, given=given, undo=work.terms.undo)

    async def keep(self, value: Encoded) -> StoredValue:
        """Store a value of a skill, without the secrets in it. Raises `StoreError`."""
        return await storing.store(value, self.blobs, self.veil())

    async def fetch(self, stored: StoredValue) -> Encoded:
        """What was kept, with its secrets. Raises `StoreError`."""
        return await asyncio.to_thread(storing.load, stored, self.blobs, self.veil())

    def _new_id(self) -> str:
        self._given = max(self._given, self.journal.history.ledger.newest) + 1
        return f"e{self._given}"

    async def begin(self, work: Work, attempt: int) -> EffectIntent:
        """Have an intent on disk: what cannot be journaled is not called."""
        looked = self.journal.clock.monotonic()
        try:
            with _disk(self._folder):
                failpoints.hit("effect.before_intent")
            await self._set_aside(work)
            intent = await self.whole(self.intent(work, attempt), work)
            await self.write(intent, sync=work.terms.kind == "write", fenced=True)
        except StoreError as error:
            raise StoreError(f"skill {work.terms.name!r} was not called: {error}") from error
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
        else:
            stored, error = await self.stored(work.terms.name, encoded)
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

    async def stored(
        self, name: str, value: Encoded | None
    ) -> tuple[StoredValue | None, Fault | None]:
        """Keep what a call gave; where not even the reserve has room, the error instead."""
        if value is None:
            return None, None
        try:
            return await self._with_reserve(lambda: self.keep(value)), None
        except StoreError as error:
            told = (
                f"{name} was done, and what it gave ({value.size:,} bytes) is lost: {_short(error)}"
            )
            return None, Fault("StoreError", told)

    async def result(self, *events: Event, sync: bool) -> None:
        """Journal what came of a call, into the reserve of the disk when it must be.

        Raises `StoreError` where that cannot be written either: it is owed then.
        """

        async def write() -> None:
            with _disk(self._folder):
                failpoints.hit("effect.before_result")
            await self.write(*events, sync=sync)
            with _disk(self._folder):
                failpoints.hit("effect.after_result")

        try:
            await self._with_reserve(write)
        except StoreError as error:
            self._owed += events
            raise StoreError(_unwritten(events, error)) from error

    async def _with_reserve(self, write: Callable[[], Awaitable[T]]) -> T:
        """Do again what the disk refused, with the space that was set aside for it."""
        try:
            return await write()
        except StoreError as error:
            log.warning("the disk refused a result", reason=str(error))
            if self._reserve is not None:
                await asyncio.to_thread(self._reserve.release)
            return await write()

    async def pay(self) -> None:
        """Journal the results that no disk would take when they came. Raises `StoreError`."""
        owed = list(self._owed)
        if owed:
            await self.write(*owed, sync=True)
            self._owed = self._owed[len(owed) :]

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


@contextmanager
def _disk(folder: str) -> Iterator[None]:
    """Faults of the system as `StoreError`."""
    try:
        yield
    except StoreError:
        raise
    except OSError as fault:
        raise explain_os(fault, folder) from fault


def _short(error: StoreError) -> str:
    """What is wrong with the disk, without what to do about what was not written."""
    return str(error).partition("; ")[0]


def _unwritten(events: tuple[Event, ...], error: StoreError) -> str:
    result = next(event for event in events if isinstance(event, EffectResult))
    return (
        f"effect {result.effect} has ended ({result.state}), but {_short(error)}: it is written "
        f"with the next thing that this process does in the session. Make room before this process "
        f"ends, or you are asked what became of {result.effect}"
    )


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
