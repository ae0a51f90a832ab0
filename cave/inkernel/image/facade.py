"""`import cave` in cells of an environment that has no cave: the little that cells need."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

_NAME = "cave"


class Facade(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last to be asked for a module; it has one."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The facade, when nobody else had a module of that name."""
        return importlib.machinery.ModuleSpec(_NAME, self) if name == _NAME else None

    def create_module(self, spec: Any) -> None:
        """An ordinary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill it."""
        from . import plugins

        module.__doc__ = __doc__
        vars(module).update(vars(plugins.facade))


def install() -> None:
    """Offer it, behind all that is installed."""
    if not any(type(finder) is Facade for finder in sys.meta_path):
        sys.meta_path.append(Facade())
