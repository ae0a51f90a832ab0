"""`Lost`: stands where an object could not come back, and says so when it is used."""

from __future__ import annotations

from typing import Any

from .frozen import frozen


class ObjectLost(RuntimeError):
    """An object is used that did not come back with its snapshot."""


class Lost:
    """A placeholder. Whatever is done with it raises `ObjectLost`; its repr tells all."""

    __slots__ = ("_cave_lost",)

    def __init__(self, name: str, type: str, reason: str, cell: int | None = None) -> None:
        object.__setattr__(self, "_cave_lost", (name, type, reason, cell))

    def __repr__(self) -> str:
        name, type, reason, cell = object.__getattribute__(self, "_cave_lost")
        made = f", made by cell {cell}" if cell else ""
        return f"<lost {name or 'object'} ({type}{made}): {reason}>"

    def __reduce__(self) -> Any:
        return make_lost, object.__getattribute__(self, "_cave_lost")

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        raise self._cave_error()

    __hash__ = object.__hash__

    def __getattr__(self, attribute: str) -> Any:
        if attribute[:2] == "__" or attribute.startswith(("_repr_", "_ipython_")):
            raise AttributeError(attribute)  # asked by protocols, not by people
        raise self._cave_error()

    def _cave_error(self) -> ObjectLost:
        name, type, reason, cell = object.__getattribute__(self, "_cave_lost")
        made = f", made by cell {cell}," if cell else ""
        return ObjectLost(
            f"{name or 'this object'} ({type}{made}) did not come back with the snapshot: "
            f"{reason}; make it again"
        )


def _raises(name: str) -> Any:
    def method(self: Lost, *_: Any, **__: Any) -> Any:
        raise self._cave_error()

    method.__name__ = name
    return method


_USES = """
setattr delattr call len iter next getitem setitem delitem contains bool int float index str bytes
format add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and rand or
ror xor rxor lshift rshift neg pos abs invert lt le gt ge matmul rmatmul enter exit await aiter
anext aenter aexit fspath array round trunc floor ceil
"""
for _name in _USES.split():
    setattr(Lost, f"__{_name}__", _raises(f"__{_name}__"))


@frozen
def make_lost(name: str, type: str, reason: str, cell: int | None = None) -> Lost:
    """The placeholder of an object that could not be written."""
    return Lost(name, type, reason, cell)
