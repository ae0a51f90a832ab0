"""Which files of a folder a cell changed, whoever in the process wrote them.

The system tells of it where it can (inotify): a cell that changed nothing then costs one
call, however many files there are. Elsewhere the folder is looked through after each cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

ENTRIES = 10_000
"""Files that are looked through where the system does not tell."""
FOLDERS = 1_000
"""Folders that the system is asked to watch."""
_SKIPPED = "__pycache__"

_MODIFY, _ATTRIB = 0x2, 0x4
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _IS_DIR = 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_CHANGES = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


class TooMany(Exception):
    """There is more than can be looked through."""


class Tree:
    """The files of a folder, against those of the last look."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self._names: Callable[[], list[str]] | None = None
        self._told = False
        with contextlib.suppress(OSError, TooMany):
            self._names = Watched(self.root).names
            self._told = True
        if self._names is None:
            with contextlib.suppress(TooMany):
                self._names = Looked(self.root).names

    def skip(self) -> None:
        """What has changed until now is no cell's doing, as far as that is cheap to know."""
        if self._told:
            self.look()

    def look(self) -> list[str] | None:
        """Names, below the folder, of what differs from the last look; None: not known."""
        if self._names is None:
            return None
        try:
            return self._names()
        except TooMany:
            self._names = None
            return None


class Looked:
    """A folder that is looked through again and again. Raises `TooMany`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known = scan(root)

    def names(self) -> list[str]:
        """What differs from the last time. Raises `TooMany`."""
        before, now = self._known, scan(self._root)
        self._known = now
        if now == before:
            return []
        differing = [name for name in now if now[name] != before.get(name)]
        return [*differing, *(name for name in before if name not in now)]


class Watched:
    """A folder that the system tells of. Raises `OSError` where it does not."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._folders: dict[int, str] = {}
        try:
            self._watch("")
        except BaseException:
            os.close(self._fd)
            raise

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def _watch(self, top: str) -> list[str]:
        """Watch a folder and those below it; what is in them."""
        waiting, found = [top], []
        while waiting:
            at = waiting.pop()
            if len(self._folders) >= FOLDERS:
                raise TooMany
            path = os.fsencode(os.path.join(self._root, at))
            mask = _CHANGES | _ONLY_FOLDERS | _NO_LINKS
            number = self._checked(self._libc.inotify_add_watch(self._fd, path, mask))
            self._folders[number] = at
            with os.scandir(os.path.join(self._root, at)) as entries:
                for entry in entries:
                    if entry.name != _SKIPPED:
                        name = _join(at, entry.name)
                        found.append(name)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(name)
        return found

    def names(self) -> list[str]:
        """What the system has told of since the last time. Raises `TooMany`."""
        found: dict[str, None] = {}
        while events := self._read():
            at = 0
            while at < len(events):
                number, mask, _, size = _EVENT.unpack_from(events, at)
                at += _EVENT.size + size
                name = os.fsdecode(events[at - size : at].rstrip(b"\0"))
                self._told(number, mask, name, found)
        return list(found)

    def _told(self, number: int, mask: int, name: str, found: dict[str, None]) -> None:
        if mask & _OVERFLOW:
            found["(too many to name)"] = None
        if mask & _IGNORED:
            self._folders.pop(number, None)
        folder = self._folders.get(number)
        if folder is None or not name or name == _SKIPPED:
            return
        full = _join(folder, name)
        found[full] = None
        if mask & _IS_DIR and mask & (_CREATE | _MOVED_TO):
            with contextlib.suppress(OSError):  # it is gone again
                found.update(dict.fromkeys(self._watch(full)))

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return b""


def scan(root: str) -> dict[str, tuple[int, ...]]:
    """Inode, size and time of change of all below a folder. Raises `TooMany`."""
    found: dict[str, tuple[int, ...]] = {}
    waiting = [""]
    while waiting:
        at = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(os.path.join(root, at)) as entries:
            for entry in entries:
                if entry.name != _SKIPPED:
                    name = _join(at, entry.name)
                    found[name] = _facts(entry)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
        if len(found) > ENTRIES:
            raise TooMany
    return found


def _facts(entry: os.DirEntry[str]) -> tuple[int, ...]:
    """Nothing for a folder: its own times tell of what is in it."""
    if entry.is_dir(follow_symlinks=False):
        return ()
    try:
        facts: Any = entry.stat(follow_symlinks=False)
    except OSError:
        return (0,)
    return facts.st_ino, facts.st_size, facts.st_ctime_ns


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
