"""Moments of a session: what `at=` may say, and which snapshots are kept for it."""

from __future__ import annotations

import re
from typing import Any

from cave.errors import SnapshotNotFound
from cave.history import History
from cave.report import Snapshot

_TURN = re.compile(r"(before )?turn (\d+)")


def resolve(history: History, at: Any) -> str:
    """Id of the snapshot that `at` means: a cell number, "turn 4", "before turn 4", the name
    or id of a snapshot, a Snapshot. Raises `SnapshotNotFound`."""
    lasting = history.lasting
    found: str | None
    if isinstance(at, Snapshot):
        found = at.id
    elif isinstance(at, int) and not isinstance(at, bool):
        found = lasting.of_cell.get(at)
    elif isinstance(at, str) and (turn := _TURN.fullmatch(at)):
        moments = lasting.before_turn if turn[1] else lasting.after_turn
        found = moments.get(int(turn[2]))
    else:
        found = _named(history, at)
    if found and found in lasting.snapshots:
        return found
    raise SnapshotNotFound(f"there is no snapshot for at={at!r}: {_there_are(history, at)}")


def _named(history: History, at: object) -> str | None:
    snapshots = history.lasting.snapshots
    if at in snapshots:
        return str(at)
    named = [id for id, event in snapshots.items() if at and event.name == at]
    return named[-1] if named else None


def _there_are(history: History, at: object) -> str:
    snapshots = history.lasting.snapshots.values()
    if not snapshots:
        return "none was taken yet; type s.snapshot()"
    if isinstance(at, int):
        cells = sorted({event.cell for event in snapshots}, key=lambda n: (abs(n - at), n))[:3]
        return f"the nearest are after the cells {', '.join(map(str, sorted(cells)))}"
    names = [event.name for event in snapshots if event.name]
    named = f"names are {', '.join(map(repr, names[-10:]))}; " if names else ""
    return f"{named}cells go from {min(e.cell for e in snapshots)} to {history.lasting.last_cell}"


def changed_between(history: History, old: str, new: str) -> frozenset[str] | None:
    """Names that cells were seen to change on the way from one snapshot to another; None when
    one does not lead to the other."""
    lasting = history.lasting
    at, names = new, frozenset[str]()
    while at != old:
        if at not in lasting.changed:
            return None
        names |= lasting.changed[at]
        at = lasting.parents.get(at, "")
    return names
