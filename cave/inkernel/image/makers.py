"""What streams call to rebuild classes, functions and what belongs to them.

Skeleton first, state after, so that cycles close: `make_*` gives an object without state
and `fill_*` completes it. Everything here is frozen (see `frozen`).
"""

from __future__ import annotations

import abc
import builtins
import contextlib
import ctypes
import enum
import functools
import importlib
import sys
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

from .. import kinds
from . import again, source
from .frozen import frozen
from .reading import current

_HEAP = 1 << 9
"""Flag of types that were made at run time (Include/object.h)."""
_MACHINERY = frozenset({"builtins", "typing", "abc", "enum"})


@frozen
def definition(key: str) -> Any:
    """A class or function of the session that another stream brings."""
    found = current().definitions.find(key)
    if found is None:
        raise LookupError("its class or function is not in the snapshot")
    return found


def _brought(key: str) -> Any:
    return current().made.get(key)


def _bring(key: str, made: Any) -> Any:
    reading = current()
    reading.made[key] = made
    reading.definitions.add(key, made, hold=True)
    if type(made) is types.FunctionType and made.__globals__ is reading.main:
        reading.lend(made.__code__.co_qualname, made)
    elif kinds.derives(type(made), type) and kinds.module(made) == "__main__":
        reading.lend(kinds.qualname(made), made)
    return made


@frozen
def make_function(key: str, code: types.CodeType, home: Any, closure: Any) -> types.FunctionType:
    """A function without state; without a home its globals are those of `__main__`."""
    if (known := _brought(key)) is not None:
        return known  # type: ignore[no-any-return]
    space = home.__dict__ if isinstance(home, types.ModuleType) else home
    if space is None:
        space = current().main
    return _bring(key, types.FunctionType(code, space, None, None, closure))  # type: ignore[no-any-return]


@frozen
def fill_function(made: types.FunctionType, state: dict[str, Any]) -> None:
    """Give a function its state."""
    for name, value in state["attrs"].items():
        setattr(made, name, value)
    made.__dict__.update(state["dict"])


@frozen
def make_cell() -> types.CellType:
    """An empty closure cell."""
    return types.CellType()


@frozen
def fill_cell(made: types.CellType, state: tuple[Any, ...]) -> None:
    """Fill a closure cell, if it was filled."""
    if state:
        made.cell_contents = state[0]


@frozen
def make_globals() -> dict[str, Any]:
    """Globals of functions that belong to no module."""
    return {"__builtins__": builtins}


@frozen
def fill_globals(made: dict[str, Any], state: dict[str, Any]) -> None:
    """Fill them."""
    made.update(state)


@frozen
def make_module(key: str, name: str, registered: bool) -> types.ModuleType:
    """A module that was made at run time, still empty."""
    if (known := _brought(key)) is not None:
        return known  # type: ignore[no-any-return]
    made = types.ModuleType(name)
    if registered:
        sys.modules[name] = made
    return _bring(key, made)  # type: ignore[no-any-return]


@frozen
def fill_module(made: types.ModuleType, state: dict[str, Any]) -> None:
    """Give a module its names."""
    made.__dict__.update(state)


@frozen
def import_module(name: str) -> types.ModuleType:
    """A module that is found by its name."""
    if name == "__main__":
        return sys.modules[name]
    return importlib.import_module(name)


@frozen
def make_class(
    key: str, meta: type, name: str, bases: tuple[type, ...], head: dict[str, Any]
) -> type:
    """A class without state. Neither its bases nor its metaclass hear of it again."""
    if (known := _brought(key)) is not None:
        return known  # type: ignore[no-any-return]
    with _Hushed(bases):
        made = _new_class(meta, name, bases, dict(head))
    return _bring(key, made)  # type: ignore[no-any-return]


