"""Where in a variable something is that does not come back: `.connection`, `[3].lock`.

Looked for only when something is lost, and for a bounded time: a note without a path says
as much as one may know.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import kinds

if TYPE_CHECKING:
    from .pickler import Note

_STEPS = 50_000
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
    for name, value in roots.items():
        for key, path in _find(value, wanted).items():
            note = wanted[key]
            if not note.name:
                note.name = name
            elif (name, key) not in said:
                notes.append(type(note)(note.kind, name, note.type, note.reason, path))
                continue
            if note.name == name:
                note.path = path


def _find(root: Any, wanted: Mapping[int, Any]) -> dict[int, str]:
    """Paths of wanted objects, the nearest ones first."""
    if id(root) in wanted:
        return {id(root): ""}
    queue: list[tuple[Any, Any]] = [(root, None)]
    space = getattr(sys.modules.get("__main__"), "__dict__", None)
    known = {id(root), id(space)}  # what has the namespace at hand is not made of it
    found: dict[int, str] = {}
    for place in queue:
        for step, part in _parts(place[0]):
            if id(part) in known or (kinds.of(part, *_ATOMS) and id(part) not in wanted):
                continue
            known.add(id(part))
            there = (part, (place[1], step))
            if id(part) in wanted:
                found[id(part)] = _spelled(there[1])
            else:
                queue.append(there)
        if len(found) == len(wanted) or len(queue) > _STEPS:
            break
    return found


def _spelled(steps: Any) -> str:
    """The path of a chain of steps; a long one is cut in front."""
    parts: list[str] = []
    while steps is not None and len(parts) < _LONG:
        parts.append(steps[1])
        steps = steps[0]
    return ("" if steps is None else "...") + "".join(reversed(parts))


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
