"""Where in a variable something is that does not come back: `.connection`, `[3].lock`.

Looked for only when something is lost, and for a bounded time: a note without a path says
as much as one may know.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import kinds

if TYPE_CHECKING:
    from .pickler import Note

_STEPS, _ALL = 50_000, 200_000
"""Objects that are looked into: of one root, and of all."""
_LONG = 20
_MANY = 1000
_ATOMS = (str, bytes, int, float, complex, type(None), type, types.ModuleType,
          types.FunctionType, types.CodeType)  # fmt: skip


def locate(losses: list[tuple[Any, Note]], notes: list[Note], roots: Mapping[str, Any]) -> None:
    """Give notes their paths, and each root that reaches something lost a note of its own.

    `losses` are objects and the notes about them; notes without a name get their first root's.
    """
    wanted = {id(obj): note for obj, note in losses}
    if len(wanted) > _MANY:
        return
    said: set[tuple[str, int]] = {(note.name, id(obj)) for obj, note in losses}
    holders = _Holders(wanted)
    for value in roots.values():
        holders.follow(value)
    ways = {key: holders.ways(key) for key in wanted}
    for name, value in roots.items():
        for key in [id(value)] if id(value) in wanted else wanted:
            if id(value) not in ways[key]:
                continue
            note, path = wanted[key], _spelled(ways[key], id(value))
            if not note.name:
                note.name = name
            elif (name, key) not in said:
                notes.append(type(note)(note.kind, name, note.type, note.reason, path))
                continue
            if note.name == name:
                note.path = path


Ways = dict[int, "tuple[str, int] | None"]
"""By id of an object: the step from it towards what is wanted, and the id of what is there."""


class _Holders:
    """Who holds what, as far as roots reach; each object is looked into once."""

    def __init__(self, wanted: Mapping[int, Any]) -> None:
        self._wanted = wanted
        space = getattr(sys.modules.get("__main__"), "__dict__", None)
        self._known = {id(space)}  # what has the namespace at hand is not made of it
        self._of: dict[int, list[tuple[int, str]]] = {}
        """By id: who holds it (an id), under which step."""
        self._alive: list[Any] = []
        self._steps = _ALL

    def follow(self, root: Any) -> None:
        """Learn of all that a root holds, the nearest first."""
        if id(root) in self._known or id(root) in self._wanted:
            return
        self._known.add(id(root))
        queue = [root]
        for holder in queue:
            for step, part in _parts(holder):
                if kinds.of(part, *_ATOMS) and id(part) not in self._wanted:
                    continue
                self._of.setdefault(id(part), []).append((id(holder), step))
                if id(part) not in self._known and id(part) not in self._wanted:
                    self._known.add(id(part))
                    queue.append(part)
            if len(queue) > min(_STEPS, self._steps):
                break
        self._steps -= len(queue)
        self._alive += queue

    def ways(self, key: int) -> Ways:
        """The shortest ways to a wanted object, from all that lead there."""
        found: Ways = {key: None}
        queue = [key]
        for there in queue:
            for holder, step in self._of.get(there, ()):
                if holder not in found:
                    found[holder] = step, there
                    queue.append(holder)
        return found


def _spelled(ways: Ways, start: int) -> str:
    """The path from an object; a long one is cut in front."""
    parts: deque[str] = deque(maxlen=_LONG)
    count, here = 0, ways[start]
    while here is not None:
        parts.append(here[0])
        count, here = count + 1, ways[here[1]]
    return ("..." if count > _LONG else "") + "".join(parts)


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    kind = type(obj)
    if kinds.derives(kind, dict):
        for key, value in list(dict.items(obj)):
            yield f"[{_short(key)}]", value
            if not kinds.of(key, *_ATOMS):
                yield " key", key
    elif kinds.derives(kind, list):
        for index, value in enumerate(list.__iter__(obj)):
            yield f"[{index}]", value
    elif kinds.derives(kind, tuple):
        for index, value in enumerate(tuple.__iter__(obj)):
            yield f"[{index}]", value
    elif kinds.is_(kind, set, frozenset):
        for value in obj:
            yield "{}", value
    elif kind is types.MethodType:
        yield ".__self__", obj.__self__
    elif kind is types.FunctionType:
        yield from _of_function(obj)
    elif kinds.derives(kind, type):
        for name, value in list(kinds.space(obj).items()):
            yield f".{name}", value
    for name, value in list((kinds.attributes(obj) or {}).items()):
        yield f".{name}", value
    for name, value in kinds.slots(obj):
        yield f".{name}", value


def _of_function(obj: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = obj.__code__.co_freevars
    for name, cell in zip(names, obj.__closure__ or (), strict=True):
        try:
            yield f" closure {name}", cell.cell_contents
        except ValueError:  # an empty one
            continue
    for value in obj.__defaults__ or ():
        yield " default", value


def _short(key: Any) -> str:
    return repr(key)[:40] if isinstance(key, str | int | float | bytes) else type(key).__name__