def _new_class(meta: type, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
    maker = _maker(meta)
    if maker is None:
        return types.new_class(name, bases, {"metaclass": meta}, lambda to: to.update(space))
    made: type = maker.__new__(meta, name, bases, space)
    return made


def _maker(meta: type) -> type | None:
    """Which metaclass of Python's own makes the class, so that nobody's code runs again."""
    module = kinds.module(meta)
    if module not in ("__main__", *_MACHINERY) and sys.modules.get(module):
        return None
    python = (enum.EnumMeta, abc.ABCMeta, type)
    return next(kind for kind in kinds.mro(meta) if kinds.is_(kind, *python))


class _Hushed:
    """No base is told of a class that is made again."""

    def __init__(self, bases: tuple[type, ...]) -> None:
        found = {id(kind): kind for base in bases for kind in kinds.mro(base) if _announces(kind)}
        self._bases = list(found.values())
        self._held: list[tuple[type, Any]] = []

    def __enter__(self) -> None:
        for kind in self._bases:
            self._held.append((kind, kinds.space(kind)["__init_subclass__"]))
            type.__setattr__(kind, "__init_subclass__", classmethod(_silence))

    def __exit__(self, *_: object) -> None:
        for kind, value in self._held:
            type.__setattr__(kind, "__init_subclass__", value)


def _silence(_cls: type, /, **_options: object) -> None:
    pass


def _announces(kind: type) -> bool:
    """Whether a class that is not Python's own has an `__init_subclass__`."""
    return (
        "__init_subclass__" in kinds.space(kind)
        and kinds.module(kind) not in _MACHINERY
        and bool(kinds.flags(kind) & _HEAP)
    )


@frozen
def fill_class(made: type, state: dict[str, Any]) -> None:
    """Give a class its attributes; those that are the same already stay."""
    for sub in state.pop("<registered>", ()):
        abc.ABCMeta.register(made, sub)  # type: ignore[arg-type]
    for base in state.pop("<registered in>", ()):
        abc.ABCMeta.register(base, made)
    magic, given = state.pop("<version>", (source.MAGIC, None))
    for name, value in state.items():
        if kinds.space(made).get(name) is not value:
            _give(made, name, value)
    again.complete(made, state)
    if magic != source.MAGIC:
        again.generate(made, given)


def _give(made: type, name: str, value: Any) -> None:
    """Give a class an attribute; past its metaclass, where that has one of the name itself."""
    if name in _OF_TYPE or not _data(kinds.find(type(made), name)):
        type.__setattr__(made, name, value)
    else:
        kinds.put(made, name, value)


_OF_TYPE = frozenset({"__module__", "__doc__", "__annotations__", "__abstractmethods__",
                      "__type_params__", "__annotate__"})  # fmt: skip
"""What `type` keeps in the dict of a class, though it is asked for it."""


def _data(found: Any) -> bool:
    return found is not None and kinds.find(type(found), "__set__") is not None


@frozen
def make_c_class(key: str, name: str, bases: tuple[type, ...], head: dict[str, Any]) -> type:
    """A structure of ctypes, still without fields."""
    if (known := _brought(key)) is not None:
        return known  # type: ignore[no-any-return]
    return _bring(key, type(bases[0])(name, bases, dict(head)))  # type: ignore[no-any-return]


@frozen
def fill_c_class(made: type, state: tuple[list[tuple[str, Any]], dict[str, Any]]) -> None:
    """Fields of a structure of ctypes, which it may refer to, and its other attributes."""
    early, rest = state
    for name, value in early:
        setattr(made, name, value)
    for name, value in rest.items():
        setattr(made, name, value)  # their metaclass lets nobody pass it by


@frozen
def make_c_array(kind: Any, length: int) -> Any:
    """The type of arrays of that many."""
    return kind * length


@frozen
def make_c_pointer(kind: Any) -> Any:
    """The type of pointers to it."""
    return ctypes.POINTER(kind)


@frozen
def make_enum(
    key: str, meta: Any, name: str, bases: tuple[type, ...], head: dict[str, Any],
    members: list[tuple[Any, ...]],
) -> type:  # fmt: skip
    """An Enum, whose members exist from the start: name, value, and what its mixin holds."""
    if (known := _brought(key)) is not None:
        return known  # type: ignore[no-any-return]
    space = meta.__prepare__(name, bases)
    space.update(head)
    if all(len(member) == 3 for member in members):
        space["__new__"] = _member
        space.update({member[0]: _Member(*member[1:]) for member in members})
    else:
        space.update(dict(members))
    maker = _maker(meta) or meta
    with _Unstarted(bases), _Hushed(bases):
        made = maker.__new__(meta, name, bases, space)
    return _bring(key, made)  # type: ignore[no-any-return]


class _Member:
    """A member to be: its value, and what the type that is mixed in makes it of."""

    def __init__(self, value: Any, native: tuple[Any, ...]) -> None:
        self.value = value
        self.native = native


def _member(cls: Any, entry: _Member) -> Any:
    made = cls._member_type_.__new__(cls, *entry.native)
    made._value_ = entry.value
    return made


class _Unstarted:
    """No `__init__` of a base runs for members that have their attributes already."""

    def __init__(self, bases: tuple[type, ...]) -> None:
        self._bases = [kind for base in bases for kind in base.__mro__
                       if issubclass(kind, enum.Enum) and kind.__module__ not in _MACHINERY
                       and "__init__" in vars(kind)]  # fmt: skip
        self._held: list[tuple[type, Any]] = []

    def __enter__(self) -> None:
        for kind in self._bases:
            self._held.append((kind, vars(kind)["__init__"]))
            type.__delattr__(kind, "__init__")

    def __exit__(self, *_: object) -> None:
        for kind, value in self._held:
            type.__setattr__(kind, "__init__", value)


@frozen
def fill_enum(made: Any, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    """Methods of an Enum, and attributes of its members."""
    attributes, members = state
    if "__new_member__" not in attributes and "__new_member__" in vars(made):
        type.__delattr__(made, "__new_member__")
    fill_class(made, attributes)
    for name, values in members.items():
        made._member_map_[name].__dict__.update(values)


@frozen
def make_method(func: Callable[..., Any], owner: Any) -> types.MethodType:
    """A bound method."""
    return types.MethodType(func, owner)


@frozen
def make_cached_property(
    func: Callable[[Any], Any], name: str | None, doc: str | None
) -> functools.cached_property[Any]:
    """A cached property that knows its name already."""
    made = functools.cached_property(func)
    made.attrname = name
    made.__doc__ = doc
    return made


@frozen
def make_lru_cache(func: Callable[..., Any], limits: dict[str, Any]) -> Any:
    """A memoised function that has been called with nothing yet."""
    return functools.lru_cache(**limits)(func)


@frozen
def make_typing(key: str, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A type variable, a new type or an alias of the session."""
    if (known := _brought(key)) is not None:
        return known
    return _bring(key, getattr(typing, kind)(*args, **options))


@frozen
def update_dict(made: Any, state: dict[str, Any]) -> None:
    """Give an object its attributes, past any `__setattr__`."""
    made.__dict__.update(state)


@frozen
def fill_past(made: Any, state: Any) -> None:
    """Give an object its attributes past its own `__getattr__` and `__setattr__`."""
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    if attributes:
        kinds.attributes(made).update(attributes)  # type: ignore[union-attr]
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


@frozen
def adopt_dict(made: Any, state: dict[str, Any]) -> None:
    """Its attributes are this dict, which others have as well."""
    kinds.adopt(made, state)


@frozen
def adopt_itself(made: Any, pairs: list[tuple[Any, Any]]) -> None:
    """A dict whose attributes are its own entries."""
    for key, value in pairs:
        dict.__setitem__(made, key, value)
    kinds.adopt(made, made)


@frozen
def of_module(module: str, name: str) -> Any:
    """What a module has under that name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def preset() -> tuple[Any, ...]:
    """Lists and dicts of the interpreter, which are there already; their order is for ever."""
    main = sys.modules["__main__"].__dict__
    return main, sys.modules, sys.path, sys.argv, builtins.__dict__, sys.meta_path, warnings.filters


@frozen
def set_module(made: Any, state: dict[str, Any]) -> None:
    """Say which module it is from, if it lets itself be told."""
    with contextlib.suppress(AttributeError):
        made.__module__ = state["__module__"]


def set_state(made: Any, state: Any) -> None:
    """Give an object its state as pickle does."""
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    if attributes:
        made.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        setattr(made, name, value)


@frozen
def fill_container(made: Any, content: tuple[Any, Any, Any]) -> None:
    """Fill a container of the user past its own methods."""
    state, items, pairs = content
    if items is not None:
        list.extend(made, items)
    for key, value in pairs or ():
        dict.__setitem__(made, key, value)
    if state is not None:
        set_state(made, state)
