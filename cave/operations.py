"""What was begun is carried through, whoever stops waiting for it.

A caller may be cancelled at any await, and a listener may raise. Neither may tear what it had
begun: a cell runs in the kernel, an object is bound there and not journaled yet. So every
operation works in a task of its own. A caller that is cancelled leaves it behind: while it
still queues it is given up, once it has begun it is asked to stop and ends as a whole.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cave.events import Event

P = ParamSpec("P")
T = TypeVar("T")

Stop = Callable[[], Awaitable[object]]


class Operations:
    """The operations of one session that this process has begun and not ended."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._begun: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._stops: set[asyncio.Future[Any]] = set()

    def begin(self) -> None:
        """The current task has the session now: from here on it is not torn."""
        self._begun = asyncio.current_task()

    async def end(self) -> None:
        """The current task lets go of the session: what is to stop it does not hit the next."""
        self._begun = None
        if self._stops:
            await asyncio.wait(self._stops)

    async def carry(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is not cancelled with its caller once it has begun."""
        task = asyncio.ensure_future(work)
        self._keep(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task is self._begun:
                self.ask_to_stop()
            else:
                task.cancel()
            raise

    def ask_to_stop(self) -> None:
        """Interrupt what has begun, without waiting for its end."""
        self._keep(asyncio.ensure_future(self._stop()))

    async def stop(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of an interrupt, which the operation outlives."""
        task = asyncio.ensure_future(work)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        return await asyncio.shield(task)

    def _keep(self, task: asyncio.Future[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller, if one still waits, has it too


class Carrying(Protocol):
    """Whose methods are operations."""

    _operations: Operations


S = TypeVar("S", bound=Carrying)


def carried(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a method an operation: see `Operations.carry`."""

    @functools.wraps(method)
    async def whole(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._operations.carry(method(self, *args, **kwargs))

    return whole


class Heard:
    """A caller's `on_event`: when it raises, the work is asked to stop and its end waited for.

    Then `raise_fault` tells the caller; the journal has the whole story.
    """

    def __init__(self, on_event: Callable[[Event], None], stop: Callable[[], None]) -> None:
        self._on_event = on_event
        self._stop = stop
        self._fault: Exception | None = None

    def __call__(self, event: Event) -> None:
        if self._fault is not None:
            return
        try:
            self._on_event(event)
        except Exception as fault:  # noqa: BLE001  raised at the end, when nothing is torn
            self._fault = fault
            self._stop()

    def raise_fault(self) -> None:
        """Raise what `on_event` raised, if it did."""
        if self._fault is not None:
            raise self._fault
