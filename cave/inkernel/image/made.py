"""Rules for what a session makes: functions, classes, modules, and what they consist of.

In an ordinary stream a definition is referred to by its key; with `inline` it is written:
code, closure, defaults and attributes of a function, attributes of a class.
"""

from __future__ import annotations

import abc
import collections.abc
import ctypes
import enum
import functools
import io
import numbers
import os
import sys
import types
from typing import Any

from .. import kinds
from ..byvalue import (
    _NAMELESS,
    _SENTINELS,
    _TYPES,
    _enum_state,
    _names,
)
from . import again, patched, quiet, source
from .definitions import MAIN, findable, importable
from .frozen import MODULE
from .makers import (
    fill_c_class,
    fill_cell,
    fill_class,
    fill_enum,
    fill_function,
    fill_globals,
    fill_module,
    import_module,
    make_c_array,
    make_c_class,
    make_c_pointer,
    make_cached_property,
    make_cell,
    make_class,
    make_enum,
    make_function,
    make_globals,
    make_lru_cache,
    make_method,
    make_module,
    make_typing,
    of_module,
    set_module,
    update_dict,
)
from .pickler import Pickler, Refused
from .rules import rule

_STATE = (
    "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__", "__module__",
    "__annotations__",
)  # fmt: skip
_FIXED, _HEAP = 1 << 8, 1 << 9
"""Flags of types: immutable, and made at run time (Include/object.h)."""
_EXTRA = "__type_params__"


