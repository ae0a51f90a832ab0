"""A session's journal in hand: appends under the lease, keeps the fold, tells who listens.

It is the only way in which the layers above write facts. `Journal.operation` is the right to
do so: it takes the lease, reads what others wrote meanwhile, and lets go at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from cave.errors import LeaseLost, StoreError
from cave.events import CellStarted, Event
from cave.history import History
from cave.ports import Clock, Holder, Lease, Store

Listener = Callable[[Event], None]
E = TypeVar("E", bound=Event)
T = TypeVar("T")

RENEW_EVERY = 10.0
"""Seconds between renewals of the lease while an operation runs."""


class Masks(Protocol):
    """What keeps secrets out of events."""

    def event(self, event: E) -> E:
        """An event as it is journaled; once more is the same."""

    def passing(self, event: Event) -> Event | None:
        """A provisional event as it may be shown now; None when all of it waits."""

    def value(self, value: T) -> T:
        """A value with the texts in it masked."""

    def chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """A long text on its way to disk."""

    def rests(self, event: Event) -> Iterator[Event]:
        """What has waited for more, and is to be shown before this event."""


class Journal:
    """The events of one session, as this process writes and reads them."""

    def __init__(
        self, store: Store, session: str, holder: Holder, history: History, clock: Clock
    ) -> None:
        self.store = store
        self.session = session
        self.history = history
        self.clock = clock
        self.mask: Masks | None = None
        """What events pass before anybody else has them."""
        self._holder = holder
        self._lease: Lease | None = None
        self._last: Lease | None = None
        """The lease under which this process last operated."""
        self._released = False
        """Whether the store knows that nobody operates."""
        self._listeners: list[Listener] = []
        self._lock = asyncio.Lock()

    @property
    def lease(self) -> int:
        """The number that every command carries. Raises `LeaseLost` outside an operation."""
        if self._lease is None:
            raise LeaseLost(f"session {self.session!r} is not operated by this process now")
        return self._lease.number

    @property
    def operating(self) -> bool:
        """Whether an operation of this process runs now."""
        return self._lease is not None

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, provisional ones too; gives the undo."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, event: Event) -> None:
        """Tell the listeners of a provisional event."""
        masked = event if self.mask is None else self.mask.passing(event)
        if masked is not None:
            self._tell(masked.stamped(seq=0, at=self.clock.now(), session=self.session))

    def masked_text(self, chunks: Iterable[bytes]) -> Iterable[bytes]:
        """A long text on its way to disk."""
        return chunks if self.mask is None else self.mask.chunks(chunks)

    def masked(self, event: E) -> E:
        """An event as it will be journaled."""
        return event if self.mask is None else self.mask.event(event)

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as fault:  # noqa: BLE001  a listener must not tear the work
                asyncio.get_running_loop().call_exception_handler(
                    {
                        "message": f"a listener of session {self.session!r} failed",
                        "exception": fault,
                    }
                )

    async def refresh(self) -> None:
        """Take in what other processes have written."""
        async for event in self.store.read(self.session, after=self.history.seq):
            if event.seq > self.history.seq:
                self.history.feed((event,))

    @asynccontextmanager
    async def operation(self, *, wait: float = 0.0, light: bool = False) -> AsyncIterator[bool]:
        """Hold the lease. Gives whether another process may have operated since the last one.

        Calls of one process queue. Raises `SessionBusy` while another process operates.
        `light` goes on under the last lease without asking the store: the first append takes
        it again, or raises `LeaseLost` when somebody operated in between.
        """
        async with self._lock:
            lease = self._last if light else None
            if lease is None:
                lease = await self.store.acquire(self.session, self._holder, wait=wait)
            news = self._last is None or lease.number != self._last.number
            self._lease = self._last = lease
            self._released = light
            renewal = asyncio.ensure_future(self._renew(lease))
            try:
                if news:
                    await self.refresh()
                yield news
            finally:
                renewal.cancel()
                self._lease = None
                if self.history.running is not None:
                    self._last = None  # it was cut off: the next one looks at the kernel first
                if not self._released:
                    with suppress(StoreError):  # the lease runs out by itself
                        await asyncio.shield(self.store.release(lease))

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY)
            try:
                await self.store.renew(lease)
            except LeaseLost:
                return  # the next append and the kernel's fence refuse this process
            except StoreError:
                continue  # a full disk, a locked file: perhaps the next time

    async def look(self) -> None:
        """Make sure that this process operates the session, now. Raises `LeaseLost`."""
        if self._lease is None:
            raise LeaseLost(f"session {self.session!r} is not operated by this process now")
        await self.store.renew(self._lease)

    async def append(self, *events: Event, sync: bool = False, last: bool = False) -> None:
        """Commit facts; after that the fold has them and the listeners know.

        `sync` waits for the disk; `last` lets go of the session in the same transaction.
        Raises `LeaseLost`, `StoreError`.
        """
        if self._lease is None:
            raise LeaseLost(f"session {self.session!r} is not operated by this process now")
        masked = tuple(map(self.masked, events))
        try:
            committed = await self.store.append(self._lease, masked, sync=sync, release=last)
        except BaseException:
            self._last = None  # what is written is read again before anything else is done
            raise
        self._released = last
        self.history.feed(committed)
        for event, real in zip(masked, events, strict=True):
            if isinstance(real, CellStarted) and event != real:
                self.history.sources[real.cell] = real.source
        for event in committed:
            for rest in () if self.mask is None else self.mask.rests(event):
                self._tell(rest.stamped(seq=0, at=event.at, session=self.session))
            self._tell(event)
