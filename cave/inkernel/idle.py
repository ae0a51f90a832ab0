"""The idle timer: a kernel that nobody uses ends by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from . import threads


def now() -> float:
    """Seconds on a clock that goes on while a laptop sleeps, where there is one."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Idle:
    """Ends the kernel after `timeout` seconds without request, cell, output or user thread."""

    def __init__(
        self, timeout: float, *, busy: Callable[[], bool], end: Callable[[], None]
    ) -> None:
        self._timeout = timeout
        self._busy = busy
        self._end = end
        self._last = now()

    @property
    def period(self) -> float:
        """How often to look (seconds)."""
        return min(max(self._timeout / 5, 0.05), 10)

    def touch(self) -> None:
        self._last = now()

    def check(self) -> bool:
        """Look once; whether the kernel was told to end."""
        if self._busy() or threads.of_user():
            self.touch()
        if now() - self._last < self._timeout:
            return False
        self._end()
        return True
