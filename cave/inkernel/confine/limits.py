"""Limits of what a kernel and its children use of the machine.

Memory is limited by what is written to (RLIMIT_DATA): a limit of addresses (RLIMIT_AS) would
keep threads from starting. Each process of a kernel has the limit for itself.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

_KINDS = {
    "data": "RLIMIT_DATA",
    "file": "RLIMIT_FSIZE",
    "processes": "RLIMIT_NPROC",
    "cpu": "RLIMIT_CPU",
}


def apply(limits: Mapping[str, int], *, uid: int) -> tuple[str, dict[str, str]]:
    """Set hard limits; what there is to say, and which of them do not count, with the reason.

    Processes are counted on top of those that the user has already.
    """
    lacking = {}
    for kind, number in limits.items():
        what = getattr(resource, _KINDS[kind], None)
        if what is None:
            lacking[kind] = "this system has no such limit"
        elif kind == "processes":
            _set(what, number + _tasks(uid))
            if uid == 0:
                lacking[kind] = "those of root are not counted"
        else:
            _set(what, number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = [f"{kind} {number:,}" for kind, number in limits.items() if kind not in lacking]
    return ", ".join(said), lacking


def _set(what: int, number: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        number = min(number, hard)
    resource.setrlimit(what, (number, number))


def _tasks(uid: int) -> int:
    """Processes and threads of a user."""
    found = 0
    try:
        names = os.listdir("/proc")
    except OSError:
        return 0
    for name in filter(str.isdigit, names):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                found += os.stat(f"/proc/{name}/task").st_nlink - 2
        except OSError:  # it has ended
            continue
    return found
