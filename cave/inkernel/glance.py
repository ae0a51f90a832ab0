"""A look that takes a bounded time: code of others is stopped when its time is up.

Rules of our own look at a bounded part of an object and need no clock. An object's own
`_repr_llm_` and the rules that other packages register are stopped by a timer of the system,
which also ends a sleep; where that timer cannot be had (in another thread, or when the
session uses it itself) they are not called at all.
"""

from __future__ import annotations

import contextlib
import io
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

SECONDS = 0.05
"""What a description may take."""
WORK = 0.02
"""What it may take of the processor before it looks at no more parts."""
_AGAIN = 0.01
"""Seconds after which code that goes on is stopped again."""

T = TypeVar("T")


class TimeUp(BaseException):
    """The time of a look is over. No `Exception`, so that code of others lets it pass."""


class Late(Exception):
    """A look has not ended in its time."""


class Unavailable(Exception):
    """There is no timer that could stop the code."""


class Deadline:
    """A moment that steps of a look check for themselves: by this thread's work, and by the
    clock, which counts also what other processes take."""

    def __init__(self, seconds: float = SECONDS, work: float = WORK) -> None:
        self._end = time.perf_counter() + seconds
        self._spent = time.thread_time() + work

    @property
    def over(self) -> bool:
        return time.thread_time() >= self._spent or time.perf_counter() >= self._end


def within(call: Callable[[], T], seconds: float = SECONDS) -> T:
    """What `call` gives, its prints thrown away. Raises `Late` or `Unavailable`."""
    if not _free():
        raise Unavailable
    armed = True

    def stop(_signum: int, _frame: FrameType | None) -> None:
        if armed:
            raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            found = call()
            armed = False
            return found
    except TimeUp:
        armed = False
        raise Late from None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _free() -> bool:
    """Whether the timer is nobody's."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handler: Any = signal.getsignal(signal.SIGALRM)
    idle = signal.getitimer(signal.ITIMER_REAL)[0] == 0
    return idle and handler in (signal.SIG_DFL, signal.SIG_IGN)
