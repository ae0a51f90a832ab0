"""SIGINT: it stops the code of a cell wherever that is, and nothing else.

ipykernel's own handling can raise KeyboardInterrupt inside its machinery, which loses the
reply, and does not wake a cell that awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

_FRESH = 1.0
"""Seconds in which a signal that was sent is handled, if it is by us."""


_LATE = 0.02
"""Seconds after which a signal that was not taken is sent again."""


def signal_main_thread() -> None:
    """SIGINT to the thread that runs cells: a signal to the process may fall to another one,
    and then a sleep in the cell goes on."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


class Limit(Protocol):
    """A limit of time that has passed."""

    def strike(self, frame: FrameType | None) -> None:
        """Raise in the code that runs now, if that is the code it is for."""


class Interrupts:
    """The handler of SIGINT, and the window in which it may raise."""

    def __init__(self, running: Callable[[], object]) -> None:
        self._running = running
        """What runs now, as an object of its own for each request."""
        self.fired = False
        """Whether SIGINT has come since `reset`."""
        self._aim: tuple[object, float] = (None, 0.0)
        self._expired: Limit | None = None
        self._kicked = False
        self._depth = 0
        self._only_aimed = False
        self._pending = False
        self._task: asyncio.Future[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self) -> None:
        """Put our handler (back) in place; the last cell may have set its own."""
        if signal.getsignal(signal.SIGINT) != self.handle:
            signal.signal(signal.SIGINT, self.handle)

    def reset(self) -> None:
        self.fired = self._pending = False

    def aim(self, running: object) -> None:
        """Raise SIGINT for what runs, from any thread; it does not hit what comes after."""
        self._aim = running, time.monotonic()
        signal_main_thread()

    def expire(self, limit: Limit) -> None:
        """Have the main thread's code struck by a limit of its own, from any thread."""
        self._expired = limit
        signal_main_thread()

    def kick(self) -> None:
        """Signal again when the main thread has not taken the signal: it came just before a
        system call, which it did not cut short."""
        aim, at = self._aim
        ours = signal.getsignal(signal.SIGINT) == self.handle
        if ours and aim is not None and time.monotonic() - at > _LATE:
            self._kicked = True
            signal_main_thread()

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Called in the main thread between two bytecodes."""
        (aim, at), self._aim = self._aim, (None, 0.0)
        kicked, self._kicked = self._kicked, False
        expired, self._expired = self._expired, None
        if aim is None and expired is not None:
            if self._depth:
                expired.strike(frame)
            return
        if aim is None and (kicked or self._only_aimed):
            return  # what it was a reminder of was taken meanwhile, or it is for a cell
        # an older one went to a handler of the cell's own
        if aim is not None and aim is not self._running() and time.monotonic() - at < _FRESH:
            return
        if not self._depth:
            self._pending = True  # for this request's code, if that has not begun
            return
        self.fired = True
        task, loop = self._task, self._loop
        if task is None or loop is None or asyncio.current_task(loop) is task:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(task.cancel)  # add_callback would not wake the loop

    def again(self) -> None:
        """A cell within a cell has swallowed SIGINT: the outer one stops at its next check."""
        self._pending = True

    def check(self) -> None:
        """Raise for SIGINT that has come and not raised yet."""
        if self._pending:
            self._pending, self.fired = False, True
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def window(self) -> Iterator[None]:
        """While user code runs, SIGINT raises in it."""
        self._depth += 1
        try:
            self.check()
            yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def only_aimed(self) -> Iterator[None]:
        """While no cell runs, but code of the user: a SIGINT that nobody aimed is not for it."""
        self._only_aimed, self._pending = True, False
        try:
            yield
        finally:
            self._only_aimed = self._pending = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While a cell runs, and not its code: a SIGINT for it raises afterwards."""
        depth, self._depth = self._depth, 0
        try:
            yield
        finally:
            self._depth = depth

    @contextlib.contextmanager
    def awaiting(self, task: asyncio.Future[object]) -> Iterator[None]:
        """The cell runs as `task`; while it sleeps SIGINT cancels it."""
        self._task, self._loop = task, asyncio.get_running_loop()
        try:
            yield
        finally:
            self._task = None
