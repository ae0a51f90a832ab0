"""Facts of arrays, frames and tables: columns, dtypes, ranges, missing values, first rows.

Only the first rows and an even sample are looked at, so that a million rows cost what a
thousand do. Nothing here converts a whole column, and no lazy frame is collected.
"""

from __future__ import annotations

import re
from typing import Any

from . import describe, discreet, glance, kinds

SAMPLE = 1000
"""Elements that a range or a count of missing values is taken from."""
COLUMNS = 30
"""Columns that are named."""
RANGED = 12
"""Columns of which a range is told."""
COUNTED = 100_000
"""Rows up to which missing values are counted, not estimated."""

FEW = 5
"""Levels and distinct texts up to which they are named."""

Told = tuple[list[int] | None, str]


def facts(obj: Any, base: type, *, exact: bool) -> Told | None:
    """Shape and summary of an object of numpy, pandas, pyarrow or polars; None if unknown.

    A class of the session that derives from theirs may answer by code of its own.
    """
    if not exact and kinds.module(type(obj)) == "__main__":
        return None
    library, name = kinds.library(base), kinds.name(base)
    rule = _RULES.get(f"{library}.{name}")
    if rule is None and library == "pandas" and name.endswith("Index"):
        rule = _index
    return None if rule is None else rule(obj)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return _short(describe.clip(str(value), 32))


_OFFSET = re.compile(r"(?<=\d\d:\d\d:\d\d)[+-]\d\d:\d\d$|(?<=\.\d{6})[+-]\d\d:\d\d$")


def _short(text: str) -> str:
    """A moment without its offset, which the type tells, and without midnight."""
    return _OFFSET.sub("", text).removesuffix(" 00:00:00")


def _cell(value: Any) -> str:
    return _short(describe.brief(value))


# -- numpy -----------------------------------------------------------------------------------


def _array(arr: Any) -> Told:
    shape = list(arr.shape)
    if arr.dtype.names:
        return shape, _structured(arr)
    what = f"{'x'.join(map(str, shape)) or 'scalar'} {arr.dtype}"
    if not arr.size:
        return shape, what + ", empty"
    if arr.dtype.kind in "biufmM" and (span := _span(_thin(arr))):
        what += f", {span}"
    if arr.dtype.kind in "biufmMUSc":
        head = ", ".join(_number(v) for v in arr.flat[: min(5, arr.size)].tolist())
        what += f": {head}" + (", ..." if arr.size > 5 else "")
    return shape, what + ("" if arr.flags.writeable else "; read-only")


def _structured(arr: Any) -> str:
    """Fields with their types, and the first record."""
    names = arr.dtype.names
    fields = ", ".join(f"{name} {arr.dtype[name]}" for name in names[:COLUMNS])
    what = f"{'x'.join(map(str, arr.shape)) or 'scalar'} records ({fields})"
    if not arr.size:
        return what + ", empty"
    first = arr.flat[:1][0]
    shown = (discreet.HIDDEN if discreet.names_secret(name) else describe.brief(_plain(first[name]))
             for name in names[:COLUMNS])  # fmt: skip
    return f"{what}; row 0: {', '.join(shown)}"


