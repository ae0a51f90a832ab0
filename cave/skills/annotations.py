"""What the annotations of a skill's function mean, as types that pydantic can check.

An annotation may be a type, a text, or a text that names what comes later in the same file.
Those that name nothing are refused when the skill is declared, with the file and the
parameter; those that come later are looked up when the skill is first used.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cave.errors import SkillError


class Later(Exception):
    """An annotation names what its file defines further down."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a skill is declared, and what names its annotations may use."""

    skill: str
    function: types.FunctionType
    scope: Mapping[str, Any]
    """Local names of a function in which it was declared."""

    @property
    def where(self) -> str:
        """File and line, as editors take them."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def fault(self, parameter: str, problem: str, hint: str) -> SkillError:
        """The error for a parameter of the declaration."""
        return SkillError(
            f"{self.where}: skill {self.skill!r}, function {self.function.__qualname__!r}, "
            f"parameter {parameter!r}: {problem}; {hint}"
        )

    def resolve(self, parameter: str, annotation: Any) -> Any:
        """The type that an annotation means. Raises `SkillError`, `Later`."""
        if annotation is inspect.Parameter.empty:
            return Any
        holder = types.SimpleNamespace(__annotations__={parameter: annotation})
        try:
            hints = typing.get_type_hints(
                typing.cast("Callable[..., Any]", holder),
                self.function.__globals__,
                {**self.scope, **_closed_over(self.function)},
                include_extras=True,
            )
        except NameError as error:
            if error.name and error.name in _bound_in(self.function.__code__.co_filename):
                raise Later(error.name) from error
            raise self.fault(
                parameter,
                f"the annotation {text_of(annotation)} names {error.name!r}, which is not defined",
                "import or define it above the function, or correct the name",
            ) from error
        except Exception as error:
            raise self.fault(
                parameter,
                f"the annotation {text_of(annotation)} is not a type ({_brief(error)})",
                "write a type there, such as `int` or `pd.DataFrame`",
            ) from error
        return hints[parameter]


def text_of(annotation: Any) -> str:
    """An annotation as its author would write it; nothing where there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(annotation).replace("NoneType", "None")


def _brief(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _bound_in(file: str) -> set[str]:
    """Names that a file defines or imports anywhere."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names
