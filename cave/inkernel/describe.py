"""What a variable is, in facts: type, shape, size and one line that saves a look at it.

Describing never changes an object and never runs its code: no `repr`, no property, no
iteration of an iterator, no query that costs more than a glance. Objects are told apart by
their type; of unknown ones the class and the names in their `__dict__` are told. The cost does
not grow with the length of an object: what is long is sampled.

Two ways lead in: a method `_repr_llm_` of an object's class wins over all rules, and packages
register rules by the entry-point group `cave.describe` (an entry point is called with `rule`).
Both are stopped when their time is up. Values under names of secrets are never told.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from . import discreet, glance, kinds, nested

LIMIT = 400
"""Characters of a summary."""

GROUP = "cave.describe"
"""Entry points that register rules."""

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
    "async_generator": "an iterator; not looked into",
    "Cursor": "cursor",
    "socket": "connection",
}

Facts = dict[str, Any]
Told = tuple[list[int] | None, str]
Rule = Callable[[Any], Told | None]

_OURS = {
    "_duckdb": "connections", "duckdb": "connections", "sqlite3": "connections",
    "sqlalchemy": "connections", "psycopg": "connections", "psycopg2": "connections",
    "numpy": "frames", "pandas": "frames", "pyarrow": "frames", "polars": "frames",
    "sklearn": "models", "torch": "models", "scipy": "models", "xarray": "models",
    "matplotlib": "models", "altair": "models", "PIL": "models", "plotly": "models",
}  # fmt: skip
"""Modules of ours (`describe_...`) that know objects of a library. None of them imports it."""
_others: dict[str, Callable[[Any], Any]] = {}
_loaded: list[str] = []


def rule(name: str, told: Callable[[Any], Any]) -> None:
    """Let `told(obj)` describe objects of the class `name` ("library.Class") and of those that
    derive from it: a text, or shape and text."""
    _others[name] = told


def describe(name: str, obj: object) -> Facts:
    """The fields of a Variable (all but `cell`), safe for JSON. Never raises."""
    facts: Facts = {"name": name, "type": "object", "shape": None, "size": None, "summary": ""}
    try:
        facts["type"] = _type(obj)
        facts["size"] = size(obj)
        facts["shape"], facts["summary"] = _own(obj) or _facts(obj)
        if discreet.names_secret(name):
            facts["summary"] = _secret(obj)
    except Exception as error:
        facts["summary"] = f"not described: {type(error).__name__}"
    facts["summary"] = clip(discreet.cleaned(facts["summary"]), LIMIT)
    facts["type"] = clip(facts["type"], 80)
    return facts


def _secret(obj: object) -> str:
    """Of a value under a name of a secret."""
    if kinds.is_(type(obj), types.FunctionType) or kinds.derives(type(obj), type):
        return _facts(obj)[1]
    return discreet.HIDDEN


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
    if kinds.among(kind, _BUILTIN):
        return sys.getsizeof(obj)
    plain = type.__dict__["__itemsize__"].__get__(kind) == 0
    return int(object.__sizeof__(obj)) if plain else None


_COUNTED = 1 << 20
"""Characters in which lines are counted."""
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


def _facts(obj: Any) -> Told:
    """Shape and summary, by type."""
    kind = type(obj)
    if kinds.among(kind, _SCALARS):
        return ([len(obj)] if kind in (str, bytes) else None), scalar(obj)
    if kinds.among(kind, _RULES):
        return _RULES[kind](obj)
    if (found := _by_rule(obj, kind)) is not None:
        return found
    if (text := safe_text(obj)) is not None:
        return None, text
    return _object(obj)


def _by_rule(obj: Any, kind: type) -> Told | None:
    """What a rule for a library's class, or for one of its bases, tells."""
    library = kinds.library(kind)
    if library != "__main__" and library not in _OURS and library not in sys.stdlib_module_names:
        _load()
    for base in kinds.mro(kind):
        library = kinds.library(base)
        if (told := _others.get(f"{library}.{kinds.name(base)}")) is not None:
            return _of_others(lambda told=told: told(obj))  # type: ignore[misc]
        if (ours := _OURS.get(library)) is not None and library in sys.modules:
            module = importlib.import_module(f".describe_{ours}", __package__)
            found: Told | None = module.facts(obj, base, exact=base is kind)
            if found is not None:
                return found
    return None


