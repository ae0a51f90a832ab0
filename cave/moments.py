"""Moments of a session: what `at=` may say, and which snapshots are kept for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from cave.errors import SnapshotNotFound
from cave.events import SnapshotCommitted
from cave.history import History
from cave.report import Snapshot

FEW = 128
"""Snapshots of which none needs to go for their number."""
BEYOND = 100
"""Snapshots of a session that is never idle that may be beyond the rule, times the slack."""
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


SPACE = 1 << 30
"""Bytes that automatic snapshots may take in any case."""
SHARE = 8
"""Times the size of the namespace that they may take."""
SLACK = 1.25
"""How far over the rule a session that is never idle may go."""


def overdue(history: History, *, slack: float = 1.0) -> bool:
    """Whether there are more snapshots, or larger ones, than the rule of retention allows."""
    there = history.lasting.snapshots
    if len(there) <= FEW and _taken(there.values()) <= _space(history) * slack:
        return False
    return len(there) - len(kept(history)) > BEYOND * (slack - 1)


def _taken(events: Iterable[SnapshotCommitted]) -> int:
    return sum(event.written for event in events)


def _space(history: History) -> int:
    latest = history.lasting.snapshots.get(history.lasting.latest)
    return max(SPACE, SHARE * latest.size if latest else 0)


def kept(history: History) -> set[str]:
    """The snapshots that stay: by the rule of retention, and of those as many as there is room
    for, the newest first; named ones and the latest two in any case."""
    from cave.snapshot import Retention

    lasting, ends = history.lasting, turn_ends(history)
    rule = Retention().keep(
        (id, event.cell, event.name, id in ends) for id, event in lasting.snapshots.items()
    )
    stay = {lasting.latest, *list(lasting.snapshots)[-2:]}
    stay |= {id for id, event in lasting.snapshots.items() if event.name}
    room = _space(history) - _taken(lasting.snapshots[id] for id in stay if id in lasting.snapshots)
    for id in reversed(lasting.snapshots):
        if id in rule and id not in stay:
            room -= lasting.snapshots[id].written
            if room < 0:
                break
            stay.add(id)
    return stay


def turn_ends(history: History) -> set[str]:
    """Snapshots at the ends of the last 100 turns."""
    return set(list(history.lasting.after_turn.values())[-100:])
