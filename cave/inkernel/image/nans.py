"""NaN keeps its identity: it equals nothing, so `in`, `==` of lists and keys of dicts go by it.

Pickle writes a float as its value, and every one that is read is another object. A NaN that
a library has under a name, or that more than one object holds, is therefore referred to by
a persistent id. The C pickler asks nobody about floats: its stream is changed afterwards,
where what takes the place of a NaN is as long as the NaN.
"""

from __future__ import annotations

import io
import itertools
import math
import operator
import pickletools
import struct
import sys
from collections import Counter
from importlib import import_module
from typing import Any

from .frozen import frozen
from .reading import current

_NAMED = (("math", "nan"), ("numpy", "nan"), ("json.decoder", "NaN"), ("cmath", "nan"))
"""Their numbers are in streams: entries are only ever added, at the end."""
_OWN = 1000
"""The first number that belongs to no module's NaN; odd ones are negative."""
_WRITTEN = (b"G\x7f\xf8\0\0\0\0\0\0", b"G\xff\xf8\0\0\0\0\0\0")
"""BINFLOAT and a NaN, positive and negative."""
_REFERS = struct.Struct("<ci4s")
"""BININT, a number, BINPERSID, and opcodes that do nothing."""


class _IsFloat(dict[type, bool]):
    def __missing__(self, kind: type) -> bool:
        return kind is float


def named() -> dict[int, int]:
    """Numbers of the NaN that modules have, by id."""
    found: dict[int, int] = {}
    for number, (module, name) in enumerate(_NAMED):
        value = getattr(sys.modules.get(module), name, None)
        if type(value) is float:
            found.setdefault(id(value), number)
    return found


def foreign(values: list[Any]) -> list[int]:
    """Where among them the NaN are that no module has."""
    library = named()
    floats = itertools.compress(enumerate(values), map(_IsFloat().__getitem__, map(type, values)))
    return [at for at, value in floats if math.isnan(value) and id(value) not in library]


def own(count: int, obj: float) -> int:
    """The number of a NaN that no module has, the one after `count` others."""
    return _OWN + 2 * count + (math.copysign(1, obj) < 0)


def mark(stream: bytearray, seen: list[Any]) -> list[float]:
    """Refer to what is named or shared among the NaN of a stream; those that no module has.

    `seen` has the objects of the stream in its order, which `persistent_id` was asked about.
    """
    places = _places(stream)
    if not places:
        return []
    floats = list(itertools.compress(seen, map(_IsFloat().__getitem__, map(type, seen))))
    floats = list(itertools.compress(floats, map(operator.ne, floats, floats)))
    if len(floats) != len(places):  # bytes of the user look like one
        places = _exactly(stream)
    counts = Counter(map(id, floats))
    library, numbers, shared = named(), dict[int, int](), list[float]()
    for index, place in enumerate(places):
        obj = floats[index]
        number = library.get(id(obj), numbers.get(id(obj)))
        if number is None:
            count = counts[id(obj)]
            if count == 1 and sys.getrefcount(obj) - 2 * count - 2 <= 1:
                continue  # in `seen`, in `floats`, here, and with a single holder
            number = numbers[id(obj)] = own(len(numbers), obj)
            shared.append(obj)
        if stream[place : place + _REFERS.size] in _WRITTEN:
            stream[place : place + _REFERS.size] = _REFERS.pack(b"J", number, b"QK\x000")
    return shared


def _places(stream: bytearray) -> list[int]:
    found = []
    for written in _WRITTEN:
        at = stream.find(written)
        while at >= 0:
            found.append(at)
            at = stream.find(written, at + len(written))
    return sorted(found)


def _exactly(stream: bytearray) -> list[int]:
    """Where the NaN of a stream are, opcode by opcode."""
    start = stream.index(b"\x80")
    return [
        start + at
        for opcode, arg, at in pickletools.genops(io.BytesIO(memoryview(stream)[start:]))
        if opcode.name == "BINFLOAT" and arg is not None and math.isnan(arg) and at is not None
    ]


@frozen
def nan(number: int) -> float:
    """The NaN of that number."""
    if number < _OWN:
        module, name = _NAMED[number]
        named: float = getattr(import_module(module), name)
        return named
    known = current().nans
    if number not in known:
        known[number] = -float("nan") if number % 2 else float("nan")
    return known[number]
