"""Processes: whether the one that a record names still lives, and how one ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

POLL = 0.2
"""Seconds between looks where there is no pidfd."""


def boot_id() -> str:
    """Unlike after any other start of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def started(pid: int) -> float:
    """When the process started, as the system counts it; 0 when it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        fields = stat.rpartition(")")[2].split()
        return 0.0 if fields[0] in "ZX" else float(fields[19])
    except (OSError, IndexError):
        return 0.0


def state(pid: int) -> str:
    """The letter by which the system names what the process does (T: stopped); '' for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return stat.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def cpu(pid: int) -> float:
    """Ticks of processor time that the process has used."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        fields = stat.rpartition(")")[2].split()
        return float(fields[11]) + float(fields[12])
    except (OSError, IndexError):
        return 0.0


_EXITING = 0x4
"""PF_EXITING of Linux's task flags."""
_KILLED = 1 << (signal.SIGKILL - 1)


def doomed(pid: int) -> bool:
    """Whether the process has been killed and is only still to be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        fields = stat.rpartition(")")[2].split()
        return bool(int(fields[6]) & _EXITING or int(fields[28]) & _KILLED)
    except (OSError, ValueError, IndexError):
        return False


class Process:
    """A handle on one process that is not fooled by its number being used again."""

    def __init__(self, pid: int) -> None:
        """Raises `ProcessLookupError` when it is not there."""
        self.pid = pid
        self._fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        self._began = started(pid)
        self._watch: asyncio.TimerHandle | None = None
        self._reading: asyncio.AbstractEventLoop | None = None

    @property
    def began(self) -> float:
        return self._began

    @property
    def alive(self) -> bool:
        began = started(self.pid)
        return began != 0.0 and began == self._began

    def send(self, number: signal.Signals) -> None:
        """Signal it; no error when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif self.alive:
                os.kill(self.pid, number)

    def go_on(self) -> None:
        """Let it run again, if it was stopped."""
        if state(self.pid) == "T":
            self.send(signal.SIGCONT)

    def on_end(self, call: Callable[[], None]) -> None:
        """Call once when it has ended, on the running loop."""
        loop = asyncio.get_running_loop()
        if self._fd >= 0:
            self._reading = loop
            loop.add_reader(self._fd, self._ended, call)
        else:
            self._poll(loop, call)

    def close(self) -> None:
        if self._watch:
            self._watch.cancel()
        if self._fd >= 0:
            self._unwatch()
            os.close(self._fd)
            self._fd = -1

    def _ended(self, call: Callable[[], None]) -> None:
        self._unwatch()
        call()

    def _unwatch(self) -> None:
        if self._reading is not None and not self._reading.is_closed():
            self._reading.remove_reader(self._fd)
        self._reading = None

    def _poll(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if self.alive:
            self._watch = loop.call_later(POLL, self._poll, loop, call)
        else:
            call()


def await_end(pid: int) -> None:
    """Return when the process has ended. Raises `ProcessLookupError` when it is not there."""
    process = Process(pid)
    try:
        while process.alive:
            time.sleep(0.005)
    finally:
        process.close()


def end_record(path: Path) -> dict[str, object] | None:
    """What the keeper wrote of the kernel's end; None when it has not (yet)."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


async def await_end_record(
    path: Path, *, limit: float, writer: Callable[[], bool]
) -> dict[str, object] | None:
    """The keeper's word on the kernel's end, waited for while it lives and has time."""
    deadline = time.monotonic() + limit
    while writer() and end_record(path) is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return end_record(path)