class Own:
    """The globals of functions that belong to no module (a namedtuple's, an exec's)."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space
        self.used: set[str] = set()
        self.written: set[str] | None = None
        """The names that were written of it."""
        self.met = 0
        """How often it was met as the globals of a function."""


@rule("builtins.function")
def _function(pickler: Pickler, obj: types.FunctionType) -> Any:
    if obj.__module__ == MODULE:
        return obj.__qualname__
    if findable(obj):
        pickler.from_library(obj.__module__)
        return patched.named(obj) or obj.__qualname__
    if not pickler.inline:
        return pickler.reference(obj)
    key = pickler.definitions.key_of(obj)
    pickler.provides.add(key)
    state = {
        "attrs": {name: getattr(obj, name) for name in _STATE},
        "dict": dict(obj.__dict__),
    }
    if getattr(obj, _EXTRA, ()):
        state["attrs"][_EXTRA] = getattr(obj, _EXTRA)
    args = (key, obj.__code__, _home(pickler, obj), obj.__closure__)
    return make_function, args, state, None, None, fill_function


def _home(pickler: Pickler, obj: types.FunctionType) -> Any:
    """None for `__main__`, the module whose globals they are, or globals of its own."""
    space = obj.__globals__
    if space is getattr(sys.modules.get(MAIN), "__dict__", None):
        return None
    module = sys.modules.get(space.get("__name__", ""))
    if module is not None and module.__dict__ is space:
        return module
    for kept in pickler.spaces.values():
        if type(kept) is types.ModuleType and kept.__dict__ is space:
            return kept
    own = pickler.spaces.setdefault(id(space), Own(space))
    if isinstance(own, Own):
        own.used.update(_names(obj.__code__), pickler.spaces_used.get(id(space), ()))
        own.met += 1
        pickler.seen.append(space)
    return space if id(space) in pickler.spaces_held else own


@rule(f"{Own.__module__}.Own")
def _own(_: Pickler, obj: Own) -> Any:
    obj.written = set(obj.used)
    space = {name: obj.space[name] for name in sorted(obj.used) if name in obj.space}
    space["__name__"] = obj.space.get("__name__", "")
    return make_globals, (), space, None, None, fill_globals


@rule("builtins.code")
def _code(_: Pickler, obj: types.CodeType) -> Any:
    return source.reduce_code(obj)


@rule("builtins.cell")
def _cell(_: Pickler, obj: types.CellType) -> Any:
    try:
        state: tuple[Any, ...] = (obj.cell_contents,)
    except ValueError:
        state = ()
    return make_cell, (), state, None, None, fill_cell


@rule("builtins.module", derived=True)
def _module(pickler: Pickler, obj: types.ModuleType) -> Any:
    name = obj.__name__
    if importable(obj):
        pickler.from_library(name)
        return import_module, (name,)
    if not pickler.inline:
        return pickler.reference(obj)
    key = pickler.definitions.key_of(obj)
    pickler.provides.add(key)
    pickler.spaces.setdefault(id(obj.__dict__), obj)
    state = {name: value for name, value in obj.__dict__.items() if name != "__builtins__"}
    registered = sys.modules.get(name) is obj
    return make_module, (key, name, registered), state, None, None, fill_module


@rule("builtins.method")
def _method(_: Pickler, obj: types.MethodType) -> Any:
    return make_method, (obj.__func__, obj.__self__)


@rule("builtins.property", derived=True)
def _property(_: Pickler, obj: property) -> Any:
    if type(obj) is not property:
        return NotImplemented
    return property, (obj.fget, obj.fset, obj.fdel, obj.__doc__)


@rule("builtins.classmethod", "builtins.staticmethod")
def _wrapped(_: Pickler, obj: Any) -> Any:
    return type(obj), (obj.__func__,)


@rule("functools.cached_property")
def _cached_property(_: Pickler, obj: functools.cached_property[Any]) -> Any:
    return make_cached_property, (obj.func, obj.attrname, obj.__doc__)


@rule("functools._lru_cache_wrapper")
def _lru_cache(pickler: Pickler, obj: Any) -> Any:
    if findable(obj):
        pickler.from_library(obj.__module__)
        return NotImplemented
    state = {name: value for name, value in obj.__dict__.items() if name != "cache_parameters"}
    return (make_lru_cache, (obj.__wrapped__, obj.cache_parameters()), state, None, None,
            update_dict)  # fmt: skip


@rule("typing.TypeVar", "typing.ParamSpec", "typing.TypeVarTuple", "typing.NewType",
      "typing.TypeAliasType")  # fmt: skip
def _typing(pickler: Pickler, obj: Any) -> Any:
    if findable(obj):
        pickler.from_library(obj.__module__)
        return NotImplemented
    if not pickler.inline:
        return pickler.reference(obj)
    key = pickler.definitions.key_of(obj)
    pickler.provides.add(key)
    kind = type(obj).__name__
    args, options = _typing_parts(obj, kind)
    return (
        make_typing,
        (key, kind, args, options),
        {"__module__": obj.__module__},
        None,
        None,
        set_module,
    )


def _typing_parts(obj: Any, kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    options: dict[str, Any] = {}
    if kind == "NewType":
        return (obj.__name__, obj.__supertype__), options
    if kind == "TypeAliasType":
        return (obj.__name__, obj.__value__), {"type_params": obj.__type_params__}
    args: tuple[Any, ...] = (obj.__name__,)
    if kind in ("TypeVar", "ParamSpec"):
        options = {"covariant": obj.__covariant__, "contravariant": obj.__contravariant__}
        if obj.__bound__ is not None:
            options["bound"] = obj.__bound__
        if getattr(obj, "__infer_variance__", False):
            options = {"infer_variance": True} | {k: v for k, v in options.items() if v}
    if kind == "TypeVar":
        args = (*args, *obj.__constraints__)
    if getattr(obj, "has_default", bool)():
        options["default"] = obj.__default__
    return args, options


# -- classes ---------------------------------------------------------------------------------


def reduce_class(pickler: Pickler, obj: type) -> Any:
    """A class: by name where another process finds it, else by key or by value."""
    if kinds.module(obj) == "builtins" and type(obj) is type:
        if obj in _NAMELESS:
            return type, (_NAMELESS[obj],)
        if obj in _TYPES:
            return getattr, (types, _TYPES[obj])
    if findable(obj):
        pickler.from_library(kinds.module(obj))
        placed = patched.named(obj)
        if placed is None and quiet.is_not_asked(obj):
            placed = of_module, (kinds.module(obj), kinds.qualname(obj))
        return placed or kinds.qualname(obj)
    if kinds.derives(obj, _C_DATA):
        return _reduce_c_type(pickler, obj)
    if kinds.flags(obj) & _FIXED or not kinds.flags(obj) & _HEAP:
        raise Refused("it is a type of compiled code, which no module has by its name")
    if not pickler.inline:
        return pickler.reference(obj)
    key = pickler.definitions.key_of(obj)
    pickler.provides.add(key)
    head = {"__module__": kinds.module(obj), "__qualname__": kinds.qualname(obj)}
    if kinds.derives(obj, enum.Enum):
        return _reduce_enum(obj, key, head)
    for early in ("__slots__", "__orig_bases__"):
        if early in kinds.space(obj):
            head[early] = kinds.space(obj)[early]
    state = _class_state(obj)
    if type(given := kinds.space(obj).get("__module__", "")) is not str:
        state["__module__"] = given
    state.pop("__slotnames__", None)
    for name in again.left_out(obj):
        state.pop(name, None)
    state["<version>"] = source.MAGIC, again.parameters(obj)
    if kinds.of(obj, abc.ABCMeta):
        state.update(_registered(obj))
    if joined := _joined(pickler, obj):
        state["<registered in>"] = joined
    args = (key, type(obj), kinds.name(obj), kinds.bases(obj), head)
    return make_class, args, state, None, None, fill_class


_OWN = frozenset({"__module__", "_abc_impl", "__slots__"})


def _class_state(obj: type) -> dict[str, Any]:
    """Attributes of a class, but for those that it has from its making."""
    return {
        name: value
        for name, value in list(kinds.space(obj).items())
        if name not in _OWN and not _is_slot(obj, name, value)
    }


def _is_slot(obj: type, name: str, value: Any) -> bool:
    """Whether it comes of the making; a dataclass with slots may have that of the class before
    it (Python 3.11.2)."""
    kind = type(value)
    if kind is types.GetSetDescriptorType and name in ("__dict__", "__weakref__"):
        return True
    return (
        kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType
    ) and value.__objclass__ is obj


_C_DATA = ctypes.c_int.__mro__[-2]
_C_EARLY = ("_pack_", "_align_", "_anonymous_", "_layout_", "_fields_")


def _reduce_c_type(pickler: Pickler, obj: Any) -> Any:
    """Arrays and pointers follow from what they consist of; structures are made again."""
    if (
        issubclass(obj, ctypes.Array)
        and obj.__name__ == f"{obj._type_.__name__}_Array_{obj._length_}"
    ):
        return make_c_array, (obj._type_, obj._length_)
    if issubclass(obj, ctypes._Pointer) and obj.__name__.startswith("LP_"):
        return make_c_pointer, (obj._type_,)
    if not issubclass(obj, ctypes.Structure | ctypes.Union):
        raise Refused("it is a type of ctypes that is made by a call; make it again")
    if not pickler.inline:
        return pickler.reference(obj)
    key = pickler.definitions.key_of(obj)
    pickler.provides.add(key)
    head = {"__module__": obj.__module__, "__qualname__": obj.__qualname__}
    early = [(name, vars(obj)[name]) for name in _C_EARLY if name in vars(obj)]
    known = {name for name, *_ in vars(obj).get("_fields_", ())} | set(_C_EARLY)
    rest = {name: value for name, value in _class_state(obj).items() if name not in known}
    args = (key, obj.__name__, obj.__bases__, head)
    return make_c_class, args, (early, rest), None, None, fill_c_class


def _registered(obj: type) -> dict[str, Any]:
    """Classes that were registered as virtual subclasses."""
    found = [ref() for ref in abc._get_dump(obj)[0]]  # type: ignore[attr-defined]
    subs = [sub for sub in found if sub is not None]
    return {"<registered>": subs} if subs else {}


def _joined(pickler: Pickler, obj: type) -> list[type]:
    """Abstract classes of Python's own that it was registered with as a virtual subclass."""
    if pickler.joined is None:
        pickler.joined = {}
        for module in (collections.abc, numbers, os, io):
            for kind in vars(module).values():
                if isinstance(kind, abc.ABCMeta):
                    for ref in abc._get_dump(kind)[0]:  # type: ignore[attr-defined]
                        pickler.joined.setdefault(id(ref()), []).append(kind)
    return pickler.joined.get(id(obj), [])


