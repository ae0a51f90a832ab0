"""Marks: the little that is remembered of an object, to say later what changed of it.

Of a frame rows, columns, dtypes, counts of missing values and a checksum of a sample of each
column; of containers their length and keys; of plain values the value. Marks hold no object of
the user. Like descriptions they look at a bounded part, and run nobody's code.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from . import describe, describe_frames, discreet, fingerprint, glance, kinds

COLUMNS = 60
"""Columns of one frame that are remembered."""
COUNTED = 100_000
"""Rows up to which missing values are counted where that reads each of them."""
KEYS = 200
"""Keys of one dict that are remembered."""
TOLD = 6
"""Names of one sort of change that are told."""

Column = tuple[str, int | None, int | None]
"""Dtype, missing values, checksum; None where one is not known."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What was seen of an object."""

    kind: str
    length: int | None = None
    text: str = ""
    """A plain value, or what describes the labels of a frame's rows."""
    columns: dict[str, Column] = field(default_factory=dict)
    """Of a frame, in their order; of a dict with texts as keys, the keys."""
    whole: bool = True
    """Whether all columns or keys are in it."""


def of(obj: Any) -> Mark | None:
    """The mark of an object; None where there is nothing to tell of. Never raises."""
    try:
        return _of(obj, type(obj))
    except Exception:
        return None


def _of(obj: Any, kind: type) -> Mark | None:
    name = kinds.name(kind)
    if kinds.is_(kind, int, float, bool, complex, type(None)) or (kind is str and len(obj) <= 40):
        return Mark(name, text=describe.scalar(obj, 40))
    if kinds.is_(kind, str, bytes, list, tuple, set, frozenset, bytearray):
        return Mark(name, len(obj))
    if kind is dict:
        named = len(obj) <= KEYS and all(type(key) is str for key in obj)
        keys: dict[str, Column] = dict.fromkeys(obj, ("", None, None)) if named else {}
        return Mark(name, len(obj), columns=keys, whole=named)
    rule = _RULES.get(f"{kinds.library(kind)}.{name}")
    return None if rule is None else rule(obj)


def _array(arr: Any) -> Mark:
    return Mark("ndarray", text=f"{'x'.join(map(str, arr.shape))} {arr.dtype}")


def _series(series: Any) -> Mark:
    return Mark("Series", len(series), text=describe_frames.short(series.dtype))


def _table(table: Any) -> Mark:
    fields = list(table.schema)[:COLUMNS]
    columns: dict[str, Column] = {field.name: (str(field.type), None, None) for field in fields}
    return Mark("DataFrame", table.num_rows, columns=columns, whole=table.num_columns <= COLUMNS)


def _frame(df: Any) -> Mark:
    rows, width = df.shape
    deadline = glance.Deadline(work=glance.WORK / 4)
    dtypes = list(df.iloc[:0, :COLUMNS].dtypes)
    columns: dict[str, Column] = {}
    for at, label in enumerate(df.columns[:COLUMNS]):
        known = (None, None) if deadline.over else _content(df, at, rows)
        columns[describe_frames._name(label)] = (describe_frames.short(dtypes[at]), *known)
    return Mark("DataFrame", rows, describe_frames._labels(df.index), columns,
                whole=len(columns) == width)  # fmt: skip