def _own(obj: Any) -> Told | None:
    """What the object's own `_repr_llm_` tells, in time."""
    method = kinds.find(type(obj), "_repr_llm_")
    if type(method) is not types.FunctionType:
        return None
    return _of_others(lambda: method(obj))


def _of_others(call: Callable[[], Any]) -> Told | None:
    """A description by code of others; None where it fails, or takes too long."""
    try:
        told = glance.within(call)
    except (Exception, SystemExit, GeneratorExit, glance.TimeUp):
        return None
    shape, text = told if type(told) is tuple and len(told) == 2 else (None, told)
    if type(text) is not str or not text:
        return None
    sizes: list[Any] = list(shape) if isinstance(shape, (list, tuple)) else [None]
    return (sizes if all(type(n) is int for n in sizes) else None), text


def _load() -> None:
    """Let installed packages register their rules, once."""
    if _loaded:
        return
    _loaded.append(GROUP)
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            entry.load()(rule)
        except Exception as error:
            _loaded.append(f"{entry.name} cannot be used: {error!r}")


# -- scalars and containers ------------------------------------------------------------------


def scalar(obj: Any, limit: int = 120) -> str:
    """A scalar as Python writes it, short. The kind must be one of the builtin ones."""
    kind = type(obj)
    if kind is int and obj.bit_length() > 400:
        return f"an int of {obj.bit_length()} bits"
    if kind in (str, bytes):
        shown = repr(discreet.cleaned(obj[:4096])[:limit] if kind is str else obj[:limit])
        return shown if len(obj) <= limit else f"{shown}... ({len(obj):,} long{_lines(obj)})"
    return repr(obj)


def _lines(text: Any) -> str:
    """How many lines a text has; of a long one about how many."""
    if type(text) is bytes:
        return ""
    head = text[:_COUNTED]
    breaks = head.count("\n")
    if len(text) <= _COUNTED:
        return f", {breaks + 1:,} lines" if breaks else ""
    return f", ~{breaks * len(text) // _COUNTED:,} lines" if breaks else ""


def safe_text(obj: Any) -> str | None:
    """The text of a value of the standard library or pandas whose `str` is harmless."""
    kind = type(obj)
    if kinds.among(kind, _SCALARS):
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
    if kinds.is_(kind, list, tuple, set, frozenset, dict):
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
    if type(obj) in (list, tuple) and (told := nested.records(obj)):
        return [len(obj)], f"{len(obj):,} of {told}"
    sample = ", ".join(brief(item) for item in islice(obj, 5))
    more = ", ..." if len(obj) > 5 else ""
    return [len(obj)], f"{len(obj):,} of {_kinds(obj)}: {sample}{more}"


def _mapping(obj: Any) -> tuple[list[int], str]:
    length = dict.__len__(obj)
    if not length:
        return [0], "empty"
    pairs = ", ".join(f"{brief(k)}: {member(k, v)}" for k, v in islice(dict.items(obj), 6))
    more = ", ..." if length > 6 else ""
    return [length], f"{length:,} keys; {pairs}{more}"


def member(key: Any, value: Any) -> str:
    """What is under a key or an attribute: not where its name is that of a secret."""
    if type(key) is str and discreet.names_secret(key):
        return discreet.HIDDEN
    return nested.sketch([value]) if kinds.is_(type(value), list, dict) and value else brief(value)


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
        names[at] + (f"={member(names[at], defaults[at - first])}" if at >= first else "")
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
        name + (f"={member(name, given[name])}" if name in given else "")
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
    return ", ".join(f"{name}={member(name, value)}" for name, value in public[:10])


_RULES: dict[type, Callable[[Any], Told]] = {
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
