"""The place of a call: which cell, which of its lanes, the how-manieth call there.

A re-run of the cell gives the same calls the same places, however its threads and tasks
interleave. Code that is submitted (a thread started, work given to an executor, a task made)
runs in a lane of its own, numbered where and when it is submitted; calls are counted within
their lane. Lanes travel in the context, so code that outlives its cell stays that cell's.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import secrets
import weakref
from collections.abc import Callable, Iterator
from typing import Any


class Lane:
    """A line of code that runs one call after the other."""

    __slots__ = ("_calls", "_forks", "calls", "cell", "forks", "path")

    def __init__(self, cell: int | None, path: str, calls: int = 0, forks: int = 0) -> None:
        self.cell = cell
        self.path = path
        self.calls, self.forks = calls, forks
        """How many there were; of a cell that goes on in its midst, in its first run too."""
        self._calls = itertools.count(calls + 1)
        self._forks = itertools.count(forks + 1)

    def call(self) -> int:
        """The number of one more call."""
        number = self.calls = next(self._calls)
        return number

    def fork(self) -> Lane:
        """The lane of code that is submitted now."""
        number = self.forks = next(self._forks)
        return Lane(self.cell, f"{self.path}/{number}")


_lane: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("cave_lane", default=None)


def current() -> Lane:
    """The lane of the running code; a new one for code that belongs to no cell."""
    return _lane.get() or Lane(None, f"@{secrets.token_hex(8)}")


def running() -> Lane | None:
    """The lane of the running code; None when it belongs to no cell."""
    return _lane.get()


@contextlib.contextmanager
def of_cell(cell: int | None, request: str, calls: int = 0, forks: int = 0) -> Iterator[None]:
    """What runs in the block is the cell's own code. Cells without a number have their
    request's name for a lane."""
    token = _lane.set(Lane(cell, "" if cell is not None else f"@{request}", calls, forks))
    try:
        yield
    finally:
        _lane.reset(token)


_tasks: weakref.WeakSet[Any] = weakref.WeakSet()


def has_tasks() -> bool:
    """Whether a task that code of a cell has made has not ended."""
    return any(not task.done() for task in list(_tasks))


def forked() -> contextvars.Context:
    """The context of code that is submitted now."""
    context = contextvars.copy_context()
    if (lane := _lane.get()) is not None:
        context.run(_lane.set, lane.fork())
    return context


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """What the block submits is no code of the cell's: an executor's new worker."""
    token = _lane.set(None)
    try:
        yield
    finally:
        _lane.reset(token)


def kept(
    context: contextvars.Context, fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`fn(*args)` such that it is in the lane of `context` also if it brings a context along.

    `asyncio.to_thread` does, and who submits `copy_context().run`.
    """
    while isinstance(fn, functools.partial) and not fn.keywords:
        given: functools.partial[Any] = fn
        fn, args = given.func, (*given.args, *args)
    brought = getattr(fn, "__self__", None)
    if not isinstance(brought, contextvars.Context) or not args:
        return fn, args
    lane = context.get(_lane)
    return fn, (_within, lane, *args)


def _within(lane: Lane | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = _lane.set(lane)
    try:
        return fn(*args, **kwargs)
    finally:
        _lane.reset(token)


def follow_tasks() -> None:
    """Let every task of asyncio's loops have a lane, the kernel's loop and others alike."""
    create = asyncio.BaseEventLoop.create_task

    @functools.wraps(create)
    def create_in_lane(self: Any, coro: Any, **options: Any) -> Any:
        if _lane.get() is None:
            return create(self, coro, **options)
        context = forked()
        if (given := options.get("context")) is not None:
            with contextlib.suppress(RuntimeError):  # it is entered: the task shares its lane
                given.run(_lane.set, context[_lane])
        task = context.run(functools.partial(create, self, coro, **options))
        _tasks.add(task)
        return task

    asyncio.BaseEventLoop.create_task = create_in_lane  # type: ignore[method-assign]
