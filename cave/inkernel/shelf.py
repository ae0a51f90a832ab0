"""Libraries that a template has imported and that a kernel forked from it has not, yet.

A kernel has in `sys.modules` what its cells imported, and images tell by it what is the
user's. So what a template brings along lies on a shelf: the first import of a module takes it
from there, with the library that it belongs to, instead of running it again. A module that
would now be found elsewhere (another folder comes first in `sys.path`) is imported from there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Shelf:
    """A finder and loader of modules that are in memory."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._with: dict[str, frozenset[str]] = {}
        """What comes with each library: all that its import had brought."""

    def load(self, libraries: Iterable[str]) -> None:
        """Import libraries, in order, as far as they are there."""
        before = frozenset(sys.modules)
        for name in libraries:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: S112 - a cell that imports it is told
                continue
            self._with[name] = frozenset(sys.modules) - before

    def hide(self) -> None:
        """From now on they are as if they had not been imported."""
        ours = frozenset().union(*self._with.values())
        for name in [name for name in sys.modules if name in ours]:
            self._modules[name] = sys.modules.pop(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As finders do; None for what is not here, or is elsewhere now."""
        module = self._modules.get(name)
        if module is None:
            return None
        found = self._found(name, path, target)
        known = module.__spec__
        if found is None or known is None or found.origin != known.origin:
            del self._modules[name]
            return found
        taken: Any = found
        taken.loader = _Loader(self, module)
        return found

    def _found(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (found := finder.find_spec(name, path, target)):
                return found
        return None

    def take(self, name: str) -> None:
        """It is imported, and with it what belongs to it."""
        wanted = self._with.get(name.partition(".")[0], frozenset())
        for one in [one for one in self._modules if one in wanted or one == name]:
            sys.modules.setdefault(one, self._modules.pop(one))
        if not self._modules and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    def __init__(self, shelf: Shelf, module: ModuleType) -> None:
        self._shelf = shelf
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; the machinery of imports has only changed its spec."""
        module.__spec__ = self._spec
        self._shelf.take(module.__name__)
