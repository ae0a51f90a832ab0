"""Classes read by another minor version of Python: what their library generated is generated again.

The methods of a dataclass or a namedtuple have no source, and typing's own differ between
versions; all of them follow from the rest of the class.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import sys
import types
import typing
from typing import Any

from .. import kinds
from .frozen import frozen
from .reading import current
from .rules import rule

_PARAMETERS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only")
_OF_VERSION = ("__protocol_attrs__", "__non_callable_proto_members__", "__static_attributes__",
               "__firstlineno__", "__callable_proto_members_only__")  # fmt: skip
_DATACLASS = (
    "__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__",
    "__setattr__", "__delattr__", "__replace__", "__match_args__",
)  # fmt: skip
_TUPLE = ("__new__", "_make", "_replace", "__repr__", "_asdict", "__getnewargs__", "__replace__")


def left_out(kind: type) -> set[str]:
    """Attributes that are code of a library's own, which `complete` finds there again."""
    return {
        name
        for name, value in list(kinds.space(kind).items())
        if type(found := _function(value)) is types.FunctionType
        and (found.__globals__ is vars(typing) or found is getattr(dataclasses, "_replace", None))
    }


def _function(value: Any) -> Any:
    return value.__func__ if kinds.is_(type(value), staticmethod, classmethod) else value


def parameters(kind: type) -> dict[str, Any] | None:
    """What a dataclass was made with, in words of its decorator."""
    found = kinds.space(kind).get("__dataclass_params__")
    if found is None:
        return None
    known = {name: getattr(found, name, None) for name in _PARAMETERS}
    known["match_args"] = "__match_args__" in kinds.space(kind)
    return {name: value for name, value in known.items() if value is not None}


def complete(made: Any, state: dict[str, Any]) -> None:
    """Give a class what was left out of its attributes."""
    if state.get("_is_protocol") is True:
        typing.Protocol.__init_subclass__.__func__(made)  # type: ignore[attr-defined]
    if "__dataclass_params__" in state and hasattr(dataclasses, "_replace"):
        type.__setattr__(made, "__replace__", dataclasses._replace)
    if (generic := state.get("__pydantic_generic_metadata__")) and generic.get("origin"):
        _parametrized(made, generic)


def _parametrized(made: Any, generic: dict[str, Any]) -> None:
    """Let `Model[int]` be the class that it was; pydantic keeps them in a table of its own."""
    generics = sys.modules.get("pydantic._internal._generics")
    remember = getattr(generics, "set_cached_generic_type", None)
    if remember is not None:
        remember(generic["origin"], generic["args"], made, generic["origin"], generic["args"])


@rule("dataclasses._DataclassParams")
def _parameters(_: Any, obj: Any) -> Any:
    names = (*_PARAMETERS, "slots", "weakref_slot")
    return make_dataclass_params, ({n: getattr(obj, n) for n in names if hasattr(obj, n)},)


@frozen
def make_dataclass_params(values: dict[str, Any]) -> Any:
    """What a dataclass was made with, as far as this version of Python knows it."""
    kind: Any = dataclasses._DataclassParams  # type: ignore[attr-defined]
    known = inspect.signature(kind).parameters
    given = {name: value for name, value in values.items() if name in known}
    return kind(**dict.fromkeys(known, False) | given)


def generate(made: Any, given: dict[str, Any] | None) -> None:
    """Generate methods again, of a class whose attributes are there."""
    if vars(made).get("_is_protocol"):
        _protocol(made)
    if given is not None:
        _dataclass(made, given)
    elif tuple in made.__bases__ and hasattr(made, "_field_defaults"):
        _namedtuple(made)


def _protocol(made: Any) -> None:
    for name in _OF_VERSION:
        if name in vars(made):
            type.__delattr__(made, name)
    type(made).__init__(made, made.__name__, made.__bases__, {})
    if vars(made).get("_is_runtime_protocol"):
        typing.runtime_checkable(made)


def _dataclass(made: Any, given: dict[str, Any]) -> None:
    fields = vars(made).get("__dataclass_fields__", {})
    slots = {name: value for name, value in vars(made).items()
             if isinstance(value, types.MemberDescriptorType)}  # fmt: skip
    for name in _DATACLASS:
        if _generated(vars(made).get(name)):
            type.__delattr__(made, name)
    for name in vars(made).get("__annotations__", {}):
        if name in fields and not _special(fields[name]):
            type.__setattr__(made, name, _field(fields[name]))
    given.pop("kw_only", None)
    if not given.get("eq", True):
        given.pop("order", None)
    dataclasses.dataclass(**given)(made)
    for name, value in slots.items():
        type.__setattr__(made, name, value)


def _generated(value: Any) -> bool:
    if isinstance(value, tuple):
        return True
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    return code is not None and code in current().stubs


def _special(field: Any) -> bool:
    return field._field_type is not getattr(dataclasses, "_FIELD")  # noqa: B009 (private)


def _field(known: Any) -> Any:
    options = {name: getattr(known, name) for name in
               ("init", "repr", "hash", "compare", "metadata", "kw_only")}  # fmt: skip
    for name in ("default", "default_factory"):
        if getattr(known, name) is not dataclasses.MISSING:
            options[name] = getattr(known, name)
    return dataclasses.field(**options)


def _namedtuple(made: Any) -> None:
    defaults = made._field_defaults.values()
    factory: Any = collections.namedtuple  # noqa: PYI024 (its methods are wanted)
    fresh = factory(made.__name__, made._fields, defaults=tuple(defaults))
    for name in _TUPLE:
        present = vars(made).get(name)
        present = getattr(present, "__func__", present)
        code = getattr(present, "__code__", None)
        if name in vars(fresh) and (present is None or code in current().stubs):
            type.__setattr__(made, name, vars(fresh)[name])
