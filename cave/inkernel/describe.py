"""What a variable is, in facts: type, shape, size and one line that saves a look at it.

Describing never changes an object and never runs its code: no `repr`, no attribute of an
unknown class, no iteration of an iterator, no query. Objects are told apart by their exact
type; of unknown ones the class and the names in their `__dict__` are told. The cost does not
grow with the length of an object: what is long is sampled.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from . import kinds

LIMIT = 400
"""Characters of a summary."""

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
_SAFE_TEXT = frozenset({
    "Decimal", "Fraction", "UUID", "date", "datetime", "time", "timedelta", "PosixPath",
    "PurePosixPath", "Timestamp", "Timedelta", "Period", "NaTType", "NAType", "timezone",
    "range", "slice", "Interval",
})  # fmt: skip
_SAFE_MODULES = frozenset({
    "builtins", "decimal", "_decimal", "fractions", "uuid", "datetime", "pathlib", "pandas",
    "_pydecimal", "_pydatetime",
})  # fmt: skip
_TOLD: dict[str, str] = {
    "generator": "an iterator; not looked into",
    "coroutine": "not awaited yet",
    "Connection": "connection",
    "Cursor": "cursor",
    "Engine": "connection",
    "socket": "connection",
}

Facts = dict[str, Any]


def describe(name: str, obj: object) -> Facts:
    """The fields of a Variable (all but `cell`), safe for JSON. Never raises."""
    facts: Facts = {"name": name, "type": "object", "shape": None, "size": None, "summary": ""}
    try:
        facts["type"] = _type(obj)
        facts["size"] = size(obj)
        facts["shape"], facts["summary"] = _facts(obj)
    except Exception as error:
        facts["summary"] = f"not described: {type(error).__name__}"
    facts["summary"] = clip(facts["summary"], LIMIT)
    facts["type"] = clip(facts["type"], 80)
    return facts


def named(name: str, obj: object) -> Facts:
    """The same fields without a look inside, for when there is no time."""
    return {"name": name, "type": _type(obj), "shape": None, "size": None, "summary": ""}


def clip(text: str, limit: int) -> str:
    """`text` in one line of at most `limit` characters, as valid UTF-8."""
    line = text[: 2 * limit].encode("utf-8", "backslashreplace").decode()
    line = line.replace("\n", "\\n").replace("\r", "\\r")
    return line if len(line) <= limit else line[: limit - 3] + "..."


def size(obj: object) -> int | None:
    """Bytes of an object, where that is known without looking at its elements."""
    kind = type(obj)
    if kinds.library(kind) in {"numpy", "pandas", "pyarrow", "polars"}:
        return _array_size(obj)
    if kind in _BUILTIN:
        return sys.getsizeof(obj)
    plain = type.__dict__["__itemsize__"].__get__(kind) == 0
    return int(object.__sizeof__(obj)) if plain else None


_BUILTIN = _SCALARS | {list, tuple, set, frozenset, dict, bytearray, range, slice}


def _array_size(obj: Any) -> int | None:
    if (manager := getattr(obj, "_mgr", None)) is not None and obj.ndim == 2:
        return sum(int(block.values.nbytes) for block in manager.blocks) + int(obj.index.nbytes)
    if hasattr(obj, "memory_usage"):
        usage = obj.memory_usage(deep=False)
        return int(usage.sum()) if hasattr(usage, "sum") else int(usage)
    if kinds.library(type(obj)) == "polars" and hasattr(obj, "estimated_size"):
        return int(obj.estimated_size())
    nbytes = getattr(obj, "nbytes", None)
    return nbytes if type(nbytes) is int else None


def _type(obj: object) -> str:
    kind = type(obj)
    if kind is types.FunctionType:
        return "function"
    if kinds.derives(kind, type):
        return "class"
    module, name = kinds.module(kind), kinds.qualname(kind)
    quiet = {"builtins", "__main__", "datetime", "decimal", "fractions", "uuid", "collections"}
    if module in quiet or kinds.library(kind) in {"numpy", "pandas", "pathlib"}:
        return name
    return f"{module.partition('.')[0].lstrip('_')}.{name}"


def _facts(obj: Any) -> tuple[list[int] | None, str]:
    """Shape and summary, by exact type."""
    kind = type(obj)
    if kind in _SCALARS:
        return ([len(obj)] if kind in (str, bytes) else None), scalar(obj)
    if (rule := _RULES.get(kind)) is not None:
        return rule(obj)
    library = kinds.library(kind)
    if library in {"numpy", "pandas", "pyarrow", "polars"} and library in sys.modules:
        from . import describe_frames

        if (found := describe_frames.facts(obj)) is not None:
            return found
    if (text := safe_text(obj)) is not None:
        return None, text
    return _object(obj)


# -- scalars and containers ------------------------------------------------------------------


def scalar(obj: Any, limit: int = 120) -> str:
    """A scalar as Python writes it, short. The kind must be one of the builtin ones."""
    kind = type(obj)
    if kind is int and obj.bit_length() > 400:
        return f"an int of {obj.bit_length()} bits"
    if kind in (str, bytes):
        shown = repr(obj[:limit])
        return shown if len(obj) <= limit else f"{shown}... ({len(obj):,} long)"
    return repr(obj)


def safe_text(obj: Any) -> str | None:
    """The text of a value of the standard library or pandas whose `str` is harmless."""
    kind = type(obj)
    if kind in _SCALARS:
        return scalar(obj, 40)
    if kinds.name(kind) in _SAFE_TEXT and kinds.library(kind) in _SAFE_MODULES:
        return clip(str(obj), 80)
    if kinds.module(kind) == "numpy" and hasattr(obj, "dtype"):
        return clip(str(obj), 80) if getattr(obj, "ndim", None) == 0 else None
    return None


def brief(obj: Any) -> str:
    """An element of a container: its value when it is a plain one, else its type."""
    kind = type(obj)
    if kind is float or (kinds.name(kind), kinds.module(kind)) == ("float64", "numpy"):
        return number(float(obj))
    text = safe_text(obj)
    if text is not None:
        return text.removesuffix(" 00:00:00")
    if kind in (list, tuple, set, frozenset, dict):
        return f"{kinds.name(kind)}[{len(obj)}]"
    return _type(obj)


def number(value: float) -> str:
    """A float in at most about ten characters."""
    exact = repr(value)
    return exact if len(exact) <= 10 else f"{value:.6g}"


def _kinds(items: Iterable[Any]) -> str:
    """Types of a sample of elements, in the order of their coming."""
    names = list(dict.fromkeys(_type(item) for item in islice(items, 100)))
    return " | ".join(names[:4]) + (" | ..." if len(names) > 4 else "")


def _sequence(obj: Any) -> tuple[list[int], str]:
    if not obj:
        return [0], "empty"
    sample = ", ".join(brief(item) for item in islice(obj, 5))
    more = ", ..." if len(obj) > 5 else ""
    return [len(obj)], f"{len(obj):,} of {_kinds(obj)}: {sample}{more}"


def _mapping(obj: Any) -> tuple[list[int], str]:
    length = dict.__len__(obj)
    if not length:
        return [0], "empty"
    pairs = ", ".join(f"{brief(k)}: {brief(v)}" for k, v in islice(dict.items(obj), 6))
    more = ", ..." if length > 6 else ""
    return [length], f"{length:,} keys; {pairs}{more}"


def _bytearray(obj: bytearray) -> tuple[list[int], str]:
    return [len(obj)], scalar(bytes(obj[:121]), 120)


# -- functions, classes, objects -------------------------------------------------------------


def _function(obj: types.FunctionType) -> tuple[None, str]:
    """Names and defaults of a function's parameters; annotations are not evaluated."""
    doc = obj.__doc__ if type(obj.__doc__) is str else ""
    head = doc.strip().partition("\n")[0]
    return None, f"{obj.__name__}({_parameters(obj)})" + (f": {head}" if head else "")


