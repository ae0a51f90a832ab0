"""Keys that are ids of objects: they mean nothing in another process, which is said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from .. import kinds
from .pickler import Note, Pickler

_NEAR = 32
"""Bits of an address that differ between objects of one process."""
_SAMPLE = 20
_REASON = "its keys look like ids of objects, which have other ids in another process"


def say(pickler: Pickler, roots: Mapping[str, Any]) -> None:
    """Note dicts and sets of the user whose keys look like ids of objects."""
    known = (pickler, *itertools.islice(roots.values(), _SAMPLE))
    near = {(id(value) >> _NEAR) + step for value in known for step in (-1, 0, 1)}
    for obj in _of_user(roots):
        some = list(itertools.islice(obj, _SAMPLE))
        if some and all(type(key) is int and not key % 8 and key >> _NEAR in near for key in some):
            note = Note("changed", "", type(obj).__name__, _REASON)
            pickler.notes.append(note)
            pickler.losses.append((obj, note))


def _of_user(roots: Mapping[str, Any]) -> Iterator[Any]:
    """Dicts and sets among the variables, and the attributes of the session's objects there."""
    for value in list(roots.values()):
        if type(value) is dict or type(value) is set:
            yield value
        elif kinds.module(type(value)) == "__main__":
            for part in (kinds.attributes(value) or {}).values():
                if type(part) is dict or type(part) is set:
                    yield part
