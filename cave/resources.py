"""`@cave.resource` and `@cave.persistent`: objects that come back by a recipe of yours.

In a cell they register with the kernel that runs it. In the host's process a resource is a
function with a mark: `s.put(warehouse=warehouse)` has the kernel call it, and binds what it
makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

from cave.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

MARK = "__cave_resource__"
"""Attribute of a host's function that the kernel is to call: name and environment."""


def resource(name: str, env: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorate a function that makes a live object: a connection, a client, a handle.

    What it made is not written into snapshots; a restored session calls the function again.
    `env` names the environment variables that it needs: where one is missing the object is
    lost, and the report names the variable, so that passwords stay out of snapshots.
    """
    if isinstance(env, str) or not isinstance(name, str):
        raise ConfigError("type @cave.resource(name='warehouse', env=['WAREHOUSE_URL'])")

    def decorate(make: F) -> F:
        if (plugins := _in_kernel()) is not None:
            made: F = plugins.resource(name, tuple(env))(make)
            return made
        setattr(make, MARK, (name, tuple(env)))
        return make

    return decorate


def persistent(save: Callable[[Any], Any], load: Callable[[Any], Any]) -> Callable[[C], C]:
    """Decorate a class: instances are written as `save(obj)`, and are `load(value)` again.

    For classes of cells; in the host's process the class is given back as it is.
    """

    def decorate(kind: C) -> C:
        plugins = _in_kernel()
        if plugins is None:
            return kind
        made: C = plugins.persistent(save, load)(kind)
        return made

    return decorate


def _in_kernel() -> Any:
    """The kernel's own half, in a process that is a session's kernel."""
    if "_cave_kernel" not in sys.modules or "_cave_kernel.app" not in sys.modules:
        return None
    return import_module("_cave_kernel.image.plugins")
