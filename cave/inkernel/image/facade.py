"""`import cave` in cells: the little of it that cells need, whether or not it is installed.

The package itself operates sessions from outside. In a session's own kernel the name stands
for what works there; the modules below an installed package can still be imported by name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

_NAME = "cave"
_ERRORS = f"{_NAME}.errors"
_HERE = __package__.rpartition(".")[0]
_HOMES = {
    "each": "each",
    "persistent": "image.plugins",
    "resource": "image.plugins",
    "skill": "cell_skills",
    "use_skill": "cell_skills",
    "SkillContext": "invoke",
}
"""Names in cells, and which module of ours has them; errors are in `errors`."""


class Facade(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The first to be asked for a module; it has one, and its errors where nobody else has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The facade; its errors, when cave is not installed."""
        if name == _NAME:
            spec = importlib.machinery.ModuleSpec(_NAME, self, is_package=True)
            spec.submodule_search_locations = self._installed()
            return spec
        if name == _ERRORS and not path:
            return importlib.machinery.ModuleSpec(_ERRORS, self)
        return None

    def _installed(self) -> list[str]:
        """The folder of the installed package."""
        others = [finder for finder in sys.meta_path if finder is not self]
        for finder in others:
            found = getattr(finder, "find_spec", _nothing)(_NAME, None)
            if found is not None:
                return list(found.submodule_search_locations or ())
        return []

    def create_module(self, spec: Any) -> None:
        """An ordinary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill it, with what is loaded at its first use."""
        if module.__name__ == _ERRORS:
            vars(module).update(_ours("errors").OURS)
            return
        module.__doc__ = __doc__
        vars(module).update(__getattr__=_attribute, __dir__=_names)


def _nothing(*_: Any) -> None:
    """What a finder without `find_spec` finds."""


def _ours(name: str) -> Any:
    return importlib.import_module(f"{_HERE}.{name}")


def _names() -> list[str]:
    return sorted([*_HOMES, *_ours("errors").OURS])


def _attribute(name: str) -> Any:
    if (home := _HOMES.get(name)) is not None:
        found = getattr(_ours(home), "Context" if name == "SkillContext" else name)
    elif name[:2] != "__" and name in (errors := _ours("errors").OURS):
        found = errors[name]
    else:
        raise AttributeError(
            f"in cells cave has no {name!r}; there are {', '.join(_HOMES)} and the errors"
        )
    setattr(sys.modules[_NAME], name, found)
    return found


def install() -> None:
    """Offer it, before all that is installed."""
    if not any(type(finder) is Facade for finder in sys.meta_path):
        sys.meta_path.insert(0, Facade())
