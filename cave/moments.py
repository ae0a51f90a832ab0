"""Moments of a session: what `at=` may say, and which snapshots are kept for it."""

from __future__ import annotations

import re
from operator import index
from typing import Any

from cave.errors import ConfigError, SnapshotNotFound
from cave.history import History
from cave.report import Snapshot

_TURN = re.compile(r"(before )?turn (\d+)")
_OTHER = re.compile(r"(before )?turn \d+|[+-]?\d+|\d{6,}-[0-9a-f]{8}")
"""Texts that are moments already."""
_LONGEST = 200


def checked_name(name: Any) -> str:
    """What a snapshot may be called: a line of text that is no other moment; or nothing.

    Raises `ConfigError`.
    """
    if not isinstance(name, str):
        raise ConfigError(f"a snapshot is called by a text, not {type(name).__name__!r}")
    if len(name) > _LONGEST or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"a snapshot cannot be called {name[:40]!r}: its name is one line of at most "
            f"{_LONGEST} characters, without blanks around it"
        )
    if _OTHER.fullmatch(name):
        raise ConfigError(
            f"a snapshot cannot be called {name!r}, which is a moment already; call it "
            f"{f'at {name}'!r}, say"
        )
    return name


def resolve(history: History, at: Any) -> str:
    """Id of the snapshot that `at` means: a cell number, "turn 4", "before turn 4", the name
    or id of a snapshot, a Snapshot. Raises `SnapshotNotFound`, `ConfigError`."""
    lasting, at = history.lasting, _moment(at)
    found: str | None
    if isinstance(at, Snapshot):
        found = at.id
    elif isinstance(at, int):
        found = lasting.of_cell.get(at)
    elif turn := _TURN.fullmatch(at):
        moments = lasting.before_turn if turn[1] else lasting.after_turn
        found = moments.get(int(turn[2]))
    else:
        found = _named(history, at)
    if found and found in lasting.snapshots:
        return found
    raise SnapshotNotFound(f"there is no snapshot for at={at!r}: {_there_are(history, at)}")


def _moment(at: Any) -> int | str | Snapshot:
    if isinstance(at, str | Snapshot):
        return at
    if hasattr(type(at), "__index__") and not isinstance(at, bool):
        return index(at)
    raise ConfigError(
        f"at={at!r} is no moment: it is a cell's number, 'turn 4', 'before turn 4', the name of a "
        f"snapshot or a Snapshot"
    )


def _named(history: History, at: str) -> str | None:
    snapshots = history.lasting.snapshots
    if at in snapshots:
        return at
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
