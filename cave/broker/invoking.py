"""Running a skill's function in this process: plain, async or a generator of progress.

A plain function runs in a thread of its own, a daemon, so that one that hangs holds up
neither the loop nor the end of the process. What runs past its time cannot be stopped (an
async one is cancelled): `TimedOut.late` tells when it ends after all.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cave.skills import finish, finish_async

_PATIENCE = 1.0
"""Seconds that a cancelled function has to end."""


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
    value = await _within(asyncio.wrap_future(_in_thread(work)), timeout, stop=False)
    if inspect.isasyncgen(value) or inspect.isawaitable(value):
        left = None if until is None else max(0.0, until - loop.time())
        value = await _within(asyncio.ensure_future(finish_async(value, note)), left, stop=True)
    return value


def _in_thread(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # noqa: BLE001  carried to the one who awaits it
            future.set_exception(error)
        else:
            future.set_result(value)

    threading.Thread(target=run, name="cave-skill", daemon=True).start()
    return future


async def _within(work: asyncio.Future[Any], timeout: float | None, *, stop: bool) -> Any:
    await asyncio.wait({work}, timeout=timeout)
    if work.done():
        return work.result()
    assert timeout is not None
    if stop:
        work.cancel()
        await asyncio.wait({work}, timeout=_PATIENCE)
    raise TimedOut(timeout, None if work.done() else work)
