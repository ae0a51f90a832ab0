from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cave.store import holders, this_process
from cave.store.holders import is_dead, same_boot, start_time

if TYPE_CHECKING:
    import pytest


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_this_process_lives_and_is_unlike_any_other_call() -> None:
    """A holder names this process; two calls differ in the token alone."""
    one, two = this_process(), this_process()
    assert (one.pid, one.host) == (os.getpid(), two.host)
    assert one.token != two.token
    assert replace(one, token="") == replace(two, token="")
    assert not is_dead(one)
    assert same_boot(one.boot)


def test_a_killed_process_is_dead_before_it_is_reaped() -> None:
    """A zombie holds nothing, nor does a pid that is gone."""
    process = sleeper()
    holder = replace(this_process(), pid=process.pid, started=start_time(process.pid) or 0.0)
    assert not is_dead(holder)
    process.send_signal(signal.SIGSTOP)
    assert not is_dead(holder), "a stopped process may wake"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(holder)
    process.wait()
    assert is_dead(holder)


def test_nothing_is_claimed_of_other_machines_and_namespaces() -> None:
    """A pid means something only on its own machine and in its own pid namespace."""
    gone = replace(this_process(), pid=2**22 + 1)
    assert is_dead(gone)
    assert not is_dead(replace(gone, host="elsewhere"))
    boot = gone.boot.partition("/")[0]
    assert not is_dead(replace(gone, boot=f"{boot}/another namespace"))
    assert is_dead(replace(this_process(), boot="the boot before"))


def test_without_proc_ps_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no /proc, start times come from ps, and are as good."""
    monkeypatch.setattr(holders, "PROC", tmp_path)
    process = sleeper()
    started = start_time(process.pid)
    assert started is not None
    assert start_time(process.pid) == started
    process.kill()
    process.wait()
    assert start_time(process.pid) is None
