"""Brings the rules in, when the first object asks for one."""

from __future__ import annotations

import importlib
import pkgutil

_loaded: list[str] = []
failed: dict[str, str] = {}
"""Modules of rules that could not be imported, and why: a fault of ours."""
_MODULES = ("made", "plain", "arrays", "frames")


def load() -> None:
    """Import every module of this package that registers rules."""
    if _loaded:
        return
    package = importlib.import_module(__package__)
    names = [found.name for found in pkgutil.iter_modules(package.__path__)]
    recipes = [name for name in names if name.startswith("recipes")]
    for name in [*(known for known in _MODULES if known in names), *recipes]:
        try:
            importlib.import_module(f"{__package__}.{name}")
        except Exception as error:  # fewer kinds; the tests fail on any
            failed[name] = f"{type(error).__name__}: {error}"
        _loaded.append(name)
