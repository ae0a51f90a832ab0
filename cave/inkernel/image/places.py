"""Paths below the session's working directory: they move with it.

A fork has a copy of that directory, and a home may be moved. Streams hold paths as they
were; readers ask `here` for what they are now.
"""

from __future__ import annotations

import os

_moved: list[tuple[str, str]] = []
_home: list[str] = [""]


def remember(home: str) -> None:
    """The session's folder."""
    _home[0] = home.rstrip(os.sep)


def moved(old: str, new: str) -> None:
    """From now on, what was below `old` is below `new`."""
    _moved[:] = [(old.rstrip(os.sep), new.rstrip(os.sep))] if old and old != new else []


def told(path: str) -> str:
    """A path for people: below the session's folder it is relative, as it is in a fork."""
    home = _home[0]
    return path[len(home) + 1 :] if home and path.startswith(home + os.sep) else path


def here(path: str) -> str:
    """Where a path of the snapshot is now."""
    for old, new in _moved:
        if path == old or path.startswith(old + os.sep):
            return new + path[len(old) :]
    return path
