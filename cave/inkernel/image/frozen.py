"""The names that streams call when they are read: once written, for ever.

A stream refers to the functions that rebuild its objects as `_cave_unpickle_v1.NAME`. That
module is made here, of functions from all over this package, so that code can move while
old streams stay readable. A frozen function never changes its arguments' meaning; a new
meaning takes a new name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

MODULE = "_cave_unpickle_v1"

F = TypeVar("F", bound=Callable[..., Any])

_module = sys.modules.setdefault(MODULE, types.ModuleType(MODULE, __doc__))


def frozen(made: F) -> F:
    """Let streams call this function or class by its name."""
    made.__module__ = MODULE
    made.__qualname__ = made.__name__
    setattr(_module, made.__name__, made)
    return made
