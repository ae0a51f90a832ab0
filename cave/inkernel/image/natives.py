"""Objects whose class has a constructor of its own, which pickle would call with other arguments.

What an object says of itself is often said by a base: `float` gives its value, a `set` its
elements, a namedtuple its fields. They are for the constructor of that base. Where a class
below it has its own, that one would fail, or do its work a second time.
"""

from __future__ import annotations

import copyreg
import dataclasses
import sys
import types
from typing import Any

from .. import kinds
from .definitions import findable
from .frozen import frozen
from .makers import fill_past

_newobj = copyreg.__newobj__  # type: ignore[attr-defined]
_CALL = kinds.space(type)["__call__"]
_STATE: Any = getattr(dataclasses, "_dataclass_getstate", None)


def has_own_ways(kind: type) -> bool:
    """Whether `reduced` may have to change what objects of the type are reduced to."""
    speaks = _speaks(kind, "__reduce_ex__", "__reduce__")
    return (
        type(_new(kind)) is types.FunctionType
        or _inherits_state(kind)
        or (speaks is not None and not findable(kind))
        or (_is_pythons(speaks) and _meant(kind, speaks, "__new__", "__init__") is not None)
    )


def reduced(obj: Any, found: Any) -> Any:
    """What the object was reduced to, for the constructor that it was meant for."""
    kind = type(obj)
    if type(found) is not tuple or kinds.find(type(kind), "__call__") is not _CALL:
        return found
    if found[0] is _newobj:
        if _inherits_state(kind):
            return _newobj, (kind,), object.__getstate__(obj), None, None, fill_past
        args = found[1][1:]
        base = _meant(kind, _speaks(kind, "__getnewargs_ex__", "__getnewargs__"), "__new__")
        if base is None and _refuses(kind, len(args)):
            base = next(entry for entry in kinds.mro(kind) if _makes(entry))
        return found if base is None else (make_native, (kind, base, args, False), *found[2:])
    if found[0] is kind:
        speaks = _speaks(kind, "__reduce_ex__", "__reduce__")
        base = _meant(kind, speaks, "__new__", "__init__")
        if base is not None:
            found = make_native, (kind, base, found[1], True), *found[2:]
        if speaks is not None and kinds.library(speaks) in sys.stdlib_module_names:
            return found if base is None and findable(kind) else _with_attributes(obj, found)
    return found


def _with_attributes(obj: Any, found: Any) -> Any:
    """With attributes that a class adds, where a base says nothing of them."""
    own = kinds.attributes(obj)
    if not own or any(part is not None for part in found[2:3]):
        return found
    items, pairs = (*found[3:5], None, None)[:2]
    return *found[:2], own, items, pairs, fill_past


@frozen
def make_native(kind: type, base: Any, args: tuple[Any, ...], starts: bool) -> Any:
    """An object of a class, by the constructor of one of its bases."""
    made = base.__new__(kind, *args)
    if starts and base.__init__ is not object.__init__:
        base.__init__(made, *args)
    return made


def _speaks(kind: type, *names: str) -> type | None:
    """The class that says what objects of the type are reduced to; None if that is `object`."""
    for base in kinds.mro(kind):
        if base is not object and any(name in kinds.space(base) for name in names):
            return base
    return None


def _meant(kind: type, speaks: type | None, *names: str) -> type | None:
    """The class whose constructor is meant, where one below it has another: a class of the
    session, or one of a library below a type of Python's own that speaks for itself alone."""
    meant = None
    if speaks is not None:
        bases, alone = kinds.mro(kind), _is_pythons(speaks)
        for at, base in enumerate(bases[: bases.index(speaks)]):
            own = [found for name in names if (found := kinds.space(base).get(name)) is not None]
            if own and (not findable(base) or (alone and type(own[-1]) is types.FunctionType)):
                meant = bases[at + 1]
    return meant


def _is_pythons(speaks: type | None) -> bool:
    """Whether it is a type of Python's own, written in C."""
    if speaks is None or kinds.library(speaks) not in sys.stdlib_module_names:
        return False
    return not any(
        type(kinds.space(speaks).get(name)) is types.FunctionType
        for name in ("__reduce_ex__", "__reduce__", "__getnewargs_ex__", "__getnewargs__")
    )


def _refuses(kind: type, count: int) -> bool:
    """Whether `__new__` does not take so many arguments."""
    new = _new(kind)
    if type(new) is not types.FunctionType:
        return False
    code, given = new.__code__, count + 1
    needed = code.co_argcount - len(new.__defaults__ or ())
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    many = given > code.co_argcount and not code.co_flags & 4  # CO_VARARGS
    return given < needed or many or any(name not in (new.__kwdefaults__ or {}) for name in names)


def _new(kind: type) -> Any:
    """What makes objects of a type; a function for one of Python."""
    found = kinds.find(kind, "__new__")
    return found.__func__ if type(found) is staticmethod else found


def _makes(kind: type) -> bool:
    return type(kinds.space(kind).get("__new__")) is types.BuiltinFunctionType


def _inherits_state(kind: type) -> bool:
    """Whether a dataclass with slots says what its own fields are, of a class that has more."""
    if _STATE is None or kinds.find(kind, "__getstate__") is not _STATE:
        return False
    return "__getstate__" not in kinds.space(kind)
