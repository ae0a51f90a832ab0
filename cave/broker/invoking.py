"""Running a skill's function in this process: plain, async or a generator of progress.

A plain function has a thread to itself, a daemon, so that one that hangs holds up
neither the loop nor the end of the process. What runs past its time cannot be stopped (an
async one is cancelled): `TimedOut.late` tells when it ends after all.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from cave.skills import finish, finish_async

_PATIENCE = 1.0
"""Seconds that a cancelled function has to end."""

_IDLE = 5.0
"""Seconds that a thread waits for more to do."""

Inbox = queue.SimpleQueue[Callable[[], None]]
_idle: list[Inbox] = []
"""Of the threads that wait."""
os.register_at_fork(after_in_child=_idle.clear)


class TimedOut(Exception):
    """The function did not end in time, and may still do what it does."""

    def __init__(self, seconds: float, late: asyncio.Future[Any] | None) -> None:
        super().__init__(f"it did not end within {seconds:g} s")
        self.late = late
        """Ends when the function does; None when it was stopped."""


async def invoke(
    function: Callable[[], Any],
    *,
    note: Callable[[str], None],
    timeout: float | None = None,
    before: Callable[[], None] = lambda: None,
) -> Any:
    """What `function` gives. `before` runs right before it, and may raise.

    Raises what it raises, `TimedOut`.
    """
    loop = asyncio.get_running_loop()

    def tell(progress: str) -> None:
        loop.call_soon_threadsafe(note, progress)

    def work() -> Any:
        before()
        return finish(function(), tell)

    until = None if timeout is None else loop.time() + timeout
    done = _in_thread(work)
    value = await (done if timeout is None else _within(done, timeout, stop=False))
    if inspect.isasyncgen(value) or inspect.isawaitable(value):
        left = None if until is None else max(0.0, until - loop.time())
        value = await _within(asyncio.ensure_future(finish_async(value, note)), left, stop=True)
    return value


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="cave-skill", daemon=True).start()
    inbox.put(lambda: _do(context, work, done))
    return done


def _serve(inbox: Inbox) -> None:
    """Work in a thread that waits a moment for more: to start one takes longer than many calls."""
    while True:
        try:
            inbox.get(timeout=_IDLE)()
        except queue.Empty:
            try:
                _idle.remove(inbox)
            except ValueError:
                continue  # there is work on its way
            return
        _idle.append(inbox)


def _do(context: contextvars.Context, work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    loop = done.get_loop()
    try:
        value, settle = context.run(work), done.set_result
    except StopIteration as error:  # no future carries one
        value, settle = RuntimeError(f"it raised StopIteration({error})"), done.set_exception
    except BaseException as error:  # noqa: BLE001  carried to the one who awaits it
        value, settle = error, done.set_exception
    try:
        loop.call_soon_threadsafe(_settle, done, settle, value)
    except RuntimeError:
        if not loop.is_closed():  # else nobody awaits it
            raise


def _settle(done: asyncio.Future[Any], settle: Callable[[Any], None], value: Any) -> None:
    if not done.done():
        settle(value)


async def _within(work: asyncio.Future[Any], timeout: float | None, *, stop: bool) -> Any:
    await asyncio.wait({work}, timeout=timeout)
    if work.done():
        return work.result()
    assert timeout is not None
    if stop:
        work.cancel()
        await asyncio.wait({work}, timeout=_PATIENCE)
    raise TimedOut(timeout, None if work.done() else work)
