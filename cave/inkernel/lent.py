"""Files in memory that are longer than this process may make any.

A confined kernel has a limit for the length of files, and what it gives to its host may be
longer. Its keeper, which has no such limit, lends files that are long already: they are filled
by mapping them, and cut short to what is in them.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket

_SLICE = 64 << 20
_keeper = {"fd": -1}
"""Where it is asked; it tells so in the environment of a kernel that has a limit."""


def remember() -> None:
    """Take the keeper's word out of the environment, before the first cell could see it."""
    fd = _keeper["fd"] = int(os.environ.pop("CAVE_LENDER", "-1"))
    if fd >= 0:
        os.set_inheritable(fd, False)  # noqa: FBT003


def limit() -> float:
    """Bytes of the longest file that can be made here."""
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return float("inf") if soft == resource.RLIM_INFINITY or _keeper["fd"] < 0 else soft


def file() -> int:
    """A file in memory that is far too long. Raises `OSError` when nobody lends any."""
    with socket.socket(fileno=os.dup(_keeper["fd"])) as asking:
        asking.sendall(b"?")
        _, fds, _, _ = socket.recv_fds(asking, 1, 1)
    if not fds:
        raise OSError("the keeper lends no file")
    os.set_inheritable(fds[0], False)  # noqa: FBT003
    return fds[0]


def write(fd: int, view: memoryview, offset: int) -> None:
    """All of `view` into a lent file."""
    data, done = view.cast("B"), 0
    while done < data.nbytes:
        at = offset + done
        start = at - at % mmap.ALLOCATIONGRANULARITY
        count = min(data.nbytes - done, _SLICE)
        with mmap.mmap(fd, at - start + count, offset=start) as memory:
            memory[at - start : at - start + count] = data[done : done + count]
        done += count
