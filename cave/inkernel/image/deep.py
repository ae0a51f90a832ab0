"""Groups that nest too deeply for pickle: written and read by worklist, without recursion.

Every list, dict, set and instance is a record of its own; where it occurs the stream has a
persistent id: its number and how to make it empty. Records follow one another in the order
of their discovery (a generator feeds the pickler, and grows while the pickler writes). What
they contain is filled in when all have been made. Tuples cannot be made empty: those that
hold more than plain values are written before what holds them, the innermost first.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .frozen import frozen
from .pickler import Pickler
from .reading import current

MAGIC = b"cave deep 1\n"
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
_EMPTY = frozenset({list, dict, set})
_newobj = copyreg.__newobj__  # type: ignore[attr-defined]


class DeepPickler(Pickler):
    """A pickler that goes no deeper than one object at a time."""

    magic = MAGIC

    def begin(self, roots: dict[Any, Any]) -> Any:
        """What to dump: all records, beginning with the roots."""
        self._numbers: dict[int, Any] = {}
        self._queue: deque[tuple[int, Any, Any]] = deque()
        self._flat: set[int] = set()
        self._reduced: dict[int, tuple[Any, Any]] = {}
        self._roots = roots
        return _Records(self)

    def watch(self) -> None:
        """Nothing to do: `persistent_id` sees every object."""

    def persistent_id(self, obj: Any) -> Any:
        """Number and making of an object that has a record; None for what goes in place."""
        kind = type(obj)
        if kind in _ATOMS:
            return None
        self.seen.append(obj)
        known = self._numbers.get(id(obj))
        if known is not None:
            return known
        if kind in _EMPTY:
            return None if id(obj) in self._flat else self._number(obj, kind, (), None)
        if kind is tuple or issubclass(kind, type) or id(obj) in self._reduced:
            return None
        if kind.__module__ == __name__ or kind is pickle.PickleBuffer:
            return None
        reduced = super().reducer_override(obj)
        if _fillable(obj, reduced):
            return self._number(obj, reduced[0], reduced[1], reduced)
        self._reduced[id(obj)] = obj, reduced
        return None

    def _number(self, obj: Any, maker: Any, args: tuple[Any, ...], reduced: Any) -> Any:
        number = len(self._numbers) + 1
        known = self._numbers[id(obj)] = (number, maker, *args)
        self._queue.append((number, obj, reduced))
        return known

    def reducer_override(self, obj: Any) -> Any:
        """What `persistent_id` has found out already."""
        kind = type(obj)
        if kind is _Records:
            return list, (), None, self._records()
        if kind is _Tuple:
            return deep_tuple, (obj.number, *obj.parts)
        found = self._reduced.get(id(obj))
        return super().reducer_override(obj) if found is None else found[1]

    # -- records ---------------------------------------------------------------------------

    def _records(self) -> Iterator[Any]:
        yield from self._tuples(self._roots.values())
        yield self._plain(self._roots)
        idle = 0
        while idle < 3:  # the pickler asks for one more before it writes the last
            if not self._queue:
                idle += 1
                yield None
                continue
            idle = 0
            number, obj, reduced = self._queue.popleft()
            kind = type(obj)
            if reduced is None:
                copy = self._plain(kind(obj))
                yield from self._tuples(copy.values() if kind is dict else copy)
                yield number, copy
            else:
                yield from self._state(number, reduced)

    def _state(self, number: int, reduced: Any) -> Iterator[Any]:
        state, items, pairs, setter = (*reduced[2:], None, None, None, None)[:4]
        parts = list(items) if items is not None else None
        entries = dict(pairs) if pairs is not None else None
        for found in (state, *(state if type(state) is tuple else ())):
            if type(found) is dict:
                self._plain(found)
                yield from self._tuples(found.values())
        for found in (parts, entries):
            if found is not None:
                self._plain(found)
                yield from self._tuples(found.values() if type(found) is dict else found)
        yield number, state, parts, entries, setter

    def _plain(self, found: Any) -> Any:
        """A list or dict that goes in place; it is kept, so that its id stays its own."""
        self._flat.add(id(found))
        self._reduced[id(found)] = found, None
        return found

    def _tuples(self, parts: Iterable[Any]) -> Iterator[Any]:
        stack = [(part, False) for part in parts if type(part) is tuple]
        while stack:
            found, opened = stack.pop()
            if id(found) in self._numbers or all(type(part) in _ATOMS for part in found):
                continue
            if opened:
                number = len(self._numbers) + 1
                self._numbers[id(found)] = (number,)
                self._reduced[id(found)] = found, None
                yield _Tuple(number, found)
            else:
                stack.append((found, True))
                stack += [(part, False) for part in found if type(part) is tuple]


def _fillable(obj: Any, reduced: Any) -> bool:
    """Whether it can be made first and filled later."""
    if not isinstance(reduced, tuple) or len(reduced) < 3:
        return False
    if reduced[0] is _newobj:
        return len(reduced[1]) == 1
    kind = type(obj)
    plain = all(type(part) in _ATOMS or isinstance(part, type) for part in reduced[1])
    return reduced[0] is kind and plain


class _Records:
    __slots__ = ("pickler",)

    def __init__(self, pickler: DeepPickler) -> None:
        self.pickler = pickler


class _Tuple:
    __slots__ = ("number", "parts")

    def __init__(self, number: int, parts: tuple[Any, ...]) -> None:
        self.number = number
        self.parts = parts


@frozen
def deep_tuple(number: int, *parts: Any) -> None:
    """A tuple that others refer to by its number."""
    current().numbered[number] = parts


# -- reading ---------------------------------------------------------------------------------


class DeepUnpickler(pickle.Unpickler):
    """Makes what persistent ids stand for, empty."""

    def persistent_load(self, pid: Any) -> Any:
        """The object of that number."""
        made = current().numbered
        number = pid[0]
        if number not in made:
            maker, *args = pid[1:]
            made[number] = maker(*args)
        return made[number]


def load(stream: Any, buffers: Iterable[memoryview]) -> dict[str, Any]:
    """The roots of a stream in this form."""
    file = io.BytesIO(stream)
    file.seek(len(MAGIC))
    roots, *records = DeepUnpickler(file, buffers=buffers).load()
    made = current().numbered
    hashed = [record for record in records if record is not None and _hashes(record, made)]
    for record in records:
        if record is not None and not _hashes(record, made) and type(made[record[0]]) is list:
            made[record[0]].extend(record[1])
    for record in reversed(records):
        if record is not None and len(record) > 2:
            _fill(made[record[0]], *record[1:])
    for record in reversed(hashed):
        made[record[0]].update(record[1])
    found: dict[str, Any] = roots
    return found


def _hashes(record: Any, made: Mapping[int, Any]) -> bool:
    return len(record) == 2 and type(made[record[0]]) in (dict, set)


def _fill(obj: Any, state: Any, items: Any, pairs: Any, setter: Any) -> None:
    if items is not None:
        for item in items:
            obj.append(item)
    if pairs is not None:
        for key, value in pairs.items():
            obj[key] = value
    if state is None:
        return
    if setter is not None:
        setter(obj, state)
    elif hasattr(obj, "__setstate__"):
        obj.__setstate__(state)
    else:
        attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
        if attributes:
            obj.__dict__.update(attributes)
        for name, value in (slots or {}).items():
            setattr(obj, name, value)
