"""Objects that a library itself has under a name: written, they are that of the library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import kinds
from .definitions import findable
from .makers import of_module

if TYPE_CHECKING:
    from .pickler import Pickler

KEPT = frozenset({"random", "os", "matplotlib", "pandas", "numpy", "warnings", "logging", "sys"})
"""Libraries whose own state is kept beside the namespace (see `hidden`)."""
_KINDS = 2000
_known: dict[int, tuple[type, tuple[int, ...], dict[int, tuple[str, str]]]] = {}


def of(kind: type) -> dict[int, tuple[str, str]]:
    """Objects of a library's type that the library itself has under a name, by id."""
    name = kinds.module(kind)
    if name in ("__main__", "builtins", "") or kinds.derives(kind, type):
        return {}
    spaces = {
        module: found
        for module in dict.fromkeys((name.partition(".")[0], name))
        if type(found := getattr(sys.modules.get(module), "__dict__", None)) is dict
    }
    sizes = tuple(map(len, spaces.values()))
    known = _known.get(id(kind))
    if known is None or known[0] is not kind or known[1] != sizes:
        singles = {
            id(value): (module, path)
            for module, space in spaces.items()
            for path, value in list(space.items())
            if type(value) is kind
        }
        known = _known[id(kind)] = kind, sizes, singles if findable(kind) else {}
        if len(_known) > _KINDS:
            _known.clear()
    return known[2]


def handler(
    named: dict[int, tuple[str, str]], ordinary: Callable[[Pickler, Any], Any]
) -> Callable[[Pickler, Any], Any]:
    """The object of a module is the module's; with what it holds only where that is kept."""

    def write(pickler: Pickler, obj: Any) -> Any:
        reduced = ordinary(pickler, obj)
        place = named.get(id(obj))
        if place is None or not isinstance(reduced, tuple):
            return reduced
        if getattr(sys.modules.get(place[0]), place[1], None) is not obj:
            return reduced
        library = place[0].partition(".")[0]
        if library in KEPT or library in sys.stdlib_module_names:
            pickler.from_library(place[0])
            return of_module, place
        if len(reduced) > 2 and any(part is not None for part in reduced[2:5]):
            pickler.rebuilt(obj, f"a copy, no longer {'.'.join(place)} itself")
        return reduced

    return write