def _reduce_enum(obj: type[enum.Enum], key: str, head: dict[str, Any]) -> Any:
    native = _NATIVE.get(vars(obj)["_member_type_"])
    members: list[tuple[Any, ...]] = [
        (name, member._value_) if native is None else (name, member._value_, native(member))
        for name, member in obj.__members__.items()
    ]
    attributes = {
        name: {key: value for key, value in vars(member).items() if key not in _MEMBER}
        for name, member in obj.__members__.items()
    }
    own = {name: vars(obj)[name] for name in _NEW if name in vars(obj)}
    own |= {name: found for name in _HOOKS if _is_own(found := vars(obj).get(name))}
    state = (
        _enum_state(obj) | own,
        {name: found for name, found in attributes.items() if found},
    )
    args = (key, type(obj), obj.__name__, obj.__bases__, head, members)
    return make_enum, args, state, None, None, fill_enum


def _is_own(found: Any) -> bool:
    """Whether it is a function that Python's own Enum does not have."""
    found = found.__func__ if type(found) in (classmethod, staticmethod) else found
    return type(found) is types.FunctionType and found.__module__ != "enum"


_HOOKS = ("_missing_", "_generate_next_value_", "_numeric_repr_", "_iter_member_")
_NEW = ("_new_member_", "_use_args_", "__new_member__", "_boundary_")
_NATIVE: dict[type, Any] = {
    object: lambda _: (),
    int: lambda member: (int.__int__(member),),
    float: lambda member: (float.__float__(member),),
    str: lambda member: (str.__getitem__(member, slice(None)),),
    bytes: lambda member: (bytes.__getitem__(member, slice(None)),),
    tuple: lambda member: (tuple.__getitem__(member, slice(None)),),
}
"""What a member is made of, by the type that is mixed into its Enum."""
_MEMBER = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_hashable_values_"})


def sentinel(obj: Any) -> Any:
    """What a module compares by identity, if the object is that."""
    return (getattr, _SENTINELS[id(obj)]) if id(obj) in _SENTINELS else NotImplemented


@rule("dataclasses._MISSING_TYPE", "dataclasses._KW_ONLY_TYPE", "dataclasses._FIELD_BASE",
      "dataclasses._HAS_DEFAULT_FACTORY_CLASS")  # fmt: skip
def _sentinel(_: Pickler, obj: Any) -> Any:
    return sentinel(obj)
