"""Killing kernels, as people's machines do."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

import cave


def kill(s: cave.Session) -> None:
    """kill -9 of the session's kernel; returns when the process is gone."""
    assert s.kernel.pid is not None
    kill_process(s.kernel.pid)


def kill_process(pid: int) -> None:
    """kill -9; returns when the process is gone."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.005)
