"""Hints for exceptions, from the live namespace: what is near to what the cell meant.

One short line for a fault that the namespace, the installed packages, a database or the
folder can explain; else nothing. No code of the user runs for it, and it looks at a bounded
number of names.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from . import describe, describe_connections, describe_frames, discreet, kinds, refusals
from .facts import DISTRIBUTIONS
from .faults import NONE, Place

LENGTH = 300
"""Characters of a hint; three times as many where it says what to type."""
NAMES = 2_000
"""Names that are compared with one."""
LISTED = 20
"""Names that are listed where none is near."""

Rule = Callable[[BaseException, str, Place], str]


def of(fault: BaseException | None, space: dict[str, Any]) -> str:
    """The hint for a fault of a cell; empty where there is none. Never raises."""
    if fault is None:
        return ""
    try:
        args: Any = BaseException.__dict__["args"].__get__(fault)
        text = args[0] if args and type(args[0]) is str else ""
        place = Place(fault, space)
        if refused := refusals.of(fault, place):
            return f"({describe.clip(discreet.cleaned(refused), 3 * LENGTH)})"
        for kind in kinds.mro(type(fault)):
            rule = _RULES.get(kinds.name(kind))
            if rule is not None and (found := rule(fault, text[:2000], place)):
                return f"({describe.clip(discreet.cleaned(found), LENGTH)})"
    except Exception:
        return ""
    return ""


def nearest(word: str, names: Iterable[Any], most: int = 3) -> list[str]:
    """Names that are spelt nearly like a word, whatever their case."""
    lower = {name.lower(): name for name in islice(names, NAMES) if type(name) is str}
    close = difflib.get_close_matches(word.lower()[:80], lower, n=most, cutoff=0.6)
    part = [n for n in lower if len(word) > 2 and word.lower() in n and n not in close]
    return [lower[name] for name in (*close, *part)][:most]


# -- names, keys, attributes -----------------------------------------------------------------

_ALIASES = {
    "np": "import numpy as np", "pd": "import pandas as pd", "pl": "import polars as pl",
    "plt": "import matplotlib.pyplot as plt", "sns": "import seaborn as sns",
    "pa": "import pyarrow as pa", "alt": "import altair as alt", "Path": "from pathlib import Path",
    "Decimal": "from decimal import Decimal", "defaultdict": "from collections import defaultdict",
    "Counter": "from collections import Counter", "dt": "import datetime as dt",
    "timedelta": "from datetime import timedelta", "date": "from datetime import date",
}  # fmt: skip


def _name(fault: BaseException, text: str, place: Place) -> str:
    name = getattr(fault, "name", None) if type(fault) in (NameError, UnboundLocalError) else None
    if type(name) is not str:
        found = re.search(r"name '(\w+)'", text)
        name = found[1] if found else ""
    if not name:
        return ""
    if name in _ALIASES:
        return f"it is not imported: {_ALIASES[name]}"
    public = [n for n in place.names if type(n) is str and n[:1] != "_"]
    near = nearest(name, public) or nearest(name, [n for n in dir(builtins) if n[:1] != "_"])
    if name in sys.stdlib_module_names:
        return f"it is not imported: import {name}"
    return f"names that are there: {', '.join(near)}" if near else ""


def labels(obj: Any) -> tuple[str, list[Any]] | None:
    """What an object is looked up by, and the word for it: keys, columns, labels."""
    kind = type(obj)
    if kind is dict:
        return "keys", [key for key in islice(obj, NAMES) if type(key) in (str, int)]
    match f"{kinds.library(kind)}.{kinds.name(kind)}":
        case "pandas.DataFrame":
            names = [n for n in obj.index.names if n is not None]
            return "columns", [*islice(obj.columns, NAMES), *names]
        case "pandas.Series":
            return "labels", list(islice(obj.index, NAMES))
        case "pandas.DataFrameGroupBy" | "pandas.SeriesGroupBy":
            return labels((kinds.attributes(obj) or {}).get("obj"))
        case "polars.DataFrame":
            return "columns", list(obj.columns)
        case "pyarrow.Table":
            return "columns", list(obj.column_names)
        case "duckdb.DuckDBPyRelation":
            return "columns", list(obj.columns)
        case _:
            return None


def _key(fault: BaseException, text: str, place: Place) -> str:
    args: Any = BaseException.__dict__["args"].__get__(fault)
    key = args[0] if args else ""
    wanted = (
        re.findall(r"'([^']+)'", text)
        if re.search(r"not in index|in the \[|not found", text)
        else []
    )
    if not wanted:
        found = re.search(
            r'(?:unable to find column |Field )"([^"]+)"|^"?([^"\s]+)"? not found', text
        )
        wanted = [found[1] or found[2]] if found else [key] if type(key) in (str, int) else []
    lines = []
    for name, obj in islice(_lookups(place), 8):
        found_labels = labels(obj)
        if found_labels is None or not wanted or not found_labels[1]:
            continue
        word, there = found_labels
        if line := _missing(name, word, there, [w for w in wanted if w not in there]):
            lines.append(line)
    return "; ".join(dict.fromkeys(lines))


def _lookups(place: Place) -> Iterable[tuple[str, Any]]:
    """What the failing expression looks up in: of `df.loc[...]` the labels of its rows."""
    node = place.node
    owner = node.value if isinstance(node, ast.Subscript) else None
    if isinstance(owner, ast.Attribute) and owner.attr in ("loc", "at"):
        frame, text = place.find(owner.value), ast.unparse(owner.value)
        if kinds.library(type(frame)) == "pandas":
            rows = (label for label in frame.index if type(label) in (str, int))
            yield text, frame
            yield f"rows of {text}", dict.fromkeys(islice(rows, NAMES))
        return
    if isinstance(node, ast.Subscript) and (value := place.find(node.value)) is not NONE:
        yield ast.unparse(node.value), value
        return
    yield from place.objects()


def _missing(name: str, word: str, there: list[Any], wanted: list[Any]) -> str:
    for key in wanted:
        other = [k for k in there if type(k) is not type(key) and str(k) == str(key)]
        if other:
            return f"{name} has {other[0]!r}, a {kinds.name(type(other[0]))}, not {key!r}"
    near = [n for key in wanted if type(key) is str for n in nearest(key, there)]
    shown = list(dict.fromkeys(near))[:5]
    if shown:
        return f"nearest {word} of {name}: {', '.join(shown)}"
    if not wanted:
        return ""
    rest = len(there) - LISTED
    listed = ", ".join(describe_frames._name(label) for label in there[:LISTED])
    return f"{word} of {name}: {listed}" + (f" and {rest} more" if rest > 0 else "")


_ELSEWHERE = {
    "pandas.append": "pd.concat([a, b])", "pandas.group_by": "groupby", "pandas.ix": "loc or iloc",
    "pandas.with_columns": "assign", "pandas.with_column": "assign", "pandas.select": "df[[...]]",
    "pandas.sort": "sort_values", "pandas.iteritems": "items", "pandas.filter_by": "df[mask]",
    "pandas.collect": "the frame itself: it is not lazy", "pandas.as_matrix": "to_numpy",
    "pandas.orderBy": "sort_values", "pandas.withColumn": "assign", "pandas.rows": "itertuples",
    "polars.groupby": "group_by", "polars.merge": "join", "polars.sort_values": "sort",
    "polars.assign": "with_columns", "polars.iloc": "slice or df[rows]", "polars.loc": "filter",
    "polars.astype": "cast", "polars.isnull": "is_null", "polars.fillna": "fill_null",
    "polars.dropna": "drop_nulls", "polars.apply": "map_elements", "polars.query": "filter",
    "polars.value_counts": "the column's value_counts", "polars.reset_index": "with_row_index",
    "polars.to_csv": "write_csv", "polars.to_parquet": "write_parquet",
    "polars.drop_duplicates": "unique", "polars.with_column": "with_columns",
    "polars.nunique": "n_unique", "polars.index": "with_row_index",
    "numpy.append": "np.append(a, b)", "numpy.push": "np.append(a, b)", "numpy.length": "len(a)",
    "builtins.push": "append", "builtins.add": "append", "builtins.length": "len(...)",
    "builtins.has_key": "key in d", "builtins.iteritems": "items", "builtins.contains": "x in ...",
    "builtins.size": "len(...)", "builtins.map": "map(f, xs)", "builtins.concat": "+ or extend",
    "pyarrow.head": "slice(0, n)", "pyarrow.groupby": "group_by", "pyarrow.merge": "join",
}  # fmt: skip
"""What a method of another library, language or version is called here."""


def _attribute(fault: BaseException, text: str, place: Place) -> str:
    node = place.node
    found = re.search(r"has no attribute '(\w+)'", text)
    obj = getattr(fault, "obj", NONE) if type(fault) is AttributeError else NONE
    target = node.value if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value
    if obj is NONE or (obj is None and "NoneType" not in text):
        obj = place.find(target)
    if not found or obj is NONE:
        return ""
    name = found[1]
    if obj is None:
        return f"{ast.unparse(target)} is None" if target is not None else ""
    if type(obj) is types.ModuleType:
        return _of_module(obj, name)
    library = kinds.library(type(obj))
    told = _ELSEWHERE.get(f"{library}.{name}")
    if told is not None and not (told == "append" and type(obj) is not list):
        return f"here it is called: {told}"
    if (known := labels(obj)) and known[0] == "columns" and (near := nearest(name, known[1])):
        return f"nearest columns: {', '.join(near)}"
    kind = obj if kinds.derives(type(obj), type) else type(obj)
    there = [n for base in kinds.mro(kind) for n in kinds.space(base)]
    there += list(kinds.attributes(obj) or ())
    near = nearest(name, [n for n in dict.fromkeys(there) if type(n) is str and n[:1] != "_"])
    return f"{kinds.name(kind)} has: {', '.join(near)}" if near else ""


def _of_module(module: types.ModuleType, name: str) -> str:
    from importlib.machinery import PathFinder

    space = module.__dict__
    called, path = space.get("__name__", ""), space.get("__path__")
    if path and PathFinder.find_spec(f"{called}.{name}", list(path)) is not None:
        return f"it is a module of its own: import {called}.{name}"
    if (other := _ELSEWHERE.get(f"{called}.{name}")) is not None:
        return f"here it is called: {other}"
    near = nearest(name, [n for n in space if type(n) is str and n[:1] != "_"])
    return f"{called} has: {', '.join(near)}" if near else ""


# -- calls, types, shapes --------------------------------------------------------------------

_CALLED = re.compile(
    r"\(\) (?:missing|got an unexpected|takes|got multiple|got some)|takes (?:no|at)"
)
_OPERANDS = re.compile(
    r"unsupported operand|not supported between|can only concatenate|could not convert|"
    r"dtype|[Cc]annot (?:convert|compare|perform|cast|interpret)|must be str|trying to merge|"
    r"not implemented for|ufunc|Invalid comparison"
)
_SHAPES = re.compile(
    r"shape|broadcast|[Ll]ength|dimension|align|mismatch|features|inconsistent numbers|same size|"
    r"[Ll]engths|number of (?:rows|columns|samples)"
)


def _type(_fault: BaseException, text: str, place: Place) -> str:
    node = place.node
    if isinstance(node, ast.Call):
        if "not callable" in text and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in place.names and name in builtins.__dict__:
                return f"{name} is a variable here; `del {name}` brings the builtin back"
        if _CALLED.search(text) and (told := _signature(text, place.find(node.func))):
            return told
    if "'NoneType'" in text:
        none = [name for name, obj in place.objects() if obj is None]
        if none:
            return f"{', '.join(none[:3])} is None"
    return _value(_fault, text, place)


def _signature(text: str, called: Any) -> str:
    """How to call what was called otherwise."""
    if called is NONE:
        return ""
    function = called
    if kinds.derives(type(called), type):
        function = kinds.find(called, "__init__")
        if type(function) is not types.FunctionType:
            function = kinds.find(called, "__new__")
    function = _unwrapped(function)
    if type(function) is not types.FunctionType:
        inner = getattr(function, "__text_signature__", None) if _is_builtin(function) else None
        return f"signature: {function.__name__}{inner}" if type(inner) is str else ""
    parameters = describe._parameters(function).removeprefix("self, ").removeprefix("cls, ")
    name = kinds.name(called) if kinds.derives(type(called), type) else function.__name__
    whole = f"signature: {name}({parameters})"
    wanted = re.search(r"keyword argument '(\w+)'", text)
    if wanted and len(whole) > 120:
        code = function.__code__
        there = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if near := nearest(wanted[1], there):
            return f"nearest arguments of {name}: {', '.join(near)}"
    return whole


def _unwrapped(function: Any) -> Any:
    """The function below decorators, and of a bound method."""
    for _ in range(10):
        if type(function) is types.MethodType:
            function = function.__func__
        elif type(function) is types.FunctionType and "__wrapped__" in function.__dict__:
            function = function.__dict__["__wrapped__"]
        else:
            break
    return function


def _is_builtin(obj: Any) -> bool:
    return type(obj) in (types.BuiltinFunctionType, types.MethodDescriptorType)


def _value(_fault: BaseException, text: str, place: Place) -> str:
    """Dtypes of a key in frames that do not meet, shapes or types of what was combined."""
    if found := re.search(r"trying to merge on .* for key '([^']+)'", text):
        key = found[1]
        told = [f"{name} {describe_frames.short(obj[key].dtype)}" for name, obj in place.objects()
                if _is(obj, "pandas.DataFrame") and key in obj.columns]  # fmt: skip
        if told:
            return f"{key} is: {', '.join(told)}; convert one with astype"
    if re.search(r"could not convert string to float|[Uu]nable to parse string", text):
        column = _texts(place)
        if column:
            return f"{column}; pd.to_numeric(..., errors='coerce') makes NaN of what is no number"
    if _SHAPES.search(text) and (told := _shapes(place)):
        return f"shapes: {', '.join(told[:5])}"
    if _OPERANDS.search(text) and (told := _kinds(place)):
        return f"types: {', '.join(told[:5])}"
    return ""


def _is(obj: Any, name: str) -> bool:
    return f"{kinds.library(type(obj))}.{kinds.name(type(obj))}" == name


def _texts(place: Place) -> str:
    found = [name for name, obj in place.objects() if _is(obj, "pandas.Series")]
    return f"{found[0]} holds texts" if found else "texts are among the numbers"


def _shapes(place: Place) -> list[str]:
    told = []
    for name, obj in place.objects():
        if kinds.library(type(obj)) in ("numpy", "pandas", "polars", "torch", "scipy"):
            shape = getattr(obj, "shape", None)
            if isinstance(shape, tuple) and all(type(n) is int for n in shape):
                told.append(f"{name} {'x'.join(map(str, shape)) or 'scalar'}")
        elif kinds.is_(type(obj), list, tuple):
            told.append(f"{name} len {len(obj)}")
    return told if len(told) > 1 or len(told) == 1 else []


def _kinds(place: Place) -> list[str]:
    told = []
    for name, obj in place.objects():
        if _is(obj, "pandas.Series") or _is(obj, "numpy.ndarray") or _is(obj, "polars.Series"):
            told.append(f"{name} {describe_frames.short(obj.dtype)}")
        elif not kinds.is_(type(obj), types.ModuleType, types.FunctionType, type):
            told.append(f"{name} {describe._type(obj)}")
    return told


def _index(_fault: BaseException, _text: str, place: Place) -> str:
    node = place.node
    obj = place.find(node.value) if isinstance(node, ast.Subscript) else NONE
    if obj is NONE or not isinstance(node, ast.Subscript):
        return ""
    if kinds.is_(type(obj), list, tuple, str, bytes):
        return f"{ast.unparse(node.value)} has {len(obj):,} elements"
    told = _shapes(place)
    return f"shapes: {', '.join(told[:3])}" if told else ""


# -- modules, files, databases ---------------------------------------------------------------


def _module(fault: BaseException, _text: str, _place: Place) -> str:
    name = getattr(fault, "name", None) if kinds.is_(type(fault), ModuleNotFoundError) else None
    if type(name) is not str or not name:
        return ""
    top, _, rest = name.partition(".")
    if rest and top in sys.modules:
        near = nearest(rest, _modules(sys.modules[top].__dict__.get("__path__", ())))
        return f"modules of {top}: {', '.join(near)}" if near else ""
    there = {*sys.stdlib_module_names, *_modules(sys.path)}
    near = [n for n in nearest(top, there) if n != top]
    install = DISTRIBUTIONS.get(top, top)
    told = f"{top} is not installed; its package is {install}"
    return told + (f"; installed and near: {', '.join(near)}" if near else "")


def _modules(path: Iterable[Any]) -> list[str]:
    import pkgutil

    return [found.name for found in islice(pkgutil.iter_modules([str(p) for p in path]), NAMES)]


def _import(_fault: BaseException, text: str, _place: Place) -> str:
    found = re.search(r"cannot import name '(\w+)' from '([\w.]+)'", text)
    module = sys.modules.get(found[2]) if found else None
    if found is None or module is None:
        return ""
    near = nearest(found[1], [n for n in module.__dict__ if type(n) is str and n[:1] != "_"])
    return f"{found[2]} has: {', '.join(near)}" if near else ""


def _file(fault: BaseException, _text: str, _place: Place) -> str:
    name = (
        OSError.__dict__["filename"].__get__(fault) if kinds.derives(type(fault), OSError) else None
    )
    if type(name) is not str or not name:
        return ""
    folder, _, last = name.rpartition("/")
    folder = folder or ("/" if name.startswith("/") else ".")
    while folder not in ("", ".", "/") and not os.path.isdir(folder):
        folder, _, last = folder.rpartition("/")
        folder = folder or "."
    with os.scandir(folder) as entries:
        there = [entry.name for entry in islice(entries, NAMES) if entry.name[:1] != "."]
    stem = last.rpartition(".")[0] or last
    near = nearest(last, there) or nearest(stem, there)
    shown = near or sorted(there)[:10]
    where = "the working folder" if folder == "." else folder
    if not shown:
        return f"{where} is empty"
    rest = len(there) - len(shown)
    return f"{'nearest' if near else 'files'} in {where}: {', '.join(shown)}" + (
        f" and {rest} more" if rest > 0 and not near else ""
    )


_SQL = re.compile(
    r"no such (?P<what>table|column): (?P<name>[\w.\"]+)|"
    r"has no column named (?P<column>\w+)|"
    r"(?:Table|table) (?:with name |\")(?P<table>\w+)\"? does not exist|"
    r"Referenced column \"(?P<referenced>\w+)\" not found|"
    r"relation \"(?P<relation>\w+)\" does not exist|column \"?(?P<pg>[\w.]+)\"? does not exist"
)


def _sql(_fault: BaseException, text: str, place: Place) -> str:
    found = _SQL.search(text)
    if found is None:
        if "locked" in text:
            return "another connection holds a lock: commit or close it"
        return ""
    groups = {k: v for k, v in found.groupdict().items() if v and k != "what"}
    name = next(iter(groups.values())).strip('"').rpartition(".")[2]
    tables = found["what"] == "table" or "table" in groups or "relation" in groups
    schema = _schema(place)
    if not schema:
        return ""
    if tables:
        near = nearest(name, schema)
        shown = near or list(schema)[:LISTED]
        return f"{'nearest tables' if near else 'tables'}: " + "; ".join(
            f"{table}({', '.join(schema[table][:12])})" for table in shown[:5]
        )
    near = [f"{t}.{c}" for t, columns in schema.items() for c in nearest(name, columns, 2)]
    if near:
        return f"nearest columns: {', '.join(near[:5])}"
    return "; ".join(f"{t}({', '.join(c[:20])})" for t, c in islice(schema.items(), 5))


def _schema(place: Place) -> dict[str, list[str]]:
    """Of the connection that the failing expression names, else of the session's."""
    several = (*place.objects(), *islice(reversed(list(place.names.items())), 300))
    for _, obj in several:
        if kinds.library(type(obj)) in ("sqlite3", "_duckdb", "duckdb", "sqlalchemy"):
            target = obj.connection if _is(obj, "sqlite3.Cursor") else obj
            if found := describe_connections.schema(target):
                return found
    return {}


_RULES: dict[str, Rule] = {
    "NameError": _name,
    "KeyError": _key,
    "ColumnNotFoundError": _key,
    "AttributeError": _attribute,
    "TypeError": _type,
    "ValueError": _value,
    "MergeError": _key,
    "UFuncNoLoopError": _value,
    "ComputeError": _value,
    "ShapeError": _value,
    "InvalidOperationError": _value,
    "IndexError": _index,
    "ModuleNotFoundError": _module,
    "ImportError": _import,
    "FileNotFoundError": _file,
    "OperationalError": _sql,
    "ProgrammingError": _sql,
    "DatabaseError": _sql,
    "CatalogException": _sql,
    "BinderException": _sql,
    "UndefinedTable": _sql,
    "UndefinedColumn": _sql,
}
"""By name of the class of the exception, or of one of its bases."""
