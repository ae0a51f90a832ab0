"""`timeout=` of a skill that runs here: it is stopped where it is, in the thread that calls it.

A function of the main thread is stopped as an interrupt stops a cell, also while it sleeps or
waits for a socket; one of another thread at its next bytecode; an async one where it awaits.
Code that holds on to what it is stopped with is stopped again, outside of what caught it. What
cannot be stopped is native code that does not come back, a system call of another thread, and
an async function that goes on after it was cancelled: the cell says that it waits for those.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import outcome

if TYPE_CHECKING:
    from .kernel import Kernel

PATIENCE = 2.0
"""Seconds after which what has not ended is stopped again."""

_set_async = ctypes.pythonapi.PyThreadState_SetAsyncExc  # looked up now: it is no deed of a cell


class OutOfTime(BaseException):
    """What a skill's function is stopped with; no `except Exception` holds on to it."""


class Deadline:
    """The time of one call, in the thread that makes it."""

    def __init__(self, kernel: Kernel, name: str, seconds: float) -> None:
        self.seconds = seconds
        self.passed = False
        """Whether the function was told to stop."""
        self.caught: float | None = None
        """Seconds that it took when it gave a value all the same."""
        self._name = name
        self._interrupts = kernel.interrupts
        self._clock: asyncio.AbstractEventLoop = kernel.shell_channel_thread.io_loop.asyncio_loop
        self._thread = threading.get_ident()
        self._context = contextvars.copy_context()
        self._began = time.monotonic()
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self._fired = 0
        self._cancels = 0
        self._tracing = False
        self._next: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"skill {self._name!r}: it did not end within {self.seconds:g} s"

    # -- what is to be done in time ----------------------------------------------------------

    def finish(self, make: Callable[[], Any], tell: Callable[[str], None]) -> Any:
        """The value of a synchronous call. Raises `TimeoutError`."""
        self._begin(self.seconds)
        try:
            try:
                value = outcome.finish(make(), tell)
            finally:
                self._ended = True  # nothing can come between: from now on it is left alone
        except BaseException as error:
            self._end()
            self._raise(error)
            raise
        self._end()
        return self._given(value)

    async def finish_async(self, make: Callable[[], Any], tell: Callable[[str], None]) -> Any:
        """The value of a call that awaits. Raises `TimeoutError`."""
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._begin(self.seconds + PATIENCE)  # until then its loop stops it
        limit = asyncio.timeout(self.seconds)
        try:
            try:
                async with limit:
                    value = await outcome.finish_async(make(), tell)
            finally:
                self._ended = True
        except BaseException as error:
            self._end()
            self.passed = self.passed or limit.expired()
            self._raise(error)
            raise
        self._end()
        self.passed = self.passed or limit.expired()
        return self._given(value)

    def _raise(self, error: BaseException) -> None:
        if self.passed and not isinstance(error, KeyboardInterrupt):
            raise TimeoutError(str(self)) from (error if isinstance(error, Exception) else None)

    def _given(self, value: Any) -> Any:
        if self.passed:
            self.caught = time.monotonic() - self._began
        return value

    # -- the clock, on the loop of the channels ----------------------------------------------

    def _begin(self, seconds: float) -> None:
        until = self._clock.time() + seconds
        self._clock.call_soon_threadsafe(self._wait_until, until)

    def _wait_until(self, until: float) -> None:
        if not self._ended:
            self._next = self._clock.call_at(until, self._fire)

    def _end(self) -> None:
        """Nothing is raised from now on, nor later for what was raised last."""
        while True:
            try:
                with self._lock:
                    self._ended = True
                if self._fired and self._thread != threading.main_thread().ident:
                    _raise_in(self._thread, None)
                if self._tracing:
                    sys.settrace(None)
                self._clock.call_soon_threadsafe(self._let_go)
            except OutOfTime:
                continue
            break
        if self._task is not None:
            while self._cancels:  # they were ours, and have come
                self._task.uncancel()
                self._cancels -= 1

    def _let_go(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _fire(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._stop()
        if self._fired == (1 if self._task is not None else 2):
            self._context.run(self._say)
        self._wait_until(self._clock.time() + PATIENCE)

    def _stop(self) -> None:
        self._fired += 1
        self.passed = True
        if self._task is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)
        if self._thread == threading.main_thread().ident:
            self._interrupts.expire(self)
        elif self._task is None:
            _raise_in(self._thread, OutOfTime)

    def _cancel(self) -> None:
        if not self._ended and self._task is not None:
            self._cancels += self._task.cancel()

    def _say(self) -> None:
        told = (
            f"{self}, and goes on: it catches what stops it, or is in code that cannot be stopped"
        )
        print(f"{told}. The cell waits; s.interrupt(kill=True) ends its kernel", file=sys.stderr)

    # -- in the main thread, between two bytecodes -------------------------------------------

    def strike(self, frame: FrameType | None) -> None:
        """Stop the function, unless it has ended or something else runs now."""
        if self._ended:
            return
        if self._task is not None and asyncio.current_task(self._loop) is not self._task:
            return
        if self._fired > 1:
            self._strike_again(frame)
        raise OutOfTime(str(self))

    def _strike_again(self, frame: FrameType | None) -> None:
        """Raise at the next line too: that is outside of the `try` which catches the first."""
        if sys.gettrace() is not None:
            return  # a debugger's
        while frame is not None and frame.f_code is not Deadline.finish.__code__:
            frame.f_trace = self._traced
            frame = frame.f_back
        self._tracing = True
        sys.settrace(lambda *_: None)

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not self._ended:
            raise OutOfTime(str(self))  # Python ends the tracing then
        return self._traced


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise in another thread at its next bytecode; None takes back what was not raised yet."""
    wanted = None if error is None else ctypes.py_object(error)
    _set_async(ctypes.c_ulong(thread), wanted)