def _content(df: Any, at: int, rows: int) -> tuple[int | None, int | None]:
    """Missing values and the checksum of one column, read without a copy."""
    values = df._get_column_array(at)
    inner = values if kinds.library(type(values)) == "numpy" else getattr(values, "_ndarray", None)
    if (arrow := getattr(values, "_pa_array", None)) is not None:
        ends = [str(arrow[n]) for n in {0, len(arrow) // 2, len(arrow) - 1}] if rows else []
        return int(arrow.null_count), zlib.crc32("|".join(ends).encode("utf-8", "replace"))
    if inner is None or inner.ndim != 1:
        return None, None
    if inner.dtype.hasobject:
        return None, hash(tuple(map(id, inner[:: max(1, rows // 200)])))
    lost = None
    if rows <= COUNTED:
        match inner.dtype.kind:
            case "f":
                lost = int((inner != inner).sum())  # noqa: PLR0124
            case "m" | "M":
                lost = int((inner.view("i8") == -(2**63)).sum())
            case _:
                lost = 0 if inner is values else None
    return lost, fingerprint.sample(inner)


def _polars(df: Any) -> Mark:
    rows, width = df.shape
    columns: dict[str, Column] = {
        name: (describe_frames._brief_type(dtype), df[name].null_count(), None)
        for name, dtype in list(df.schema.items())[:COLUMNS]
    }
    return Mark("DataFrame", rows, columns=columns, whole=width <= COLUMNS)


_RULES = {
    "pandas.DataFrame": _frame,
    "pandas.Series": _series,
    "polars.DataFrame": _polars,
    "pyarrow.Table": _table,
    "numpy.ndarray": _array,
}

# -- what changed ----------------------------------------------------------------------------


def change(name: str, old: Mark | None, new: Mark | None) -> str:
    """What changed between two marks of one name, in a few words; nothing where none is known."""
    if old is None or new is None or old == new:
        return ""
    if old.kind != new.kind:
        return f"was {_before(name, old)}"
    if old.kind == "DataFrame":
        return "; ".join(_of_frames(old, new))
    if old.kind == "dict":
        return "; ".join(_of_keys(old, new))
    if old.length is not None and old.length != new.length:
        return f"len {old.length:,} -> {new.length:,}"
    if old.text and old.text != new.text:
        return f"was {_before(name, old)}"
    return ""


def _before(name: str, old: Mark) -> str:
    if old.columns or (not old.text and old.length is not None):
        return f"{old.kind} of {old.length:,}"
    plain = old.kind not in ("ndarray", "Series")
    return discreet.HIDDEN if plain and discreet.names_secret(name) else discreet.cleaned(old.text)


def _of_keys(old: Mark, new: Mark) -> Iterable[str]:
    if old.length != new.length:
        yield f"len {old.length:,} -> {new.length:,}"
    if old.whole and new.whole:
        if gained := [repr(key) for key in new.columns if key not in old.columns]:
            yield f"+ {_listed(gained)}"
        if gone := [repr(key) for key in old.columns if key not in new.columns]:
            yield f"- {_listed(gone)}"


def _of_frames(old: Mark, new: Mark) -> Iterable[str]:
    if old.length != new.length:
        yield f"rows {old.length:,} -> {new.length:,}"
    a, b = old.columns, new.columns
    if old.whole and new.whole:
        renamed = _renamed(old, new)
        if renamed:
            yield f"renamed {_listed([f'{x} -> {y}' for x, y in renamed.items()])}"
        if gained := [n for n in b if n not in a and n not in renamed.values()]:
            yield f"+ {_listed([f'{n} {b[n][0]}' for n in gained])}"
        if gone := [n for n in a if n not in b and n not in renamed]:
            yield f"- {_listed(gone)}"
        if list(a) != list(b) and set(a) == set(b):
            yield "columns reordered"
    both = [n for n in b if n in a]
    if kinds_ := [f"{n} {a[n][0]} -> {b[n][0]}" for n in both if a[n][0] != b[n][0]]:
        yield f"dtype {_listed(kinds_)}"
    if lost := [f"{n} {a[n][1]:,} -> {b[n][1]:,}" for n in both
                if None not in (a[n][1], b[n][1]) and a[n][1] != b[n][1]]:  # fmt: skip
        yield f"missing {_listed(lost)}"
    if old.text != new.text:
        yield f"index was {old.text.removeprefix('; index ') or 'row numbers'}"
    if old.length == new.length:
        values = [n for n in both if a[n][0] == b[n][0] and a[n][1] == b[n][1]
                  and None not in (a[n][2], b[n][2]) and a[n][2] != b[n][2]]  # fmt: skip
        if values:
            yield f"values of {_listed(values)}"


def _renamed(old: Mark, new: Mark) -> dict[str, str]:
    """Columns that have the same place, dtype and content under another name."""
    if len(old.columns) != len(new.columns) or old.length != new.length:
        return {}
    pairs = zip(old.columns, new.columns, strict=True)
    return {
        x: y
        for x, y in pairs
        if x != y
        and x not in new.columns
        and y not in old.columns
        and old.columns[x] == new.columns[y]
    }


def _listed(names: list[str]) -> str:
    rest = len(names) - TOLD
    return ", ".join(names[:TOLD]) + (f" and {rest} more" if rest > 0 else "")


# -- who shares with whom --------------------------------------------------------------------


def sharing(space: dict[str, Any], names: Iterable[str], of_: Iterable[str]) -> dict[str, str]:
    """Of names in `of_`: `is a`, or `view of a`, where an earlier one of `names` has the same
    object, or an array over the same memory."""
    wanted = {name: space[name] for name in of_ if not kinds.among(type(space[name]), _ALIKE)}
    if not wanted:
        return {}
    array = _array_class()
    same = {id(obj): "" for obj in wanted.values()}
    memory = {_owner(o, array): "" for o in wanted.values() if array and type(o) is array}
    for name in names:
        obj = space.get(name)
        if (first := same.get(id(obj))) is not None:
            same[id(obj)] = first or name
        if memory and type(obj) is array:
            owner = _owner(obj, array)
            if owner in memory:
                memory[owner] = memory[owner] or name
    told = {}
    for name, obj in wanted.items():
        if (other := same[id(obj)]) and other != name:
            told[name] = f"is {other}"
        elif array and type(obj) is array and (other := memory[_owner(obj, array)]) != name:
            told[name] = f"view of {other}"
    return told


_ALIKE = frozenset({type(None), bool, int, float, complex, str, bytes})


def _array_class() -> Any:
    """The class of numpy's arrays, where numpy is loaded."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.__dict__.get("ndarray")


def _owner(arr: Any, array: Any) -> int:
    """The identity of the object that owns an array's memory."""
    while type(base := arr.base) is array:
        arr = base
    return id(arr)
