"""Arguments of skills that run in the kernel: checked against the annotations, made plain.

The check is pydantic's, where the environment has it; without it the function is called as
the cell calls it. What may be turned into what is said in `strictness`, for both sides.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

from .errors import SkillError

Check = Callable[[dict[str, Any]], dict[str, Any]]


def of(skill: str, function: Callable[..., Any], context: str | None) -> Check:
    """What checks the arguments, by name, of one call, and converts them where that is safe."""
    taken = [p for p in inspect.signature(function).parameters.values() if p.name != context]
    if all(p.annotation is inspect.Parameter.empty for p in taken):
        return _unchecked
    try:
        import pydantic
    except ImportError:
        return _unchecked
    validator = _compiled(skill, function, taken)

    def check(given: dict[str, Any]) -> dict[str, Any]:
        try:
            accepted: dict[str, Any] = validator.validate_python(given)
        except pydantic.ValidationError as error:
            raise _refused(skill, error.errors(include_url=False)) from None
        return accepted

    return check


def _unchecked(given: dict[str, Any]) -> dict[str, Any]:
    return given


def _compiled(skill: str, function: Callable[..., Any], taken: list[inspect.Parameter]) -> Any:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_core import SchemaValidator
    from typing_extensions import TypedDict

    from .strictness import strict

    try:
        told = {p.name: p.annotation for p in taken if p.annotation is not p.empty}
        holder: Any = types.SimpleNamespace(__annotations__=told)
        space = getattr(inspect.unwrap(function), "__globals__", {})
        hints = typing.get_type_hints(holder, space, include_extras=True)
        fields = {p.name: _field(p, hints.get(p.name, Any)) for p in taken}
        shape = TypedDict("Arguments", fields)  # type: ignore[misc]
        shape.__pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SchemaValidator(strict(TypeAdapter(shape).core_schema))
    except Exception as error:
        raise SkillError(
            f"{skill}() was not called: its annotations cannot be checked here "
            f"({type(error).__name__}: {error}); mend them, or let it run on the host"
        ) from error


def _field(p: inspect.Parameter, kind: Any) -> Any:
    from typing import NotRequired

    if p.kind is inspect.Parameter.VAR_POSITIONAL:
        return NotRequired[tuple[kind, ...]]
    if p.kind is inspect.Parameter.VAR_KEYWORD:
        return NotRequired[dict[str, kind]]
    if p.default is None:
        return NotRequired[typing.Optional[kind]]  # noqa: UP045
    return kind if p.default is inspect.Parameter.empty else NotRequired[kind]


def _refused(skill: str, faults: list[Any]) -> SkillError:
    told = []
    for fault in faults[:5]:
        path = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in fault["loc"])
        value, said = fault["input"], fault["msg"].removeprefix("Value error, ")
        name = path.removeprefix(".")
        told.append(f"argument {name!r} is a {type(value).__name__}, {_short(value)}: {said}")
    return SkillError(f"{skill}() was not called: {'; '.join(told)}")


def _short(value: object) -> str:
    try:
        said = " ".join(repr(value)[:200].split())
    except Exception:
        return "which cannot be shown"
    return said if len(said) <= 60 else said[:57] + "..."


def plain(value: Any) -> Any:
    """Models, dataclasses and enums as the dicts and values that they are made of."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(type(value), "model_dump") and hasattr(type(value), "model_fields"):
        return plain(value.model_dump())
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return tuple(map(plain, value))
    return value
