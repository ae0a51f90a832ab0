"""`@cave.skill` in a cell: a skill of the session that runs in the kernel.

It is a variable like any function of a cell, and comes back with it. What the host must know
of it to keep the ledger goes with each call, as the word of a cell.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import textwrap
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import invoke, skills
from .errors import SkillError
from .invoke import Skill

if TYPE_CHECKING:
    from .kernel import Kernel

_DEFAULTS: dict[str, Any] = {
    "version": "0.0.0", "effect": "none", "approval": "never", "in_doubt": "ask", "retries": 0,
    "transient": (), "timeout": None, "undo": None, "runs": "kernel", "inputs": None,
    "outputs": (),
}  # fmt: skip
_ALLOWED = {
    "effect": ("none", "read", "write"),
    "approval": ("never", "always"),
    "in_doubt": ("ask", "retry"),
    "runs": ("kernel",),
}


def _seconds(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    right = value is None or (number and 0 < value < float("inf"))
    return "" if right else "a number of seconds above 0"


def _count(value: Any) -> str:
    right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return "" if right else "a number of 0 or more"


def _kinds(value: Any) -> str:
    kinds = value if isinstance(value, tuple | list) else (value,)
    right = all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    return "" if right else "a class of exceptions such as ConnectionError"


_CHECKED: dict[str, Callable[[Any], str]] = {
    "timeout": _seconds,
    "retries": _count,
    "transient": _kinds,
    "version": lambda value: "" if isinstance(value, str) else "a text such as '1.2.0'",
}
"""What a setting has to be, in words; empty for what is right."""


class CellSkill(skills.Usable):
    """A function of a cell with a declaration."""

    def __init__(self, function: types.FunctionType, declaration: dict[str, Any]) -> None:
        self.fill(function, declaration)

    def fill(self, function: types.FunctionType, declaration: dict[str, Any]) -> None:
        """Be the skill of this function."""
        self.stand_for(Skill(declaration, function, of_cell=True))

    @property
    def function(self) -> Any:
        """What it calls."""
        return self.present()[1].function

    def present(self) -> tuple[Kernel, Skill]:
        """The kernel that runs it, and what it stands for."""
        from IPython.core.getipython import get_ipython

        assert self._skill is not None
        kernel: Any = getattr(get_ipython(), "kernel", None)
        return kernel, self._skill

    def __reduce__(self) -> Any:
        from .image.recipes_skills import cell_skill, fill_cell_skill

        assert self._skill is not None
        state = (self._skill.function, dict(self._skill.declaration))
        return cell_skill, (), state, None, None, fill_cell_skill


def skill(function: Any = None, /, **settings: Any) -> Any:
    """Make a skill of a function of a cell: `@cave.skill`, or `@cave.skill(effect="write")`.

    What runs on the host, or needs functions of its own for approval or doubts, is declared
    in the session's own process: `@s.skill`. Raises `SkillError`.
    """
    if function is None:
        return lambda made: _declared(made, settings)
    return _declared(function, settings)


def use_skill(name: str) -> None:
    """Show the instructions of a skill; its functions can be called from the next cell on.

    Raises `SkillError`.
    """
    from IPython.core.getipython import get_ipython

    kernel: Any = getattr(get_ipython(), "kernel", None)
    stand_in = skills.of(kernel).stand_in("use_skill", "")
    if not stand_in.stands:
        raise SkillError(
            f"no operator has worked in this session yet: type s.use_skill({name!r}) where it was "
            f"opened, and call the functions of the skill in the next cell"
        )
    stand_in(name)


def _declared(function: Any, settings: dict[str, Any]) -> CellSkill:
    if not isinstance(function, types.FunctionType):
        raise SkillError(f"@cave.skill cannot make a skill of {function!r}: decorate a `def`")
    name = settings.pop("name", None) or function.__name__
    for key, value in settings.items():
        if key not in _DEFAULTS:
            raise SkillError(f"skill {name!r}: there is no setting {key!r}")
        if key in _ALLOWED and value not in _ALLOWED[key]:
            raise SkillError(
                f"skill {name!r}: {key} is {value!r}; a cell's skill takes "
                f"{', '.join(map(repr, _ALLOWED[key]))}; for others declare it with @s.skill "
                f"where the session was opened"
            )
        if key in _CHECKED and (expected := _CHECKED[key](value)):
            raise SkillError(f"skill {name!r}: {key} is {value!r}, not {expected}")
    return CellSkill(function, _declaration(name, function, {**_DEFAULTS, **settings}))


def _declaration(
    name: str, function: types.FunctionType, settings: dict[str, Any]
) -> dict[str, Any]:
    signature = inspect.signature(function)
    context = next((p.name for p in signature.parameters.values() if _is_context(p)), None)
    taken = [p for p in signature.parameters.values() if p.name != context]
    shown = signature.replace(parameters=taken)
    transient = settings["transient"]
    kinds = (transient,) if isinstance(transient, type) else tuple(transient)
    told = {
        **settings,
        "transient": [kind.__name__ for kind in kinds],
        "undo": getattr(settings["undo"], "__name__", settings["undo"]),
        "outputs": list(settings["outputs"]),
        "inputs": None,
        "name": name,
        "signature": f"{name}{shown}",
    }
    digest = hashlib.sha256(json.dumps([_source(function), told], sort_keys=True).encode())
    return {
        **told,
        "doc": inspect.getdoc(function) or "",
        "parameters": [_parameter(p) for p in taken],
        "hash": digest.hexdigest(),
        "module": function.__module__,
        "is_async": inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function),
        "is_generator": inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function),
        "wants_context": context is not None,
        "context": context,
    }


def _is_context(p: inspect.Parameter) -> bool:
    if p.annotation is p.empty:
        return p.name == "ctx"
    return p.annotation is invoke.Context or str(p.annotation).rpartition(".")[2] == "SkillContext"


def _parameter(p: inspect.Parameter) -> dict[str, Any]:
    annotation = "" if p.annotation is p.empty else inspect.formatannotation(p.annotation)
    return {
        "name": p.name,
        "kind": p.kind.name,
        "default": None if p.default is p.empty else repr(p.default)[:200],
        "required": p.default is p.empty and not p.kind.name.startswith("VAR_"),
        "annotation": annotation,
    }


def _source(function: types.FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError):
        return function.__code__.co_code.hex() + repr(function.__code__.co_consts)
