"""Facts of arrays, frames and tables: columns, dtypes, ranges, missing values, first rows.

Only the first rows and an even sample are looked at, so that a million rows cost what a
thousand do. Nothing here converts a whole column.
"""

from __future__ import annotations

import time
from typing import Any

from . import describe, kinds

SAMPLE = 1000
"""Elements that a range or a count of missing values is taken from."""
COLUMNS = 30
"""Columns that are named."""
RANGED = 12
"""Columns of which a range is told."""
SECONDS = 0.02
"""After this time no more columns are looked at."""

Told = tuple[list[int] | None, str]


def facts(obj: Any) -> Told | None:
    """Shape and summary of an object of numpy, pandas, pyarrow or polars; None if unknown."""
    kind = type(obj)
    library, name = kinds.library(kind), kinds.name(kind)
    rule = _RULES.get(f"{library}.{name}")
    if rule is None and library == "pandas" and name.endswith("Index"):
        rule = _index
    return None if rule is None else rule(obj)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return describe.clip(str(value), 30).removesuffix(" 00:00:00")


# -- numpy -----------------------------------------------------------------------------------


def _array(arr: Any) -> Told:
    shape = list(arr.shape)
    what = f"{'x'.join(map(str, shape)) or 'scalar'} {arr.dtype}"
    if not arr.size:
        return shape, what + ", empty"
    if arr.dtype.kind in "biufmM" and (span := _span(_thin(arr))):
        what += f", {span}"
    if arr.dtype.kind in "biufmMUSc":
        head = ", ".join(_number(v) for v in arr.flat[: min(5, arr.size)].tolist())
        what += f": {head}" + (", ..." if arr.size > 5 else "")
    return shape, what


