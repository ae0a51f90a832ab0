"""The classes and functions made in a session: one key for each, one object for each key.

Whoever refers to a definition from another stream does it by its key, so that a class and
its instances, a function and those who call it meet again. What another process can import
is no definition. Definitions are held weakly: one that nobody has any more is forgotten.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
import typing
import uuid
import weakref
from collections.abc import Collection
from typing import Any

from .. import kinds
from .frozen import MODULE

MAIN = "__main__"
_ALONE = 2
"""References to an object that only the one who asks has."""
_KEYED = (types.FunctionType, types.ModuleType)
_TYPING = tuple(
    getattr(typing, name)
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
    if hasattr(typing, name)
)
"""What is compared by identity, though it is neither class nor function."""


class Definitions:
    """Keys of live definitions, and the definitions of keys."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[Any, str]] = {}
        self._found: dict[str, Any] = {}
        self._held: list[Any] = []
        self._passing: dict[str, Any] = {}
        """What was referred to since `keep`, and what nobody else has of it."""

    def is_definition(self, obj: object) -> bool:
        """Whether another process can have it only from a snapshot."""
        kind = type(obj)
        if not kinds.derives(kind, type) and not kinds.is_(kind, *_KEYED, *_TYPING):
            return False
        return id(obj) in self._keys or not findable(obj)

    def key_of(self, obj: object) -> str:
        """The key of a definition; it has the same one for as long as it lives."""
        known = self._keys.get(id(obj))
        if known is not None and known[0]() is obj:
            return known[1]
        key = uuid.uuid4().hex
        self.add(key, obj)
        return key

    def find(self, key: str) -> Any:
        """The definition of that key, or None when there is none (any more)."""
        found = self._found.get(key)
        return None if found is None else found()

    def settle(self) -> None:
        """Hold no longer what was read: the variables that needed it are there by now."""
        self._held.clear()

    def refer(self, obj: object) -> str:
        """The key of a definition that is referred to; an object may have made it for that."""
        key = self.key_of(obj)
        self._passing[key] = obj
        return key

    def keep(self, used: Collection[str]) -> None:
        """Hold what nobody else has of the definitions that are used, and nothing more."""
        passing, self._passing = self._passing, {}
        while passing:
            key, obj = passing.popitem()
            if key in used and sys.getrefcount(obj) <= _ALONE:
                self._passing[key] = obj

    def add(self, key: str, obj: object, *, hold: bool = False) -> None:
        """Give a definition its key; what a stream brings is held until all is read."""
        number = id(obj)

        def forget(ref: object) -> None:
            if (held := self._keys.get(number)) is not None and held[0] is ref:
                del self._keys[number]
            if self._found.get(key) is ref:
                del self._found[key]

        if hold:
            self._held.append(obj)
        try:
            ref: Any = weakref.ref(obj, forget)
        except TypeError:  # an alias by `type X = ...`
            ref = functools.partial(_itself, obj)
        self._keys[number] = ref, key
        self._found[key] = ref

    def keys(self) -> set[str]:
        """Keys of all that live."""
        return set(self._found)


def _itself(obj: Any) -> Any:
    return obj


def findable(obj: Any) -> bool:
    """Whether another process can have it by module and name."""
    if kinds.of(obj, types.ModuleType):
        return importable(obj)
    name, path = _address(obj)
    if name == MODULE:
        return True
    if name is None or path is None or name == MAIN:
        return False
    module = sys.modules.get(name) or _imported(name)
    if module is None or not importable(module, name):
        return False
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is obj or id(obj) in replaced


replaced: dict[int, tuple[str, str, str]] = {}
"""Places of what libraries had where cells have put something else, by id (see `patched`)."""


def _imported(name: str) -> types.ModuleType | None:
    """A module of a library that is here, as unpickling would import it."""
    if "." not in name or name.partition(".")[0] not in sys.modules:
        return None
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def _address(obj: Any) -> tuple[str | None, str | None]:
    if kinds.of(obj, type):
        return kinds.module(obj), kinds.qualname(obj)
    name = getattr(obj, "__module__", None)
    path = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    return name if type(name) is str else None, path if type(path) is str else None


def importable(module: types.ModuleType, known_as: str | None = None) -> bool:
    """Whether a module comes from a place that another process finds as well.

    `_io` says that it is called `io`: what it is known as decides, where that is given.
    """
    space = object.__getattribute__(module, "__dict__")
    name = space.get("__name__") if known_as is None else known_as
    if name in (MAIN, MODULE):
        return True
    if type(name) is not str or sys.modules.get(name) is not module:
        return False
    spec = space.get("__spec__")
    return spec is not None and not (
        spec.loader is None and spec.submodule_search_locations is None
    )
