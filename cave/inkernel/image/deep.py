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
from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import Any

from .. import kinds
from . import nans
from .frozen import frozen
from .makers import preset, set_state
from .pickler import Pickler
from .reading import current

MAGIC = b"cave deep 1\n"
_BITS = 12
"""Of a persistent id, for the index of how it is made; 0 for what is there already."""
_ATOMS = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes, type(...))))
"""Ids of types, as of `_EMPTY`: a type of the session may have a hash of its own."""
_WITH_SETTER = 6
"""Length of a reduced object that says how it is filled."""
_EMPTY = frozenset(map(id, (list, dict, set)))
_newobj = copyreg.__newobj__  # type: ignore[attr-defined]


class DeepPickler(Pickler):
    """A pickler that goes no deeper than one object at a time."""

    magic = MAGIC

    def know(self, known: tuple[Any, ...]) -> None:
        """What is there already has no record."""
        self.known = known
        self._preset = {id(obj): index for index, obj in enumerate(known)}

    def begin(self, roots: dict[Any, Any]) -> Any:
        """What to dump: all records, beginning with the roots."""
        self._pids: dict[int, Any] = {}
        self._makers: dict[Any, int] = {}
        self._easy: dict[int, Any] = {}
        self._queue: deque[tuple[int, Any, Any]] = deque()
        self._flat: dict[int, Any] = {}
        self._reduced: dict[int, tuple[Any, Any]] = {}
        self._nans: list[float] = []
        self._roots = roots
        return _Records(self)

    def watch(self) -> None:
        """Nothing to do: `persistent_id` sees every object."""

    def persistent_id(self, obj: Any) -> Any:  # noqa: PLR0911 (called for every object)
        """Number and making of an object that has a record; None for what goes in place."""
        kind = type(obj)
        if id(kind) in _ATOMS:
            return None if kind is not float or not isnan(obj) else self._nan(obj)
        if self.known and (place := self._preset.get(id(obj))) is not None:
            return -1 - place
        known = self._pids.get(id(obj))
        if known is not None:
            return known
        if id(obj) in self._flat or kind is tuple or id(obj) in self._reduced:
            return None
        self.seen.append(obj)
        if id(kind) in _EMPTY:
            return self._number(obj, kind, (), None)
        easy = self._easy.get(id(kind))
        if easy is not None and not self.refused:
            return self._number(obj, easy[0], easy[1], _newobj)
        if kinds.module(kind) == __name__ or kind is pickle.PickleBuffer:
            return None
        if kinds.derives(kind, type) and not (self.inline and self.definitions.is_definition(obj)):
            return None
        reduced = super().reducer_override(obj)
        if _fillable(obj, reduced):
            if type(reduced[2]) is dict and self.plain(kind):
                self._easy[id(kind)] = reduced[:2]
            return self._number(obj, reduced[0], reduced[1], reduced)
        self._reduced[id(obj)] = obj, reduced
        if isinstance(reduced, tuple):
            self._given(reduced[1])
        return None

    def _nan(self, obj: float) -> Any:
        """A NaN is written once, as an object that has no record."""
        known = self._pids.get(id(obj))
        if known is not None:
            return known
        code = nans.named().get(id(obj))
        if code is None:
            code = nans.own(len(self._nans), obj)
            self._nans.append(obj)
        self.seen.append(obj)
        number = len(self._pids) + 1
        self._pids[id(obj)] = known = number << _BITS
        return known, 0, nans.nan, code

    def shared(self, _stream: Any) -> list[float]:
        """NaN that no module has, which others may hold, too."""
        return self._nans

    def _given(self, args: tuple[Any, ...]) -> None:
        """What makes an object needs its arguments in full: they go in place."""
        for part in args:
            if type(part) is tuple:
                self._given(part)
            elif id(type(part)) in _EMPTY and id(part) not in self._pids:
                self._plain(part)

    def _number(self, obj: Any, maker: Any, args: tuple[Any, ...], reduced: Any) -> Any:
        """The first of its making says how in full, later ones where to look."""
        number = len(self._pids) + 1
        try:
            key: Any = (maker, args) if all(map(_is_key, args)) else None
            index = None if key is None else self._makers.get(key)
        except TypeError:  # what cannot be hashed is made once
            key = index = None
        known = number << _BITS | (index or 0)
        self._pids[id(obj)] = known
        self._queue.append((number, obj, reduced))
        if index is not None:
            return known
        index = 0 if key is None else len(self._makers) + 1
        if 0 < index < 1 << _BITS:
            self._makers[key] = index
        self._given(args)
        return (known, index, maker, *args)

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
        yield 0
        yield self._plain(self._roots)
        idle = 0
        while idle < 3:  # the pickler asks for one more before it writes the last
            if not self._queue:
                idle += 1
                yield None
                continue
            idle = 0
            number, obj, reduced = self._queue.popleft()
            if reduced is None:
                payload = self._plain(type(obj)(obj))
            elif reduced is _newobj:
                payload = self._plain(obj.__dict__)
            else:
                payload = self._state(reduced)
            for part in self._direct(payload):
                if type(part) is tuple:
                    yield from self._tuples((part,))
            yield number
            yield payload

    def _state(self, reduced: Any) -> Any:
        """A dict of attributes, or all that reducing gave."""
        state, items, pairs, setter = (*reduced[2:], None, None, None, None)[:4]
        if type(state) is dict and items is None and pairs is None and setter is None:
            return self._plain(state)
        if items is not None:
            items = self._plain(list(items))
        if pairs is not None:
            pairs = self._plain(dict(pairs))
        for part in state if type(state) is tuple else (state,):
            if type(part) is dict:
                self._plain(part)
        return state, items, pairs, setter

    def _direct(self, payload: Any) -> Iterable[Any]:
        if type(payload) is not tuple:
            return payload.values() if type(payload) is dict else payload
        found: list[Any] = []
        for part in (*payload[:3], *(payload[0] if type(payload[0]) is tuple else ())):
            if type(part) is dict:
                found += part.values()
            elif type(part) in (list, tuple):
                found += part
        return found

    def _plain(self, found: Any) -> Any:
        """A list or dict that goes in place; it is kept, so that its id stays its own."""
        self._flat[id(found)] = found
        return found

    def _tuples(self, parts: Iterable[Any]) -> Iterator[Any]:
        stack = [(part, False) for part in parts if type(part) is tuple]
        while stack:
            found, opened = stack.pop()
            if id(found) in self._pids or all(id(type(part)) in _ATOMS for part in found):
                continue
            if opened:
                number = len(self._pids) + 1
                self._pids[id(found)] = number << _BITS
                self._plain(found)
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
    if len(reduced) == _WITH_SETTER and reduced[2] is not None:  # a rule: an empty object first
        return True
    plain = all(id(type(part)) in _ATOMS or kinds.of(part, type) for part in reduced[1])
    return reduced[0] is kind and plain


