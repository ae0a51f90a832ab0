"""Copying large memory beside the cells: a forked child fills the file of an image.

The child is a still picture of the kernel. It calls nothing but `pwrite`, `fcntl`, `write`
and `_exit`, by a library handle that keeps the interpreter's lock: no lock of Python, of
malloc or of a library that another thread held when we forked is ever asked for. It is forked
by libc's `_Fork`, without anybody's fork handlers (those of OpenBLAS hang beside a thread
that computes), and only while no other thread runs. Where that cannot be, the kernel copies
itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import lent, threads
from . import maps
from .buffers import address_at

if TYPE_CHECKING:
    from .fill import Parts

WORTH = 64 << 20
"""Bytes of large memory from which a child is worth its fork."""
_LARGE = 1 << 20
_SLICE = 64 << 20
_SEALS, _ADD_SEALS = 0x000F, 1033
_SWITCH = 100.0
"""Seconds: no thread asks for the interpreter's lock while we fork, else the child would wait
for that thread to take it."""
_SETTLED = 0.006
"""Seconds after which no thread waits by the old interval (5 ms)."""
_TRIES = 6

Job = tuple[int, int, int]
"""Address, bytes, offset in the file."""


class Copier:
    """At most one child at a time."""

    def __init__(self) -> None:
        self._child = 0
        self.refusal = ""
        """Why there will be no child any more: one has failed."""
        self._libc = ctypes.PyDLL(None)
        if not hasattr(self._libc, "_Fork") or not hasattr(os, "memfd_create"):
            self.refusal = "this system cannot fork without handlers"
        self._libc.pwrite.argtypes = (
            ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long,
        )  # fmt: skip
        self._libc.pwrite.restype = ctypes.c_ssize_t

    def start(self, parts: Parts, fd: int) -> int | None:
        """Fill the file: all but large memory now, that by a child. The pipe on which the
        child says that the file is complete and sealed; None when it is all to be done here."""
        self.reap()
        if self._child or self.refusal or parts.end > lent.limit():
            return None
        jobs = _jobs(parts)
        if sum(size for _, size, _ in jobs.values()) < WORTH:
            return None
        parts.write(fd, but=jobs.keys())
        reading, writing = os.pipe()
        try:
            with quiet() as calm:
                pid = self._fork(list(jobs.values()), fd, writing) if calm else -1
        finally:
            os.close(writing)
        if pid < 0:
            os.close(reading)
            return None
        self._child = pid
        return reading

    def _fork(self, jobs: list[Job], fd: int, pipe: int) -> int:
        libc = self._libc
        pid: int = libc._Fork()
        if pid:
            return pid
        pwrite, leave = libc.pwrite, libc._exit
        for address, size, offset in jobs:
            done = 0
            while done < size:
                got = pwrite(fd, address + done, min(size - done, _SLICE), offset + done)
                if got <= 0:
                    leave(1)
                done += got
        if libc.fcntl(fd, _ADD_SEALS, _SEALS) != 0:
            leave(2)
        libc.write(pipe, b"+", 1)
        leave(0)
        raise AssertionError

    def reap(self) -> bool:
        """Bury the child if it has ended; whether there is none (any more)."""
        if not self._child:
            return True
        try:
            pid, status = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:  # a cell waited for any child
            pid, status = self._child, 0
        if pid and status:
            self.refusal = f"a copying child failed ({os.waitstatus_to_exitcode(status)})"
        if pid:
            self._child = 0
        return not self._child

    def kill(self) -> None:
        """The child takes too long. From any thread."""
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)


def _jobs(parts: Parts) -> dict[int, Job]:
    """Large private memory: a child sees that as it is now."""
    large = {
        at: (address_at(view), view.nbytes, parts.layout[at][0])
        for at, view in enumerate(parts.views)
        if view.nbytes >= _LARGE
    }
    if sum(size for _, size, _ in large.values()) < WORTH:
        return {}
    wanted = [(address, address + size) for address, size, _ in large.values()]
    fit = maps.are_private(wanted, files=True)
    return {at: job for (at, job), good in zip(large.items(), fit, strict=True) if good}


@contextlib.contextmanager
def quiet() -> Iterator[bool]:
    """Whether no other thread runs, nor asks for the interpreter's lock, inside of this."""
    interval, collecting = sys.getswitchinterval(), gc.isenabled()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    gc.disable()
    sys.setswitchinterval(_SWITCH)
    try:
        yield not threads.of_user() and any(_rests() for _ in range(_TRIES))
    finally:
        sys.setswitchinterval(interval)
        if collecting:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _rests() -> bool:
    time.sleep(_SETTLED)
    me = str(threading.get_native_id())
    return all(_state(task) not in "RD" for task in os.listdir("/proc/self/task") if task != me)


def _state(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
