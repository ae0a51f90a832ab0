"""Objects that would run code of the user when they are only looked at: they are not asked.

Proxies, lazy objects and mocks answer for every attribute, also for those that pickle asks
for: their class, their state. What they consist of is read past their own methods, and given
back the same way. What says itself how it is pickled is believed, and not read here.
"""

from __future__ import annotations

import abc
import enum
import types
from typing import Any

from .. import kinds
from .definitions import findable
from .frozen import frozen
from .makers import fill_past
from .natives import make_native

HOOKS = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__",
         "__getnewargs_ex__")  # fmt: skip
_ANSWERS = ("__getattr__", "__getattribute__", "__class__", "__dict__")
_WALKS = ("__iter__", "items", "__len__", "keys")
_WORD = 8
_VALUES = (int, float, complex, str, bytes, tuple)
_SETS = (set, frozenset)
_NATIVE = {id(kind): kind for kind in (object, list, dict, *_VALUES, *_SETS)}
_PYTHONS = {id(kind) for kind in (object, type, abc.ABCMeta, enum.EnumMeta)}


def wanted(kind: type) -> bool:
    """Whether objects of the type are to be read past what they answer."""
    base = native(kind)
    if base is None or any(_hook(kind, name) for name in HOOKS):
        return False
    if is_not_asked(kind):
        return True
    above = kinds.mro(kind)
    if any(_own(entry, _ANSWERS) for entry in above):
        return True
    walked = not kinds.is_(base, object, *_VALUES)
    return walked and any(_own(entry, _WALKS) and not findable(entry) for entry in above)


def is_not_asked(kind: type) -> bool:
    """Whether the metaclass of a class answers for attributes by code of its own."""
    return any(_own(meta, _ANSWERS[:2]) for meta in kinds.mro(type(kind)))


def native(kind: type) -> type | None:
    """The type of Python's own that an object of the type is, beside its attributes."""
    base = next((entry for entry in kinds.mro(kind) if not _is_pythons(entry)), object)
    if id(base) not in _NATIVE:
        return None
    slots = sum(
        type(entry) is types.MemberDescriptorType
        for above in kinds.mro(kind)
        if _is_pythons(above)
        for entry in list(kinds.space(above).values())
    )
    room = kinds.size(base) + _WORD * (2 + slots)
    return base if kinds.size(kind) <= room or kinds.is_(base, *_VALUES) else None


def _is_pythons(kind: type) -> bool:
    """Whether a class was made by a class statement."""
    return id(kind) not in _NATIVE and "__module__" in kinds.space(kind) and bool(
        kinds.flags(kind) & 1 << 9
    )  # fmt: skip


def _hook(kind: type, name: str) -> bool:
    """Whether somebody but Python's own types says how objects of a type are pickled."""
    return any(name in kinds.space(base) for base in kinds.mro(kind) if id(base) not in _NATIVE)


def _own(kind: type, names: tuple[str, ...]) -> bool:
    if id(kind) in _PYTHONS or id(kind) in _NATIVE:
        return False
    found = kinds.space(kind)
    return any(name in found and not _is_plain(found[name]) for name in names)


def _is_plain(value: Any) -> bool:
    """Whether it is what every class has: where its objects keep their `__dict__`."""
    return kinds.is_(type(value), types.GetSetDescriptorType, types.WrapperDescriptorType)


def watches(kind: type) -> bool:
    """Whether a container of the user hears of what is put in: it would hear of it again."""
    return any(
        type(kinds.space(base).get(name)) is types.FunctionType
        for base in kinds.mro(kind)
        for name in ("__setitem__", "append", "extend")
        if not findable(base)
    )


def reduced(obj: Any) -> Any:
    """What an object is reduced to, of a type that is `wanted`."""
    kind = type(obj)
    base: Any = native(kind)
    args: tuple[Any, ...] = ()
    items = pairs = None
    if kinds.is_(base, *_VALUES):
        args = base.__getnewargs__(obj)
    elif kinds.is_(base, *_SETS):
        args = (list(base.__iter__(obj)),)
    elif base is list:
        items = list(list.__iter__(obj))
    elif base is dict:
        pairs = list(dict.items(obj))
    made = make_native, (kind, base, args, base is set)
    state = _state(obj)
    if items is not None or pairs is not None:
        return *made, (state, items, pairs), None, None, fill_bare
    return made if state is None else (*made, state, None, None, fill_past)


def _state(obj: Any) -> Any:
    own, slots = kinds.attributes(obj) or None, dict(kinds.slots(obj))
    return (own, slots) if slots else own


@frozen
def fill_bare(made: Any, content: tuple[Any, Any, Any]) -> None:
    """Fill a list or dict of the user, and give it attributes, past all methods of its own."""
    state, items, pairs = content
    if items is not None:
        list.extend(made, items)
    for key, value in pairs or ():
        dict.__setitem__(made, key, value)
    if state is not None:
        fill_past(made, state)
