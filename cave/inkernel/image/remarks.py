"""What recipes have to say while a stream is read: notes that no caller asked for yet.

A recipe runs deep inside the unpickler, where nobody can be told that a file has changed or
a folder is gone. It leaves a remark here; whoever loads the image takes them all at its end.
"""

from __future__ import annotations

from typing import Any

from .lost import Lost

_remarks: list[tuple[str, str, str, str]] = []


def remark(kind: str, name: str, type: str, reason: str) -> None:
    """Leave a note about the root `name`: kind is lost, rebuilt, changed or assumed."""
    entry = (kind, name, type, reason)
    if entry not in _remarks:
        _remarks.append(entry)


def gone(name: str, type: str, reason: str) -> Any:
    """The placeholder of an object that turns out, at reading, not to come back."""
    remark("lost", name, type, reason)
    return Lost(name, type, reason)


def take() -> list[Any]:
    """All remarks since the last call, as notes."""
    if not _remarks:
        return []
    from .pickler import Note

    found = [Note(*entry) for entry in _remarks]
    _remarks.clear()
    return found
