"""Rules by kind of object: how it is written when pickle's own way would not do.

A rule is found by the name of the type, so that no library is imported for it, and gives
what `__reduce_ex__` would: a tuple whose first entry is a frozen function (see `frozen`).
It may answer `pickler.lose(obj, reason)`: a placeholder takes the object's place, and the
manifest names it. What comes back by a recipe says so by `pickler.rebuilt(obj, how)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .. import kinds

if TYPE_CHECKING:
    from .pickler import Pickler

Rule = Callable[["Pickler", Any], Any]
"""Gives a reduced object, or NotImplemented for pickle's own way."""
R = TypeVar("R", bound=Rule)

_exact: dict[str, Rule] = {}
_derived: dict[str, Rule] = {}


def rule(*names: str, derived: bool = False) -> Callable[[R], R]:
    """Register a rule for types called `module.qualname`; with `derived`, for what derives
    from them as well (an exact rule wins, then the nearest base)."""

    def register(made: R) -> R:
        for name in names:
            (_derived if derived else _exact)[name] = made
        return made

    return register


def find(kind: type) -> Rule | None:
    """The rule for objects of exactly this type, if there is one.

    Not remembered: types of the session come and go, and may not be hashable.
    """
    exact = _exact.get(full_name(kind))
    if exact is not None:
        return exact
    for base in kinds.mro(kind):
        if (rule := _derived.get(full_name(base))) is not None:
            return rule
    return None


def full_name(kind: type) -> str:
    """`module.qualname`, as rules spell types."""
    return f"{kinds.module(kind)}.{kinds.qualname(kind)}"
