"""Which of the objects that were written can be shared harmfully: those that can change.

The pickler's only hook that sees every object is `persistent_id`; a list's `append` takes
its place, so that seeing costs a few nanoseconds per object, and what matters is sorted out
here, by type, in C as far as possible.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from .. import kinds

_ALONE = 2
"""References to an object that only a dict's `values()` and the asking itself hold."""
_PLAIN = frozenset({
    type(None), bool, int, float, str, bytes, tuple, frozenset, type, range, slice,
    type(...), type(NotImplemented), types.FunctionType, types.BuiltinFunctionType,
    types.ModuleType, types.CodeType, types.MethodType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType,
    types.GenericAlias,
})  # fmt: skip
_LIBRARIES = frozenset({
    "datetime", "decimal", "fractions", "uuid", "pathlib", "pathlib._local", "re", "_pickle",
    "pickle", "zoneinfo", "ipaddress", "typing", "numpy.dtypes", "operator", "struct", "_struct",
    "pandas._libs.tslibs.timestamps", "pandas._libs.tslibs.timedeltas", "pandas._libs.missing",
    "pandas._libs.tslibs.nattype", "pandas._libs.tslibs.period", "pandas._libs.interval",
    "pandas.core.dtypes.dtypes", "pandas.core.arrays.string_", "_cave_unpickle_v1",
})  # fmt: skip
"""Modules all whose types (but for containers) are immutable."""
_BASES = ("enum.Enum", "numpy.generic", "numpy.dtype", "pyarrow.lib.DataType",
          "pandas.core.dtypes.base.ExtensionDtype", "pyarrow.lib._Weakrefable")  # fmt: skip


_UNEQUAL = frozenset({"builtins.complex", "decimal.Decimal", "numpy.inexact",
                      "numpy.datetime64", "numpy.timedelta64"})  # fmt: skip
"""What may equal nothing, not even its like: it is known by its identity."""


class _Mutable(dict[type, bool]):
    """Whether objects of a type can change; asked in C, answered once per type."""

    def __init__(self, known: dict[type, bool]) -> None:
        super().__init__(known)
        self.unequal: set[type] = set()
        """Types that were met, of objects that may equal nothing."""

    def __missing__(self, kind: type) -> bool:
        if not _UNEQUAL.isdisjoint(_names(kind)):
            self.unequal.add(kind)
            self[kind] = True
            return True
        found = self[kind] = _mutable(kind)
        if kinds.module(kind) != "__main__":
            _known[kind] = found
        return found


_known: dict[type, bool] = dict.fromkeys(_PLAIN, False) | dict.fromkeys((list, dict, set), True)
"""Answers for types that are no session's."""


def _mutable(kind: type) -> bool:
    if (
        any(kind is plain for plain in _PLAIN)
        or kinds.derives(kind, type)
        or kinds.module(kind) in _LIBRARIES
    ):
        return False
    if kinds.module(kind).startswith("_cave_kernel."):
        return False
    return _names(kind).isdisjoint(_BASES)


def _names(kind: type) -> set[str]:
    return {f"{kinds.module(base)}.{kinds.name(base)}" for base in kinds.mro(kind)}


_LONG = 4096
"""Length from which on it is told whether a text that has a name is the same one elsewhere."""


def named(values: Iterable[Any]) -> dict[int, type]:
    """Ids (and types) of values that cannot change, and that one may well ask whether they are
    the same."""
    return {id(value): type(value) for value in values if _has_identity(value)}


def _has_identity(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) >= _LONG
    if kind is tuple or kind is frozenset:
        return len(value) > 0
    return kinds.module(kind) in _VALUES


_LARGE = 64 << 10
_TEXTS = frozenset({str, bytes})
_START = b"\x80\x05"
"""How a pickle of this protocol begins."""


def large(seen: list[Any], stream: bytearray) -> list[Any]:
    """Texts of the objects that are so large that nobody wants them twice, wherever they are.

    They lie outside of the frames of a stream, so that most streams need not be asked for them.
    """
    at = stream.find(_START) + len(_START)
    while stream[at : at + 1] == pickle.FRAME:
        at += 9 + int.from_bytes(stream[at + 1 : at + 9], "little")
    if len(stream) - at < _LARGE:
        return []
    texts = list(itertools.compress(seen, map(_TEXTS.__contains__, map(type, seen))))
    return list(itertools.compress(texts, map(_LARGE.__le__, map(len, texts))))


_VALUES = frozenset({"datetime", "decimal", "fractions", "uuid", "pathlib", "pathlib._local"})


def of(seen: list[Any], some: Mapping[int, type]) -> list[Any]:
    """Those of the objects whose ids are among some, which are of these types."""
    if not some:
        return []
    wanted = set(some.values()).__contains__
    try:
        alike = list(itertools.compress(seen, map(wanted, map(type, seen))))
    except Exception:  # a metaclass with equality or hash of its own
        alike = seen
    return list(itertools.compress(alike, map(some.__contains__, map(id, alike))))


def _is_unequal(obj: Any) -> bool:
    """Whether it matters which one it is, of those that are written alike."""
    try:
        return not bool(obj == obj)  # noqa: PLR0124 (a NaN)
    except Exception:  # a number that signals, or a class with equality of its own
        return True


def mutable(seen: list[Any], also: list[Any]) -> set[int]:
    """Ids of the objects that can change, and of those in `also`; takes the lists away.

    What nobody but the list holds was made for the pickler (a state, a copy): it is gone in a
    moment, and its id another object's.
    """
    asked = _Mutable(_known)
    try:
        chosen = itertools.compress(seen, map(asked.__getitem__, map(type, seen)))
        held = {id(obj): obj for obj in chosen}
    except Exception:  # a metaclass with equality or hash of its own
        held = {id(obj): obj for obj in seen if _mutable(type(obj))}
    if some := asked.unequal:
        held = {
            number: obj for number, obj in held.items() if type(obj) not in some or _is_unequal(obj)
        }
    held.update((id(obj), obj) for obj in also)
    seen.clear()
    also.clear()
    while True:
        counts = map(sys.getrefcount, held.values())
        alone = list(itertools.compress(held, map(_ALONE.__ge__, counts)))
        if not alone:
            return set(held)
        for key in alone:
            del held[key]