def _is_key(part: Any) -> bool:
    """Whether nobody's code is asked for its hash: classes and plain values."""
    if kinds.of(part, type):
        return kinds.plain(part)
    return all(map(_is_key, part)) if type(part) is tuple else id(type(part)) in _ATOMS


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


class Making:
    """Makes what persistent ids stand for, empty."""

    _makers: dict[int, tuple[Any, list[Any]]]

    def persistent_load(self, pid: Any) -> Any:
        """The object of that number; negative ones are there already."""
        if type(pid) is int and pid < 0:
            return preset()[-1 - pid]
        if type(pid) is tuple:
            pid, index, maker, *args = pid
            self._makers[index] = maker, args
        else:
            index = pid & ((1 << _BITS) - 1)
        number, known = pid >> _BITS, current().numbered
        made = known.get(number)
        if made is None:
            maker, args = self._makers[index]
            made = known[number] = self.make(maker, args)
        return made

    def make(self, maker: Any, args: list[Any]) -> Any:
        """One object."""
        return maker(*args)


class DeepUnpickler(Making, pickle.Unpickler):
    """The fast one; what cannot be made ends it."""

    def __init__(self, file: io.BytesIO, *, buffers: Iterable[memoryview]) -> None:
        super().__init__(file, buffers=buffers)
        self._makers = {}


def load(stream: Any, buffers: Iterable[memoryview]) -> dict[str, Any]:
    """The roots of a stream in this form."""
    return complete(DeepUnpickler(opened(stream), buffers=buffers).load(), _raise)


def opened(stream: Any) -> io.BytesIO:
    """The pickle in the stream."""
    file = io.BytesIO(stream)
    file.seek(len(MAGIC))
    return file


def _raise(_made: Any, error: Exception) -> None:
    raise error


def complete(flow: Iterable[Any], failed: Callable[[Any, Exception], None]) -> dict[str, Any]:
    """The roots, with all objects filled; `failed` hears of those that do not let themselves."""
    entries = iter(flow)
    made = current().numbered
    records = [(number, next(entries)) for number in entries if number is not None]
    hashed: list[Any] = []
    states: list[Any] = []
    found: dict[str, Any] = {}
    for number, payload in records:
        if number == 0:
            found = payload
            continue
        obj = made[number]
        if type(obj) is list:
            obj.extend(payload)
        elif type(obj) is dict and _ATOMS.issuperset(map(id, map(type, payload))):
            obj.update(payload)
        else:
            (hashed if id(type(obj)) in _EMPTY else states).append((obj, payload))
    for obj, payload in (*reversed(states), *reversed(hashed)):
        try:
            if id(type(obj)) in _EMPTY:
                obj.update(payload)
            elif type(payload) is dict:
                _fill(obj, payload, None, None, None)
            else:
                _fill(obj, *payload)
        except Exception as error:
            failed(obj, error)
    return found


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
    else:
        set_state(obj, state)