def _masked(arr: Any) -> Told:
    shape, what = _array(arr.data)
    mask = arr.mask
    if getattr(mask, "ndim", 0) == 0 or not arr.size:
        lost = f"{arr.size if mask else 0:,}"
    elif mask.size <= COUNTED:
        lost = f"{int(mask.sum()):,}"
    else:
        lost = f"~{100 * int(_thin(mask).sum()) // SAMPLE}%"
    return shape, f"{what}; {lost} masked"


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
    deadline = glance.Deadline()
    thin = df.iloc[:: max(1, rows // SAMPLE), :RANGED]
    names, dtypes = df.columns[:COLUMNS], list(df.iloc[:0, :COLUMNS].dtypes)
    approx = "~" if rows > SAMPLE else ""
    parts = []
    for at in range(min(width, COLUMNS)):
        told = f"{_name(names[at])} {short(dtypes[at])}"
        looked = at < RANGED and rows and not deadline.over
        if looked and not _is_secret(names[at]):
            told += _column(thin.iloc[:, at], approx)
        parts.append(told)
    more = f", and {width - COLUMNS} more" if width > COLUMNS else ""
    summary = f"{rows:,}x{width} ({', '.join(parts)}{more}){_labels(df.index)}"
    return [rows, width], _with_rows(summary, df)


def _is_secret(column: Any) -> bool:
    return type(column) is str and discreet.names_secret(column)


def _labels(index: Any) -> str:
    """What rows are labelled by, if not by their numbers."""
    kind = kinds.name(type(index))
    if kind == "RangeIndex" and index.name is None:
        return ""
    if kind == "MultiIndex":
        pairs = enumerate(zip(index.names, index.levels, strict=True))
        levels = [f"{at if n is None else _name(n)} {short(one.dtype)}" for at, (n, one) in pairs]
        return f"; index ({', '.join(levels)})"
    told = (
        f"; index {_name(index.name) + ' ' if index.name is not None else ''}{short(index.dtype)}"
    )
    if kind == "DatetimeIndex" and (freq := index.freq) is not None:
        told += f" every {freq.freqstr}"
    if len(index) and not _is_secret(index.name):
        told += f" {_name(index[0])}..{_name(index[-1])}"
    return told


def _with_rows(summary: str, df: Any) -> str:
    """Add the first rows as far as there is room."""
    hidden = [_is_secret(name) for name in df.columns[:COLUMNS]]
    for at in range(min(2, len(df))):
        row = df.iloc[at : at + 1, :COLUMNS]
        cells = ", ".join(
            discreet.HIDDEN if hidden[c] else _cell(row.iat[0, c]) for c in range(row.shape[1])
        )
        if len(summary) + len(cells) + 8 > describe.LIMIT:
            break
        summary += f"; row {at}: {cells}"
    return summary


def _name(column: Any) -> str:
    if type(column) is tuple:
        return "(" + ", ".join(map(_name, column)) + ")"
    return describe.clip(column, 40) if type(column) is str else _cell(column)


def short(dtype: Any) -> str:
    """A dtype in a few characters: i64, f64, str, cat, date."""
    text = str(dtype)
    for long, brief in (("float", "f"), ("uint", "u"), ("int", "i"), ("datetime64", "date")):
        if text.startswith(long):
            return text.replace(long, brief, 1)
    return {"category": "cat", "object": "obj", "string": "str"}.get(text, text)


def _column(series: Any, approx: str) -> str:
    """Range of a numeric column, levels of a categorical one, few texts, what is missing."""
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if str(dtype) == "category":
        return _levels(dtype) + _missing(series, approx)
    if kind in "iufmM" and len(series):
        low, high = series.min(), series.max()
        if describe.brief(low) in ("nan", "NaT", "<NA>", "None"):
            return " all missing"
        return f" {approx}{_number(_plain(low))}..{_number(_plain(high))}" + _missing(
            series, approx
        )
    texts = _texts(series) if short(dtype) in ("str", "obj") else ""
    return texts + _missing(series, approx)


def _levels(dtype: Any) -> str:
    count = len(dtype.categories)
    names = [_name(dtype.categories[at]) for at in range(min(count, FEW))]
    listed = ", ".join(names)
    return f"[{count}: {listed}]" if 0 < count <= FEW and len(listed) <= 60 else f"[{count}]"


def _texts(series: Any) -> str:
    """The texts of a column that has only a few, by its sample."""
    values = series.iloc[:: max(1, len(series) // 200)].tolist()
    found = {value for value in values if type(value) is str}
    listed = ", ".join(sorted(found))
    few = 0 < len(found) <= FEW and len(values) >= 3 * len(found) and len(listed) <= 60
    return f"[{describe.clip(listed, 60)}]" if few else ""


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value


def _missing(series: Any, approx: str = "") -> str:
    lost = int(series.isna().sum())
    if not lost:
        return ""
    return f" ~{100 * lost // len(series) or '<1'}% missing" if approx else f" {lost:,} missing"


def _series(series: Any) -> Told:
    rows = len(series)
    thin = series.iloc[:: max(1, rows // SAMPLE)] if rows > SAMPLE else series
    told = f"{rows:,} {short(series.dtype)}"
    if series.name is not None:
        told += f" named {_name(series.name)}"
    told += _column(thin, "~" if rows > SAMPLE else "") if rows else ", empty"
    told += _labels(series.index) if kinds.name(type(series.index)) == "MultiIndex" else ""
    if _is_secret(series.name):
        return [rows], told
    head = ", ".join(
        f"{_name(series.index[at])}: {_cell(series.iat[at])}" for at in range(min(4, rows))
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
    told = f"{shape[0]:,}x{shape[1]} ({', '.join(parts)}{more})"
    if 0 < len(parts) == len(schema) and shape[0]:
        names = [schema.field(at).name for at in range(len(schema))]
        told = _with_first(told, names, [table.column(at)[0].as_py() for at in range(len(names))])
    return shape, told


def _with_first(told: str, names: list[str], values: list[Any]) -> str:
    """Add the first row where there is room."""
    cells = ", ".join(
        discreet.HIDDEN if discreet.names_secret(name) else _cell(value)
        for name, value in zip(names, values, strict=True)
    )
    return f"{told}; row 0: {cells}" if len(told) + len(cells) < describe.LIMIT - 8 else told


def _chunked(arr: Any) -> Told:
    head = ", ".join(describe.brief(arr[at].as_py()) for at in range(min(4, len(arr))))
    lost = f" {arr.null_count:,} missing" if arr.null_count else ""
    return [len(arr)], f"{len(arr):,} {arr.type}{lost}" + (f": {head}" if head else "")


def _dataset(obj: Any) -> Told:
    return None, f"not read; columns {_schema(obj.schema)}"


def _schema(schema: Any) -> str:
    parts = [f"{schema.field(at).name} {schema.field(at).type}"
             for at in range(min(len(schema), COLUMNS))]  # fmt: skip
    return ", ".join(parts) + (
        f", and {len(schema) - COLUMNS} more" if len(schema) > COLUMNS else ""
    )


def _polars(df: Any) -> Told:
    rows, width = df.shape
    deadline = glance.Deadline()
    names = list(df.schema.items())
    thin = df.gather_every(max(1, rows // SAMPLE))
    parts = []
    for at, (name, dtype) in enumerate(names[:COLUMNS]):
        told = f"{describe.clip(name, 40)} {_brief_type(dtype)}"
        if at < RANGED and rows and not deadline.over and not discreet.names_secret(name):
            told += _polars_column(thin[name], "~" if rows > SAMPLE else "")
        parts.append(told)
    more = f", and {width - COLUMNS} more" if width > COLUMNS else ""
    told = f"{rows:,}x{width} ({', '.join(parts)}{more})"
    if 0 < width <= COLUMNS and rows:
        told = _with_first(told, [name for name, _ in names], list(df.row(0)))
    return [rows, width], told


def _brief_type(dtype: Any) -> str:
    text = re.sub(
        r"\(time_unit='(\w+)'(?:, time_zone=(?:'([^']*)'|None))?\)", r"[\1 \2]", str(dtype)
    )
    text = text.replace(" ]", "]")
    for long, brief in (("Float", "f"), ("UInt", "u"), ("Int", "i"), ("Datetime", "date")):
        if text.startswith(long):
            return text.replace(long, brief, 1)
    return {"String": "str", "Boolean": "bool", "Categorical": "cat", "Date": "date"}.get(
        text, text
    )


def _polars_column(series: Any, approx: str) -> str:
    lost = series.null_count()
    told = ""
    if series.dtype.is_numeric() or series.dtype.is_temporal():
        low, high = series.min(), series.max()
        if low is None:
            return " all missing"
        told = f" {approx}{_number(low)}..{_number(high)}"
    if lost:
        told += (
            f" ~{100 * lost // len(series) or '<1'}% missing" if approx else f" {lost:,} missing"
        )
    return told


def _polars_series(series: Any) -> Told:
    head = ", ".join(describe.brief(value) for value in series.head(4).to_list())
    named = f" named {_name(series.name)}" if series.name else ""
    told = f"{len(series):,} {_brief_type(series.dtype)}{named}"
    if discreet.names_secret(series.name):
        return [len(series)], told
    if len(series):
        thin = series.gather_every(max(1, len(series) // SAMPLE))
        told += _polars_column(thin, "~" if len(series) > SAMPLE else "")
    return [len(series)], told + (f": {head}" if head else "")


def _lazy(_frame: Any) -> Told:
    """Of a lazy frame nothing: to name its columns would resolve its plan, and read files."""
    return None, "not collected; collect_schema() tells its columns"


def _grouped(obj: Any) -> Told:
    """Of a group-by: its keys and columns, from what it was made with."""
    space = kinds.attributes(obj) or {}
    frame, keys = space.get("obj"), space.get("keys")
    listed = keys if type(keys) is list else [keys]
    by = ", ".join(
        _name(key) if type(key) in (str, tuple) else describe.brief(key) for key in listed
    )
    shape = getattr(frame, "shape", None)
    of = f" of {' x '.join(f'{n:,}' for n in shape)}" if type(shape) is tuple else ""
    return None, f"groups by {by}{of}"


_RULES = {
    "numpy.ndarray": _array,
    "numpy.memmap": _array,
    "numpy.MaskedArray": _masked,
    "pandas.DataFrame": _frame,
    "pandas.Series": _series,
    "pandas.DataFrameGroupBy": _grouped,
    "pandas.SeriesGroupBy": _grouped,
    "pyarrow.Table": _table,
    "pyarrow.RecordBatch": _table,
    "pyarrow.ChunkedArray": _chunked,
    "pyarrow.Array": _chunked,
    "pyarrow.RecordBatchReader": _dataset,
    "pyarrow.Dataset": _dataset,
    "polars.DataFrame": _polars,
    "polars.Series": _polars_series,
    "polars.LazyFrame": _lazy,
}
