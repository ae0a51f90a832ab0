"""What a class is called, read past metaclasses: no code of the user runs.

`type(obj)` is safe; `obj.__class__`, `isinstance` and `kind.__module__` are not: a class or
its metaclass may answer them by code of its own.
"""

from __future__ import annotations

from typing import Any

_MODULE: Any = type.__dict__["__module__"]
_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_MRO: Any = type.__dict__["__mro__"]
_SPACE: Any = type.__dict__["__dict__"]


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
    return any(base in found for base in bases)


def space(kind: type) -> Any:
    """The dict of a class, as a read-only view."""
    return _SPACE.__get__(kind)


def attributes(obj: object) -> dict[str, Any] | None:
    """The dict of an instance, if it has an ordinary one."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None
