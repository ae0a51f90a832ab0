"""Skills in snapshots: a name, which means what the session has under it when it comes back."""

from __future__ import annotations

from typing import Any

from .frozen import frozen


@frozen
def skill_by_name(name: str, module: str) -> Any:
    """What stands for the session's skill of that name; `module` is where it came from."""
    from IPython.core.getipython import get_ipython

    from .. import skills

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return skills.SkillStandIn(None, name, module)
    return skills.of(kernel).stand_in(name, module)


@frozen
def cell_skill() -> Any:
    """A skill of a cell, without its function."""
    from ..cell_skills import CellSkill

    return CellSkill.__new__(CellSkill)


@frozen
def fill_cell_skill(made: Any, state: Any) -> None:
    """Its function and declaration."""
    made.fill(*state)
