"""How long a kernel that is alive by its pid, and does not answer, is waited for.

Silence is never taken for death, yet no host waits for ever. A kernel whose sockets were
removed can never be reached again: `cut_off` says so, and its host ends it. One that was
stopped (SIGSTOP) is told once to go on. Otherwise there is hope while it shows signs of life
(processor time, output); after `QUIET` seconds without any `Patience` raises, and the kernel
is left as it is.
"""

from __future__ import annotations

import time
from pathlib import Path

from cave.errors import KernelStartError
from cave.kernel import processes
from cave.kernel.launch import Record
from cave.kernel.processes import Process

QUIET = 30.0
"""Seconds without a sign of life (processor time, output) after which nobody waits on."""
LOOK = 0.25
"""Seconds between looks at a kernel that does not answer."""
_PORTS = (1, 2, 5)


class Life:
    """Signs of life of a process: processor time and output."""

    def __init__(self, pid: int, log: Path) -> None:
        self._pid = pid
        self._log = log
        self._signs: tuple[float, int] = (0.0, 0)
        self._since = time.monotonic()

    @property
    def silent(self) -> float:
        """Seconds since the last sign."""
        signs = (processes.cpu(self._pid), self._log.stat().st_size if self._log.exists() else 0)
        if signs != self._signs:
            self._signs, self._since = signs, time.monotonic()
        return time.monotonic() - self._since


def cut_off(record: Record) -> str:
    """Why no client can connect any more; '' when one can."""
    if all(Path(f"{record.base}-{port}").exists() for port in _PORTS):
        return ""
    return (
        f"its sockets in {record.runtime} were removed, so nobody could reach it any more and "
        f"it was ended; keep the runtime folder out of what is cleaned: set CAVE_RUNTIME_DIR"
    )


class Patience:
    """Waits for one answer of one kernel."""

    def __init__(self, process: Process, home: Path) -> None:
        self._process = process
        self._life = Life(process.pid, home / "log")
        self._told = False

    def check(self) -> None:
        """Look once. Raises `KernelStartError` when there is no hope, and says what to type."""
        pid = self._process.pid
        if processes.state(pid) == "T":
            if self._told:
                raise KernelStartError(
                    f"the kernel (process {pid}) is stopped, and stopped again when it was told "
                    f"to go on; type: kill -CONT {pid}, or s.restart() to go on without its "
                    f"variables"
                )
            self._told = True
            self._process.go_on()
        elif self._life.silent > QUIET:
            raise KernelStartError(
                f"the kernel (process {pid}) lives, but has not answered nor used the processor "
                f"for {QUIET:.0f} seconds; try again later, or type s.restart() to go on without "
                f"its variables"
            )