def _parameters(obj: types.FunctionType) -> str:
    code = obj.__code__
    count, only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    defaults = obj.__defaults__ or ()
    first = count - len(defaults)
    parts = [
        names[at] + (f"={brief(defaults[at - first])}" if at >= first else "")
        for at in range(count)
    ]
    at = count + only
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{names[at]}")
        at += 1
    elif only:
        parts.append("*")
    given = obj.__kwdefaults__ or {}
    parts += [
        name + (f"={brief(given[name])}" if name in given else "")
        for name in names[count : count + only]
    ]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{names[at]}")
    return ", ".join(parts)


def _class(obj: type) -> tuple[None, str]:
    """Bases, fields and methods, read from the class' own dict."""
    space = kinds.space(obj)
    bases = [kinds.name(base) for base in type.__dict__["__bases__"].__get__(obj)]
    parts = [f"class {kinds.name(obj)}" + (f"({', '.join(bases)})" if bases != ["object"] else "")]
    notes = space.get("__annotations__")
    if type(notes) is dict and notes:
        parts.append("fields " + ", ".join(str(name) for name in islice(notes, 12)))
    public = [name for name in space if type(name) is str and not name.startswith("_")]
    methods = [n for n in public if type(space[n]) in (types.FunctionType, classmethod)]
    if methods:
        parts.append("methods " + ", ".join(methods[:12]))
    return None, "; ".join(parts)


def _module(obj: types.ModuleType) -> tuple[None, str]:
    return None, f"module {obj.__name__}"


def _object(obj: Any) -> tuple[list[int] | None, str]:
    """Of an unknown class: what it derives from, and the attributes in its `__dict__`."""
    kind = type(obj)
    if kinds.derives(kind, type):
        return _class(obj)
    if (told := _TOLD.get(kinds.name(kind))) is not None:
        return None, told
    for base, rule in ((dict, _mapping), (list, None), (tuple, None), (str, None)):
        if kinds.derives(kind, base):
            length = base.__len__(obj)
            return [length], f"a {base.__name__} of {length:,}" if rule is None else rule(obj)[1]
    return None, _attributes(obj)


def _attributes(obj: Any) -> str:
    space = kinds.attributes(obj)
    if space is None:
        return ""
    public = [(n, v) for n, v in islice(space.items(), 40) if type(n) is str and n[:1] != "_"]
    return ", ".join(f"{name}={brief(value)}" for name, value in public[:10])


_RULES: dict[type, Callable[[Any], tuple[list[int] | None, str]]] = {
    list: _sequence,
    tuple: _sequence,
    set: _sequence,
    frozenset: _sequence,
    dict: _mapping,
    bytearray: _bytearray,
    types.FunctionType: _function,
    type: _class,
    types.ModuleType: _module,
}
