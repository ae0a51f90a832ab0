"""Named places where tests make the process die, stop or fail.

`hit(name)` is one dictionary look-up when nothing is armed. Tests arm a point through
`arm`, or for a child process through the environment: `CAVE_FAILPOINTS="name=kill"` with
the actions `kill` (SIGKILL to itself), `stop` (SIGSTOP), `enospc` and `eio` (`OSError`);
`name=kill@3` acts on the third hit.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass

POINTS: dict[str, str] = {
    "turn.before_row": "before a turn is journaled",
    "step.before_row": "after the operator's reply, before it is journaled",
    "step.before_settle": "after the operator's reply is journaled, before its cost is settled",
    "cell.before_send": "after a cell is journaled, before it is sent",
    "cell.after_send": "after a cell is sent",
    "cell.before_finish": "after a cell ended, before its end is journaled",
    "store.before_commit": "inside the journal's transaction, before it commits",
    "store.after_commit": "after the journal's commit, before the caller knows",
    "snapshot.after_image": "after the kernel gave its image, before anything is written",
    "snapshot.before_event": "after a snapshot is on disk, before it is journaled",
    "blob.before_rename": "after a blob is written, before it has its name",
    "snapshot.before_write": "before the file of a snapshot is made",
    "snapshot.mid_write": "after a part of a snapshot's file is written",
    "snapshot.before_manifest": "after a snapshot's data, before its manifest",
    "snapshot.before_sync": "after a snapshot's file is written, before it is synced",
    "snapshot.after_sync": "after a snapshot's file is synced, before its folder is",
    "snapshot.before_return": "after a snapshot is durable, before the caller knows",
    "snapshot.mid_link": "while a fork links the packs that it needs",
    "effect.before_intent": "before the intent of an effect is journaled",
    "effect.after_intent": "after the intent of an effect, before its call",
    "effect.before_call": "in the thread of the call, before the last look at the lease",
    "effect.after_call": "after the call of an effect, before anything is kept of it",
    "effect.before_result": "before the result of an effect is journaled",
    "effect.after_result": "after the result of an effect, before the cell has it",
    "approval.before_request": "before a request for leave is journaled",
    "approval.after_request": "after a request for leave is journaled, before anybody is asked",
    "approval.before_answer": "inside the transaction of an answer, before it commits",
    "approval.after_answer": "after an answer is kept, before who gave it knows",
    "approval.before_settled": "before an answer is journaled",
    "approval.after_settled": "after an answer is journaled, before what it allows begins",
    "progress.after_commit": "after the progress of a cell is a snapshot, before it is let go of",
    "snapshot.mid_retire": "while snapshots are retired, between two files",
}
"""Every failpoint of the code, with the moment that it stands for."""


@dataclass(slots=True)
class _Armed:
    action: str
    after: int
    hits: int = 0


_armed: dict[str, _Armed] = {}


def arm(name: str, action: str, *, after: int = 1) -> None:
    """Let the `after`-th hit of `name` do `action` (`kill`, `stop`, `enospc`, `eio`)."""
    if name not in POINTS:
        raise ValueError(f"no failpoint {name!r}; there are: {', '.join(sorted(POINTS))}")
    _armed[name] = _Armed(action, after)


def disarm() -> None:
    """Disarm every failpoint."""
    _armed.clear()


def hit(name: str) -> None:
    """Do what is armed at `name`, if anything is."""
    if _armed and name in _armed:
        _act(_armed[name])


def _act(armed: _Armed) -> None:
    armed.hits += 1
    if armed.hits != armed.after:
        return
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # to this thread, which goes no step further; sent to the process it might
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "enospc":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "eio":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        case other:
            raise ValueError(f"unknown failpoint action {other!r}")


def _arm_from_environment() -> None:
    for item in filter(None, os.environ.get("CAVE_FAILPOINTS", "").split(",")):
        name, _, action = item.partition("=")
        action, _, after = action.partition("@")
        arm(name, action, after=int(after or 1))


_arm_from_environment()
