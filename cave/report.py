"""What people are told of snapshots: Snapshot, Diff, RestoreReport."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields

from cave.events import (
    Restored,
    RestoreReason,
    SkillsOffered,
    SnapshotCommitted,
    Standing,
    Variable,
)
from cave.image import worst
from cave.turn import Shown

SHOWN = 5
"""Names that a line gives of those that are only assumed to be as they were."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot(Shown):
    """A recoverable image of the namespace."""

    id: str
    name: str
    """What a person called it; empty for automatic ones."""
    cell: int
    """The cell after which it was taken; 0 before the first."""
    at: float
    """Unix seconds."""
    size: int
    """Bytes of everything that it holds."""
    written: int
    """Bytes that were new when it was taken."""
    vars: tuple[Variable, ...] = ()
    """Its variables, each with its fidelity."""
    inside: int | None = None
    """The cell in the midst of which it was taken; None for one between cells."""

    @classmethod
    def of(cls, event: SnapshotCommitted, variables: Iterable[Variable] = ()) -> Snapshot:
        """The snapshot that an event tells of."""
        return cls(
            id=event.snapshot,
            name=event.name,
            cell=event.cell,
            at=event.at,
            size=event.size,
            written=event.written,
            vars=tuple(variables),
            inside=None if event.inside is None else event.inside.cell,
        )

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        where = f"after cell {self.cell}" if self.inside is None else f"inside cell {self.inside}"
        return f"<Snapshot {self.id}{name}: {where}, {at}>"


@dataclass(frozen=True, slots=True)
class Diff(Shown):
    """What differs between two moments: names, each once."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{mark} {', '.join(names)}"
            for mark, names in (("+", self.added), ("~", self.changed), ("-", self.removed))
            if names
        ]
        return "\n".join([*lines, f"{len(self.unchanged)} unchanged"])

    def __repr__(self) -> str:
        return f"<Diff {'; '.join(str(self).splitlines())}>"


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a RestoreReport."""

    name: str
    type: str
    cell: int | None
    """The cell that made it, where that is known."""
    reason: str = ""

    def __str__(self) -> str:
        made = f", cell {self.cell}" if self.cell else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.name} ({self.type}{made}){why}"


@dataclass(frozen=True, slots=True, eq=False)
class RestoreReport(Shown):
    """How each name came back.

    `kept` had not changed and stayed in the kernel; `restored` are exact; `rebuilt` were made
    again by a recipe; `changed` are not what they were, `assumed` were not looked at when the
    snapshot was taken, `lost` are placeholders that raise when they are used.
    """

    kept: tuple[Entry, ...] = ()
    restored: tuple[Entry, ...] = ()
    rebuilt: tuple[Entry, ...] = ()
    changed: tuple[Entry, ...] = ()
    assumed: tuple[Entry, ...] = ()
    lost: tuple[Entry, ...] = ()
    effects_after: tuple[Entry, ...] = ()
    """Effects that stand although the namespace went back."""
    snapshot: str = ""
    cell: int = 0
    """The namespace is as it was after this cell."""
    why: RestoreReason = "asked"
    versions: tuple[tuple[str, str, str], ...] = ()
    """Libraries whose version is another: name, then, now."""
    seconds: float = 0.0
    undone: tuple[int, ...] = ()
    """Cells that had ended later: what they did to the namespace is not in it."""

    @classmethod
    def of(
        cls, event: Restored, gone: Iterable[Variable] = (), *, undone: Collection[str] = ()
    ) -> RestoreReport:
        """The report of an event; `gone` are variables that no snapshot has, `undone` effects
        that were compensated since."""
        notes = worst(event.notes)
        kinds: dict[str, list[Entry]] = {}
        for variable in event.variables:
            note = notes.pop(variable.name, None)
            kind = note.kind if note else "kept" if variable.name in event.kept else "restored"
            reason = note.reason if note else ""
            entry = Entry(variable.name, variable.type, variable.cell, reason)
            kinds.setdefault(kind, []).append(entry)
        gone = tuple(gone)
        cells = {variable.name: variable.cell for variable in gone}
        for note in notes.values():
            entry = Entry(note.name, note.type, cells.get(note.name), note.reason)
            kinds.setdefault(note.kind, []).append(entry)
        named = {entry.name for entries in kinds.values() for entry in entries}
        kinds.setdefault("lost", []).extend(
            Entry(v.name, v.type, v.cell, _gone(v, event)) for v in gone if v.name not in named
        )
        return cls(
            **{kind: tuple(entries) for kind, entries in kinds.items()},
            snapshot=event.snapshot,
            cell=event.cell,
            why=event.reason,
            versions=event.versions,
            seconds=event.seconds,
            undone=event.undone,
            effects_after=tuple(
                Entry(s.effect, s.skill, s.cell, _stands(s))
                for s in event.standing
                if s.effect not in undone
            ),
        )

    @property
    def exact(self) -> bool:
        """Whether every name came back as it was."""
        return not (self.rebuilt or self.changed or self.assumed or self.lost or self.undone)

    @property
    def lines(self) -> list[str]:
        """All of it in lines: counts of what is well, names of what is not."""
        well = [f"{len(self.restored)} restored"] if self.restored else []
        well += [f"{len(self.kept)} kept as they are"] if self.kept else []
        if not well:
            amiss = self.rebuilt or self.changed or self.assumed or self.lost
            well = ["nothing came back as it was" if amiss else "empty"]
        lines = [f"the namespace is as after cell {self.cell}: {', '.join(well)}"]
        if self.undone:
            lines.append(f"without what came later: {_cells(self.undone)}")
        for name in ("rebuilt", "changed", "lost"):
            lines += [f"{name}: {entry}" for entry in getattr(self, name)]
        if self.assumed:
            names = ", ".join(entry.name for entry in self.assumed[:SHOWN])
            more = ", ..." if len(self.assumed) > SHOWN else ""
            lines.append(
                f"assumed: {len(self.assumed)} that no cell was seen to reach, and that had not "
                f"been looked at yet ({names}{more})"
            )
        lines += [
            f"{name} was {then}, is {now or 'not installed'}" for name, then, now in self.versions
        ]
        return lines + [f"stands: {effect}" for effect in self.effects_after]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        counts = [
            f"{len(value)} {f.name}"
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), tuple)
            and value
            and f.name not in {"versions", "undone"}
        ]
        return f"<RestoreReport after cell {self.cell}: {', '.join(counts) or 'empty'}>"


def _cells(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:20])) + (" ..." if numbers[20:] else "")
    return f"cell{'s' * (len(numbers) > 1)} {shown}"


def told_skills(event: SkillsOffered) -> str:
    """Which skills are others than when the session was left; nothing where none is."""
    lines = [
        f"skill {name!r} was version {then} and is {now} now"
        if now
        else f"skill {name!r} has other code than before, and is still version {then}"
        for name, then, now in event.changed
    ]
    return "; ".join(lines)


def _stands(standing: Standing) -> str:
    told = f"{standing.call} was done"
    return f"{told}; s.undo({standing.effect!r}) calls {standing.undo}" if standing.undo else told


def _gone(variable: Variable, event: Restored) -> str:
    if variable.cell is not None and variable.cell <= event.cell:
        return "lost with an earlier kernel, and not made again since"
    return f"made after the snapshot, which holds the namespace after cell {event.cell}"
