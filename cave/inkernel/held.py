"""What a cell leaves behind that no audit event tells of, looked for when it has ended.

Files of the session's folder that differ, descriptors that can still be written to, sockets,
shared mappings of files, child processes, threads and tasks that go on. What the kernel had
itself when it started does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import socket
import stat
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from . import deeds, threads
from .image import touch
from .tree import Tree

if TYPE_CHECKING:
    from .kernel import Kernel

_NAMED = 10
_NO_DESCRIPTOR = ("/memfd:", "/dev/", "/proc/", "/sys/")


class Held:
    """What cells hold, against what the kernel itself held at its start."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._base = str(getattr(kernel.parent, "ip", "")) + "-"
        self._tree = Tree(os.getcwd())
        self._known = dict.fromkeys(_descriptors(frozenset()), "")
        self._lasting = frozenset(
            str(fd) for fd, _, _, mode in self._known if not stat.S_IFMT(mode)
        )
        """Event counters and the like that the kernel keeps open as long as it lives."""
        self._before: dict[str, None] = {}
        self._reaped = _reaped()
        self.maps = False
        """Whether a file was ever mapped to be written."""
        self.stale = False
        """Whether something else than a cell may have opened or closed what is held."""

    def begin(self) -> None:
        """A cell begins."""
        if self.stale:
            self.stale = False
            self._before = self._now()
        self._tree.skip()
        self._reaped = _reaped()

    def end(self, noted: Collection[str], *, excused: bool) -> list[str]:
        """What is to be said of the cell besides what it has `noted` itself."""
        found = self._changed(noted)
        told = excused or any(text.startswith(("ran ", "forked")) for text in noted)
        if not told and not self._copies() and _reaped() != self._reaped:
            found.append("ran a process")
        now = self._now()
        found += {**self._before, **now}
        self._before = now
        return found

    def _now(self) -> dict[str, None]:
        found = [
            *self._open(),
            *self._mapped(),
            *(f"still running: process {name}" for name in self._children()),
            *(f"still running: thread {name}" for name in threads.of_user()),
            *(f"still running: task {name}" for name in self._tasks()),
        ]
        return dict.fromkeys(found)

    def _changed(self, noted: Collection[str]) -> list[str]:
        changed = self._tree.look()
        if changed is None:
            return ["the folder was not looked through: it has too many files"]
        words = {word for text in noted for word in text.split(" ")}
        new = [name for name in changed if name not in words]
        more = len(new) - _NAMED
        named = [f"changed {name}" for name in new[:_NAMED]]
        return [*named, f"changed {more} more files of the folder"] if more > 0 else named

    # -- descriptors -------------------------------------------------------------------------

    def _open(self) -> list[str]:
        known, now = self._known, {}
        for key in _descriptors(self._lasting):
            said = known.get(key)
            now[key] = self._said(key) if said is None else said
        self._known = now
        return [said for said in now.values() if said]

    def _said(self, key: tuple[int, int, int, int]) -> str:
        fd, mode = key[0], key[3]
        try:
            if stat.S_ISSOCK(mode):
                return self._socket(fd)
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                return ""
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                return ""
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return ""
        if not path.startswith("/") or path.startswith(_NO_DESCRIPTOR) or deeds.is_ignored(path):
            return ""
        return f"still open: {deeds.shown(path)}"

    def _socket(self, fd: int) -> str:
        it = socket.socket(fileno=fd)
        try:
            own, peer = it.getsockname(), ""
            with contextlib.suppress(OSError):
                peer = it.getpeername()
            if it.family == getattr(socket, "AF_UNIX", None):
                if str(own).startswith(self._base) or str(peer).startswith(self._base):
                    return ""
                place = deeds._address(peer or own)
                return f"still open: a socket of {place}" if place else ""
            if it.family not in {socket.AF_INET, socket.AF_INET6}:
                return ""
            said = "connected to" if peer else "bound to"
            return f"still open: a socket {said} {deeds._address(peer or own)}"
        finally:
            it.detach()

    def _mapped(self) -> list[str]:
        if not self.maps:
            return []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                lines = [line for line in file if " rw-s " in line]
        except OSError:
            return []
        self.maps = bool(lines)
        paths = {line.split(maxsplit=5)[5].strip(): None for line in lines if line.count("/")}
        return [
            f"still mapped: {deeds.shown(path)}"
            for path in paths
            if not path.startswith(("/memfd:", "/dev/zero", "/SYSV", "anon_inode:"))
            and not deeds.is_ignored(path)
        ]

    # -- what goes on ------------------------------------------------------------------------

    def _copies(self) -> int:
        """The child that copies memory for an image, if one does."""
        kernel = self._kernel
        return int(kernel.objects.images.copier._child) if kernel.objects.imaged else 0

    def _children(self) -> list[str]:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
        tracker = getattr(
            sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None
        )
        ours = {self._copies(), getattr(tracker, "_pid", None)}
        names = [_named(pid) for pid in _child_pids() if pid not in ours]
        return [name for name in names if name]

    def _tasks(self) -> list[str]:
        loop: Any = getattr(self._kernel.io_loop, "asyncio_loop", None)
        if loop is None:
            return []
        return [
            task.get_name()
            for task in asyncio.all_tasks(loop)
            if not touch._is_ours(touch._module_of(task.get_coro()))
        ]


def _descriptors(but: Collection[str]) -> list[tuple[int, int, int, int]]:
    """Descriptor, device, inode, mode of all that is open, but for those."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        if name in but:
            continue
        try:
            facts = os.fstat(int(name))
        except OSError:  # that of the listing itself
            continue
        found.append((int(name), facts.st_dev, facts.st_ino, facts.st_mode))
    return found


def _reaped() -> tuple[int, int]:
    """A count that goes up when a child process is buried."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_minflt, used.ru_nvcsw


def _child_pids() -> list[int]:
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        path = f"/proc/self/task/{task}/children"
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def _named(pid: int) -> str:
    """Number and name of a process; nothing when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return ""
    return "" if rest.split()[0] in "ZX" else f"{pid} ({head.partition('(')[2]})"