def _thin(arr: Any) -> Any:
    """About `SAMPLE` elements, evenly taken, without reading the rest."""
    if arr.size <= SAMPLE:
        return arr.reshape(-1)
    step = max(1, arr.shape[0] * arr.ndim // SAMPLE)
    rows = arr[::step]
    return rows.flat[:: max(1, rows.size // SAMPLE)] if rows.size < 100 * SAMPLE else rows.flat[
        :SAMPLE
    ]  # fmt: skip


def _span(sample: Any) -> str:
    """Range of a sample and how many of it are missing."""
    kind = sample.dtype.kind
    if kind == "f":
        missing = sample != sample  # noqa: PLR0124
    elif kind in "mM":
        missing = sample.view("i8") == -(2**63)
    else:
        missing = None
    lost = 0 if missing is None else int(missing.sum())
    kept = sample[~missing] if lost else sample
    if not len(kept):
        return "all missing"
    span = f"{_number(kept.min().item() if kind not in 'mM' else kept.min())}.."
    span += _number(kept.max().item() if kind not in "mM" else kept.max())
    return span + (f" {100 * lost // len(sample) or '<1'}% missing" if lost else "")


# -- pandas ----------------------------------------------------------------------------------


def _frame(df: Any) -> Told:
    rows, width = df.shape
    end = time.perf_counter() + SECONDS
    thin = df.iloc[:: max(1, rows // SAMPLE), :RANGED]
    names, dtypes = df.columns[:COLUMNS], list(df.iloc[:0, :COLUMNS].dtypes)
    approx = "~" if rows > SAMPLE else ""
    parts = []
    for at in range(min(width, COLUMNS)):
        told = f"{_name(names[at])} {short(dtypes[at])}"
        if at < RANGED and rows and time.perf_counter() < end:
            told += _column(thin.iloc[:, at], approx)
        parts.append(told)
    more = f", and {width - COLUMNS} more" if width > COLUMNS else ""
    summary = f"{rows:,}x{width} ({', '.join(parts)}{more})"
    return [rows, width], _with_rows(summary, df)


def _with_rows(summary: str, df: Any) -> str:
    """Add the first rows as far as there is room."""
    for at in range(min(2, len(df))):
        row = df.iloc[at : at + 1, :COLUMNS]
        cells = ", ".join(describe.brief(row.iat[0, c]) for c in range(row.shape[1]))
        if len(summary) + len(cells) + 8 > describe.LIMIT:
            break
        summary += f"; row {at}: {cells}"
    return summary


def _name(column: Any) -> str:
    if type(column) is tuple:
        return "(" + ", ".join(map(_name, column)) + ")"
    return describe.clip(column, 40) if type(column) is str else describe.brief(column)


def short(dtype: Any) -> str:
    """A dtype in a few characters: i64, f64, str, cat, date."""
    text = str(dtype)
    for long, brief in (("float", "f"), ("uint", "u"), ("int", "i"), ("datetime64", "date")):
        if text.startswith(long):
            return text.replace(long, brief, 1)
    return {"category": "cat", "object": "obj", "string": "str"}.get(text, text)


def _column(series: Any, approx: str) -> str:
    """Range of a numeric column, levels of a categorical one, share of what is missing."""
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if str(dtype) == "category":
        return f"[{len(dtype.categories)}]" + _missing(series)
    if kind in "iufmM" and len(series):
        low, high = series.min(), series.max()
        if describe.brief(low) in ("nan", "NaT", "<NA>", "None"):
            return " all missing"
        return f" {approx}{_number(_plain(low))}..{_number(_plain(high))}" + _missing(series)
    return _missing(series)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value


def _missing(series: Any) -> str:
    lost = int(series.isna().sum())
    return f" {100 * lost // len(series) or '<1'}% missing" if lost else ""


def _series(series: Any) -> Told:
    rows = len(series)
    thin = series.iloc[:: max(1, rows // SAMPLE)] if rows > SAMPLE else series
    told = f"{rows:,} {short(series.dtype)}"
    if series.name is not None:
        told += f" named {_name(series.name)}"
    told += _column(thin, "~" if rows > SAMPLE else "") if rows else ", empty"
    head = ", ".join(
        f"{_name(series.index[at])}: {describe.brief(series.iat[at])}" for at in range(min(4, rows))
    )
    return [rows], f"{told}: {head}" if head else told


def _index(index: Any) -> Told:
    rows = len(index)
    head = ", ".join(_name(index[at]) for at in range(min(5, rows)))
    return [rows], f"{rows:,} {short(index.dtype)}: {head}" + (", ..." if rows > 5 else "")


# -- arrow and polars ------------------------------------------------------------------------


def _table(table: Any) -> Told:
    schema = table.schema
    parts = [f"{schema.field(at).name} {schema.field(at).type}"
             for at in range(min(len(schema), COLUMNS))]  # fmt: skip
    more = f", and {len(schema) - COLUMNS} more" if len(schema) > COLUMNS else ""
    shape = [table.num_rows, table.num_columns]
    return shape, f"{shape[0]:,}x{shape[1]} ({', '.join(parts)}{more})"


def _chunked(arr: Any) -> Told:
    return [len(arr)], f"{len(arr):,} {arr.type}"


def _polars(df: Any) -> Told:
    rows, width = df.shape
    names = list(df.schema.items())
    parts = [f"{name} {dtype}" for name, dtype in names[:COLUMNS]]
    more = f", and {width - COLUMNS} more" if width > COLUMNS else ""
    return [rows, width], f"{rows:,}x{width} ({', '.join(parts)}{more})"


def _polars_series(series: Any) -> Told:
    return [len(series)], f"{len(series):,} {series.dtype} named {_name(series.name)}"


_RULES = {
    "numpy.ndarray": _array,
    "numpy.memmap": _array,
    "pandas.DataFrame": _frame,
    "pandas.Series": _series,
    "pyarrow.Table": _table,
    "pyarrow.RecordBatch": _table,
    "pyarrow.ChunkedArray": _chunked,
    "polars.DataFrame": _polars,
    "polars.Series": _polars_series,
}
