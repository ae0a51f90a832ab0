"""Who operates a session: naming this process, and telling whether another still lives.

A process is known by host, boot id, pid and start time, so that neither a pid used again nor
a machine started again is taken for the old one. Linux reads `/proc`; elsewhere `ps` is asked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from functools import lru_cache
from pathlib import Path

from cave.ports import Holder

PROC = Path("/proc")


def this_process() -> Holder:
    """A `Holder` for this process; its token is unlike that of any other call."""
    pid = os.getpid()
    return Holder(
        host=socket.gethostname(),
        boot=boot_id(),
        pid=pid,
        started=start_time(pid) or 0.0,
        token=uuid.uuid4().hex,
    )


def same_boot(boot: str) -> bool:
    """Whether `boot` is this machine since its last start: clocks since then are one clock."""
    return boot.partition("/")[0] == boot_id().partition("/")[0]


def is_dead(holder: Holder) -> bool:
    """Whether the process is known to have ended; never guessed of another machine.

    Of a process in another pid namespace nothing is known either: its lease's end decides.
    """
    if holder.host != socket.gethostname():
        return False
    if not same_boot(holder.boot):
        return True
    return holder.boot == boot_id() and start_time(holder.pid) != holder.started


@lru_cache(maxsize=1)
def boot_id() -> str:
    """What changes at each start of the machine, and between pid namespaces (containers)."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _ask("sysctl", "-n", "kern.boottime")[:60]
    return f"{boot}/{_pid_namespace()}"


def _pid_namespace() -> str:
    try:
        return (PROC / "self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return ""


def start_time(pid: int) -> float | None:
    """When the process started, in the system's own count; None when it has ended."""
    if not PROC.joinpath("self/stat").exists():
        return _start_time_ps(pid)
    try:
        stat = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the name in parentheses may hold anything; fields 3 and 22 of proc_pid_stat(5)
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else float(fields[19])


def _start_time_ps(pid: int) -> float | None:
    text = _ask("ps", "-o", "lstart=", "-p", str(pid))
    if not text:
        return None
    return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))


def _ask(*command: str) -> str:
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    return result.stdout.strip()
