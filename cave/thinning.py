"""Which snapshots stay: by number, by age and by the room that they take."""

from __future__ import annotations

from collections.abc import Iterable

from cave.events import SnapshotCommitted
from cave.history import History
from cave.snapshot import Retention

FEW = 128
"""Snapshots of which none needs to go for their number."""
BEYOND = 100
"""Snapshots of a session that is never idle that may be beyond the rule, times the slack."""
AT_MOST = 3
"""So many more may go, by the rule, for each snapshot that is new."""
LAST = 100
"""Automatic snapshots that are kept whole, where nothing else is said."""
SPACE = 1 << 30
"""Bytes that automatic snapshots may take in any case."""
SHARE = 8
"""Times the size of the namespace that they may take."""
SLACK = 1.25
"""How far over the rule a session that is never idle may go."""


def overdue(history: History, *, last: int = LAST, slack: float = 1.0) -> bool:
    """Whether there are more snapshots, or larger ones, than the rule of retention allows."""
    there = history.lasting.snapshots
    crowded = _taken(there.values()) > _space(history) * slack
    if len(there) <= min(FEW, last) and not crowded:
        return False
    limit = 0 if crowded else BEYOND * (slack - 1)
    counted = history.lasting.beyond
    if counted is not None and counted[1] + AT_MOST * (len(there) - counted[0]) <= limit:
        return False
    beyond = len(there) - len(kept(history, last=last))
    history.lasting.beyond = len(there), beyond
    return beyond > limit


def _taken(events: Iterable[SnapshotCommitted]) -> int:
    return sum(event.written for event in events)


def _space(history: History) -> int:
    latest = history.lasting.snapshots.get(history.lasting.latest)
    return max(SPACE, SHARE * latest.size if latest else 0)


def kept(history: History, *, last: int = LAST) -> set[str]:
    """The snapshots that stay: by the rule of retention, and of those as many as there is room
    for, the newest first; named ones and the latest two in any case."""
    lasting, ends = history.lasting, _turn_ends(history)
    rule = Retention(last=last).keep(
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
    return stay - _inside(history)


def _inside(history: History) -> set[str]:
    """Snapshots taken in the midst of cells, which nobody comes back to any more."""
    lasting = history.lasting
    inside = {id for id, event in lasting.snapshots.items() if event.inside is not None}
    return inside - {lasting.latest}


def _turn_ends(history: History) -> set[str]:
    """Snapshots at the ends of the last 100 turns."""
    return set(list(history.lasting.after_turn.values())[-100:])
