"""`Registry`: the skills of a session by name; later ones hide earlier ones, and say so."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cave.errors import SkillError
from cave.skills.declared import Skill
from cave.skills.folder import FolderSkill
from cave.skills.loading import Entry, load


class ShadowWarning(UserWarning):
    """Two skills have one name; the message says which of them is used."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One name, and the skills that have it."""

    name: str
    used: str
    """Where the one is that the name means."""
    hidden: tuple[str, ...]
    """Where those are that it hides."""

    def __str__(self) -> str:
        return f"{self.name}: {self.used} is used, hiding {', '.join(self.hidden)}"


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of a registry, with where it was found."""

    entry: Entry
    source: str
    active: bool


class Registry:
    """Skills by name: functions, and folders with instructions.

    What is given is active: its functions can be called. What was discovered is only listed in
    the catalogue until `use` reads it.
    """

    def __init__(self, *things: Any) -> None:
        self._entries: dict[str, Listed] = {}
        self._hidden: dict[str, list[Listed]] = {}
        self._clashes: dict[str, Conflict] = {}
        self.add(*things)

    def add(self, *things: Any, source: str = "given", active: bool = True) -> list[Entry]:
        """Add what `load` takes; gives the entries. Raises `SkillError`.

        One that has the name of another hides it, with a `ShadowWarning`; the same function
        defined again takes its place in silence.
        """
        entries = load(*things)
        for entry in entries:
            if isinstance(entry, Skill):
                entry.check()
        _check_twice(entries)
        for entry in entries:
            self._enter(Listed(entry, source, active))
        return entries

    def use(self, name: str) -> str:
        """Activate a skill; gives the text that the operator reads. Raises `SkillError`."""
        found = self[name]
        if isinstance(found, Skill):
            return f"`{found.signature}`\n\n{found.description}".rstrip()
        text = found.text
        listed = self._entries[name]
        if not listed.active:
            self._compare(found)
            del self._entries[name]  # the last one activated is the one that is used
            self._entries[name] = Listed(found, listed.source, active=True)
        return text

    @property
    def functions(self) -> tuple[Skill, ...]:
        """What cells can call now: given functions, and those of the folders in use."""
        called: dict[str, Skill] = {}
        for listed in self._entries.values():
            if listed.active:
                called |= {skill.name: skill for skill in _functions(listed.entry)}
        return tuple(called.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @property
    def listed(self) -> tuple[Listed, ...]:
        """The entries that names mean, with their sources."""
        return tuple(self._entries.values())

    @property
    def catalogue(self) -> str:
        """A line for each entry, name and description: what the operator sees at first."""
        return "\n".join(
            f"- {name}: {' '.join(listed.entry.description.split())}"
            for name, listed in self._entries.items()
        )

    def conflicts(self) -> tuple[Conflict, ...]:
        """Every name that more than one skill has."""
        entries = (
            Conflict(name, self._entries[name].entry.where, tuple(h.entry.where for h in hidden))
            for name, hidden in self._hidden.items()
        )
        return (*entries, *self._clashes.values())

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name: one of its own, or a function of a folder in use."""
        if listed := self._entries.get(name):
            return listed.entry
        return next((skill for skill in self.functions if skill.name == name), default)

    def __getitem__(self, name: str) -> Entry:
        found: Entry | None = self.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"skills: {', '.join(self.names)}"
            raise SkillError(f"there is no skill {name!r}; {hint}")
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[Entry]:
        return (listed.entry for listed in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<skills: {', '.join(self.names) or 'none'}>"

    def _enter(self, listed: Listed) -> None:
        name = listed.entry.name
        earlier = self._entries.get(name)
        if earlier is not None and not _again(earlier.entry, listed.entry):
            self._hidden.setdefault(name, []).insert(0, earlier)
            warnings.warn(
                f"skill {name!r} of {listed.entry.where} hides the one of {earlier.entry.where}; "
                f"`cave skills list --conflicts` shows all",
                ShadowWarning,
                stacklevel=4,
            )
        self._entries[name] = listed

    def _compare(self, folder: FolderSkill) -> None:
        """Warn of functions whose names other active skills have."""
        others = {
            skill.name: skill
            for listed in self._entries.values()
            if listed.active and listed.entry is not folder
            for skill in _functions(listed.entry)
        }
        for skill in folder.functions:
            if (theirs := others.get(skill.name)) is not None:
                self._clashes[skill.name] = Conflict(skill.name, skill.where, (theirs.where,))
                warnings.warn(
                    f"function {skill.name!r} of {skill.where} hides the one of {theirs.where}",
                    ShadowWarning,
                    stacklevel=3,
                )


def _functions(entry: Entry) -> tuple[Skill, ...]:
    return (entry,) if isinstance(entry, Skill) else entry.functions


def _again(earlier: Entry, later: Entry) -> bool:
    """Whether it is the same one, or a function that was defined again where it stood."""
    if earlier is later:
        return True
    if isinstance(earlier, Skill) and isinstance(later, Skill):
        places = [(s.module, s.function.__qualname__) for s in (earlier, later)]
        return places[0] == places[1]
    return isinstance(later, FolderSkill) and earlier.where == later.where


def _check_twice(entries: list[Entry]) -> None:
    """Two of one name in one call are a mistake: nobody could say which was meant."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        other = seen.setdefault(entry.name, entry)
        if other is not entry and other.where != entry.where:
            raise SkillError(
                f"two skills are called {entry.name!r}: {other.where} and {entry.where}; "
                f"rename one of them, or leave it out"
            )
