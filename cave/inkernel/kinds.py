"""What a class is called, read past metaclasses: no code of the user runs.

`type(obj)` is safe; `obj.__class__`, `isinstance` and `kind.__module__` are not: a class or
its metaclass may answer them by code of its own.
"""

from __future__ import annotations

import ctypes
import gc
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any

_MODULE: Any = type.__dict__["__module__"]
_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_MRO: Any = type.__dict__["__mro__"]
_SPACE: Any = type.__dict__["__dict__"]
_BASES: Any = type.__dict__["__bases__"]
_FLAGS: Any = type.__dict__["__flags__"]
_SIZE: Any = type.__dict__["__basicsize__"]
_attributes: Any = ctypes.pythonapi["PyObject_GenericGetDict"]
_attributes.argtypes = (ctypes.py_object, ctypes.c_void_p)
_attributes.restype = ctypes.py_object
_modified: Any = ctypes.pythonapi["PyType_Modified"]
_modified.argtypes = (ctypes.py_object,)
_modified.restype = None
_adopt: Any = ctypes.pythonapi["PyObject_GenericSetDict"]
_adopt.argtypes = (ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_adopt_managed: Any = getattr(ctypes.pythonapi, "_PyObject_SetManagedDict", None)
"""What Python 3.13 and later need where attributes may lie inside the object: its generic way
leaves them there, and they hide what the dict has."""
if _adopt_managed is not None:
    _adopt_managed.argtypes = (ctypes.py_object, ctypes.py_object)
_MANAGED = 1 << 4
"""Flag of types whose objects' dict is the interpreter's affair (Include/object.h)."""


def module(kind: type) -> str:
    """Name of the module that a class says it is from."""
    try:
        found = _MODULE.__get__(kind)
    except AttributeError:  # made in C, without one
        return ""
    return found if type(found) is str else ""


def library(kind: type) -> str:
    """The first part of the module's name."""
    return module(kind).partition(".")[0]


def name(kind: type) -> str:
    """Name of a class."""
    return str(_NAME.__get__(kind))


def qualname(kind: type) -> str:
    """Name of a class with those that it is nested in."""
    return str(_QUALNAME.__get__(kind))


def mro(kind: type) -> tuple[type, ...]:
    """A class and its bases, in the order of resolution."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def derives(kind: type, base: type) -> bool:
    """Whether a class inherits from `base`."""
    return any(entry is base for entry in mro(kind))


def of(obj: object, *bases: type) -> bool:
    """`isinstance` that believes the object's real class alone."""
    found = mro(type(obj))
    return any(entry is base for base in bases for entry in found)


def space(kind: type) -> Any:
    """The dict of a class, as a read-only view."""
    return _SPACE.__get__(kind)


def find(kind: type, name: str) -> Any:
    """What a class or the nearest of its bases has under a name, not bound; None if none has."""
    for base in mro(kind):
        if name in (found := space(base)):
            return found[name]
    return None


def bases(kind: type) -> tuple[type, ...]:
    """What a class derives from directly."""
    found: tuple[type, ...] = _BASES.__get__(kind)
    return found


def flags(kind: type) -> int:
    """The flags of a type (Include/object.h)."""
    return int(_FLAGS.__get__(kind))


def size(kind: type) -> int:
    """Bytes of an object of a type, without what its attributes need."""
    return int(_SIZE.__get__(kind))


def is_(kind: type, *others: type) -> bool:
    """Whether a type is one of others; a metaclass may have equality of its own."""
    return any(kind is other for other in others)


def put(kind: type, name: str, value: object) -> None:
    """Put something in the dict of a class, whatever its metaclass has under that name."""
    (found,) = gc.get_referents(space(kind))
    found[name] = value
    _modified(ctypes.py_object(kind))


def plain(kind: type) -> bool:
    """Whether a type can be looked up in sets and dicts: nobody's hash and equality are asked."""
    return all(find(type(kind), name) is space(object)[name] for name in ("__hash__", "__eq__"))


def among(kind: type, known: Container[type]) -> bool:
    """Whether a type is one of those in a set or dict of Python's own types."""
    return type(kind) is type and kind in known


def sorts(items: Iterable[Any]) -> set[type]:
    """The types of objects; `object` stands for all that cannot be looked up."""
    found = list(map(type, items))
    if set(map(type, found)) == {type}:
        return set(found)
    return {kind if plain(kind) else object for kind in found}


def attributes(obj: object) -> dict[str, Any] | None:
    """The dict of an instance, if it has an ordinary one; its class may show another one."""
    if derives(type(obj), type):
        return None
    try:
        found = _attributes(ctypes.py_object(obj), None)
    except AttributeError:
        return None
    return found if type(found) is dict else None


def adopt(obj: object, attributes: dict[str, Any]) -> None:
    """Make a dict the one of an instance."""
    if _adopt_managed is not None and flags(type(obj)) & _MANAGED:
        _adopt_managed(ctypes.py_object(obj), ctypes.py_object(attributes))
    else:
        _adopt(ctypes.py_object(obj), ctypes.py_object(attributes), None)


def slots(obj: object) -> Iterator[tuple[str, Any]]:
    """Slots of the session's and of libraries' classes that an object has filled."""
    for base in mro(type(obj)):
        if module(base) == "builtins":
            continue
        for name, slot in list(space(base).items()):
            if type(slot) is types.MemberDescriptorType:
                try:
                    yield name, slot.__get__(obj)
                except AttributeError:
                    continue
