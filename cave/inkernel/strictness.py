"""What pydantic may turn into what, for arguments that come from Python cells.

Cells pass objects, not texts of a web form, so a text is never read as a number: "12" for an
`int` is a mistake of the caller, and is refused. What means the same is taken: numpy's and
pandas' numbers, `3.0` for an `int`, an `int` for a `float`, a mapping for a dataclass, an ISO
text for a date, a text for a `Path`, an `Enum` by its value. Numbers are never dates.
Models of pydantic keep the rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPAQUE = frozenset({"metadata", "serialization", "config", "cls", "default", "expected"})


def strict(schema: Any) -> Any:
    """A core schema with these rules put into it; the given one is left as it is."""
    match schema:
        case {"type": "model"}:
            return schema
        case {"type": str(kind)} if kind in _BEFORE:
            return _guarded(kind, schema)
        case dict():
            return {k: v if k in _OPAQUE else strict(v) for k, v in schema.items()}
        case list() | tuple():
            return type(schema)(map(strict, schema))
        case _:
            return schema


def _guarded(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    if "strict" in schema:
        return schema
    exact = schema if kind in _TIMES else {**schema, "strict": True}
    before = {"type": "no-info", "function": _BEFORE[kind]}
    return {"type": "function-before", "function": before, "schema": exact}


def _scalar(value: Any) -> Any:
    """A number of numpy's as Python's own."""
    item = getattr(value, "item", None)
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != () or item is None:
        return value
    return item()


def _whole(value: Any) -> Any:
    number = _scalar(value)
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number


def _moment(value: Any) -> Any:
    """Refuse numbers, which pydantic would take for seconds since 1970."""
    bare = value.strip().lstrip("+-").replace(".", "") if isinstance(value, str) else ""
    if isinstance(value, int | float) or bare.isdecimal():
        raise ValueError("a number is not taken for a date or a time: write it as 2026-01-31")
    return value


_TIMES = frozenset({"date", "datetime", "time"})
_BEFORE: dict[str, Callable[[Any], Any]] = {
    "int": _whole,
    "float": _scalar,
    "bool": _scalar,
    "str": _scalar,
    **dict.fromkeys(_TIMES, _moment),
}
