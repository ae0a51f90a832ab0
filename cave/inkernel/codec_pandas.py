"""Frames, series, indexes and scalars of pandas, column by column with explicit dtypes.

A frame is written block by block as pandas holds it: one two-dimensional buffer for all
columns of a numpy dtype, an own description for every extension dtype. Nothing is inferred
on reading: each array is made with the dtype that was written, and the dtypes of the result
are compared with them. Strings that are held by Arrow travel as Arrow IPC, everything else
needs no pyarrow.
"""

from __future__ import annotations

import importlib
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd

from . import codec_numpy
from .codec import (
    Decoder,
    Encoder,
    Malformed,
    Node,
    fields,
    instance,
    integers,
    label,
    reads,
    text,
    typename,
    writes,
)

_FEW = 1000
"""Up to this many strings are written as JSON even when Arrow holds them."""
_WIDE = 64
"""Frames with more columns than this are consolidated, which costs one more copy."""

_UNITS = ("s", "ms", "us", "ns")
_MASKED = {
    name: getattr(pd.arrays, name) for name in ("IntegerArray", "FloatingArray", "BooleanArray")
}
_INDEXES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        pd.Index,
        pd.DatetimeIndex,
        pd.TimedeltaIndex,
        pd.PeriodIndex,
        pd.CategoricalIndex,
        pd.IntervalIndex,
    )
}


def _of_older_pandas(name: str) -> Any:
    return getattr(importlib.import_module("pandas.core.arrays.string_arrow"), name, None)


_STRINGS = tuple(
    kind
    for name in ("StringArray", "ArrowStringArray", "ArrowStringArrayNumpySemantics")
    if (kind := getattr(pd.arrays, name, None) or _of_older_pandas(name))
)


# -- one-dimensional arrays ------------------------------------------------------------------


def write_column(enc: Encoder, arr: Any) -> Node:
    """The node of a series' or an index' values, given as numpy or extension array."""
    if isinstance(arr, np.ndarray):
        return ["np.array", *codec_numpy.write_array(enc, np.asarray(arr))]
    if isinstance(arr.dtype, np.dtype):
        return ["np.array", *codec_numpy.write_array(enc, np.asarray(arr))]
    return enc.node(arr)


def read_column(dec: Decoder, node: Node, *, own: bool = True) -> Any:
    """An array of what `write_column` wrote."""
    if type(node) is list and node and node[0] == "np.array":
        return codec_numpy.read_array(dec, node) if own else codec_numpy.borrow(dec, node)
    return instance(dec.node(node), (pd.api.extensions.ExtensionArray, np.ndarray))


def _values(obj: Any) -> Any:
    """The values of a series or index: an ndarray where numpy has the dtype."""
    return obj.to_numpy() if isinstance(obj.dtype, np.dtype) else obj.array


def _ints(dec: Decoder, node: Node) -> Any:
    arr = codec_numpy.read_array(dec, instance(node, list))
    if arr.dtype != np.int64 or arr.ndim != 1:
        raise Malformed("64-bit integers were expected")
    return arr


@writes("pd.masked", *_MASKED.values())
def _write_masked(enc: Encoder, arr: Any) -> list[Node]:
    return [type(arr).__name__, write_column(enc, arr._data), write_column(enc, arr._mask)]


@reads("pd.masked")
def _read_masked(dec: Decoder, node: list[Node]) -> Any:
    _, kind, data, mask = fields(node, 4)
    values, missing = read_column(dec, data), read_column(dec, mask)
    if values.shape != missing.shape or values.ndim != 1:
        raise Malformed("a mask of another length")
    return _MASKED[text(kind)](values, missing)


@writes("pd.strings", *_STRINGS)
def _write_strings(enc: Encoder, arr: Any) -> list[Node]:
    dtype = arr.dtype
    missing = "nan" if getattr(dtype, "na_value", pd.NA) is not pd.NA else "NA"
    if dtype.storage == "python" or len(arr) <= _FEW or not enc.arrow:
        values = arr.to_numpy(dtype=object, na_value=None).tolist()
        return [dtype.storage[:7], missing, enc.nodes(values)]
    from . import codec_arrow

    return [dtype.storage[:7], missing, codec_arrow.write(enc, arr.__arrow_array__())]


@reads("pd.strings")
def _read_strings(dec: Decoder, node: list[Node]) -> Any:
    _, storage, missing, data = fields(node, 4)
    if storage not in ("python", "pyarrow") or missing not in ("nan", "NA"):
        raise Malformed("not a kind of text column")
    dtype = _string_dtype(storage, missing)
    if type(data) is list and data[:1] == ["pa.chunked"]:
        from . import codec_arrow

        chunks = codec_arrow.strings(dec, data)
        return _objects(chunks.to_pylist()) if dtype is None else dtype.__from_arrow__(chunks)
    values = dec.nodes(data)
    if not {type(value) for value in values} <= {str, type(None)}:
        raise Malformed("texts were expected")
    return _objects(values) if dtype is None else pd.array(values, dtype=dtype)


def _string_dtype(storage: str, missing: str) -> Any:
    """None where pandas has no such dtype yet: its texts are objects."""
    if missing == "NA":
        return pd.StringDtype(storage)
    try:
        return pd.StringDtype(storage, na_value=np.nan)
    except ImportError:  # no pyarrow here: the same dtype, held by Python
        return pd.StringDtype("python", na_value=np.nan)
    except TypeError:
        return None


def _objects(values: list[str | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=object)


@writes("pd.categories", pd.Categorical)
def _write_categorical(enc: Encoder, arr: Any) -> list[Node]:
    with enc.at(" categories"):
        categories = enc.node(arr.categories)
    return [write_column(enc, arr.codes), categories, bool(arr.ordered)]


@reads("pd.categories")
def _read_categorical(dec: Decoder, node: list[Node]) -> Any:
    _, codes, categories, ordered = fields(node, 4)
    index = instance(dec.node(categories), pd.Index)
    dtype = pd.CategoricalDtype(index, ordered=instance(ordered, bool))
    return pd.Categorical.from_codes(read_column(dec, codes), dtype=dtype)


@writes("pd.datetimes", pd.arrays.DatetimeArray)
def _write_datetimes(enc: Encoder, arr: Any) -> list[Node]:
    """Only with a time zone: without one they are numpy's own."""
    if not isinstance(arr.dtype, pd.DatetimeTZDtype):
        raise enc.refusal("an array of pandas without a series; take the series")
    ints = np.asarray(arr.asi8)
    return [write_column(enc, ints), arr.dtype.unit, _write_tz(enc, arr.dtype.tz)]


@reads("pd.datetimes")
def _read_datetimes(dec: Decoder, node: list[Node]) -> Any:
    _, ints, unit, zone = fields(node, 4)
    if unit not in _UNITS:
        raise Malformed("not a unit of time")
    values = _ints(dec, ints).view(f"M8[{unit}]")
    return pd.DatetimeIndex(values, copy=False).tz_localize("UTC").tz_convert(
        _read_tz(dec, zone)
    ).array  # fmt: skip


def _write_tz(enc: Encoder, tz: Any) -> Node:
    if type(tz).__module__.partition(".")[0] == "pytz" and getattr(tz, "zone", None):
        return f"pytz:{tz.zone}"
    return enc.node(tz)


def _read_tz(dec: Decoder, node: Node) -> Any:
    """pytz's zones come back as pytz's when it is here, else as zoneinfo's."""
    if not isinstance(node, str):
        return dec.node(node)
    kind, _, zone = node.partition(":")
    found = dec.node(["zone", zone])
    if kind != "pytz":
        raise Malformed("not a time zone")
    try:
        import pytz  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return instance(found, zoneinfo.ZoneInfo)
    return pytz.timezone(zone)


@writes("pd.periods", pd.arrays.PeriodArray)
def _write_periods(enc: Encoder, arr: Any) -> list[Node]:
    return [
        write_column(enc, np.asarray(arr.asi8)),
        arr.dtype.name.removeprefix("period[").removesuffix("]"),
    ]


@reads("pd.periods")
def _read_periods(dec: Decoder, node: list[Node]) -> Any:
    _, ints, freq = fields(node, 3)
    kind: Any = pd.PeriodIndex
    return kind.from_ordinals(_ints(dec, ints), freq=text(_read_freq(freq))).array


@writes("pd.intervals", pd.arrays.IntervalArray)
def _write_intervals(enc: Encoder, arr: Any) -> list[Node]:
    return [enc.node(pd.Index(arr.left)), enc.node(pd.Index(arr.right)), arr.closed]


@reads("pd.intervals")
def _read_intervals(dec: Decoder, node: list[Node]) -> Any:
    _, left, right, closed = fields(node, 4)
    return pd.arrays.IntervalArray.from_arrays(
        instance(dec.node(left), pd.Index), instance(dec.node(right), pd.Index), _side(closed)
    )


@writes("pd.arrow", pd.arrays.ArrowExtensionArray)
def _write_arrow(enc: Encoder, arr: Any) -> list[Node]:
    from . import codec_arrow

    if not enc.arrow:
        raise enc.refusal("an Arrow column, and the other side has no pyarrow")
    return [codec_arrow.write(enc, arr.__arrow_array__())]


@reads("pd.arrow")
def _read_arrow(dec: Decoder, node: list[Node]) -> Any:
    from . import codec_arrow

    return pd.arrays.ArrowExtensionArray(codec_arrow.chunked(dec, fields(node, 2)[1]))


def _side(node: Node) -> Any:
    if node not in ("left", "right", "both", "neither"):
        raise Malformed("an interval is closed left, right, both or neither")
    return node


def _write_freq(enc: Encoder, freq: Any) -> Node:
    """The name of an offset, when the name says all of it."""
    if freq is None:
        return None
    try:
        same = pd.tseries.frequencies.to_offset(freq.freqstr) == freq
    except ValueError:
        same = False
    if not same:
        raise enc.refusal(f"the frequency {typename(freq)}")
    return freq.freqstr


def _read_freq(node: Node) -> Any:
    if node is not None and len(text(node)) > 64:
        raise Malformed("not a frequency")
    return node


# -- indexes ---------------------------------------------------------------------------------


@writes("pd.rangeindex", pd.RangeIndex)
def _write_rangeindex(enc: Encoder, obj: Any) -> list[Node]:
    return [[obj.start, obj.stop, obj.step], enc.node(obj.name)]


@reads("pd.rangeindex")
def _read_rangeindex(dec: Decoder, node: list[Node]) -> Any:
    _, span, name = fields(node, 3)
    return pd.RangeIndex(range(*integers(span, 3)), name=dec.node(name))


@writes("pd.index", *_INDEXES.values())
def _write_index(enc: Encoder, obj: Any) -> list[Node]:
    freq = obj.freq if isinstance(obj, pd.DatetimeIndex | pd.TimedeltaIndex) else None
    return [
        type(obj).__name__,
        write_column(enc, _values(obj)),
        enc.node(obj.name),
        _write_freq(enc, freq),
    ]


@reads("pd.index")
def _read_index(dec: Decoder, node: list[Node]) -> Any:
    _, kind, data, name, freq = fields(node, 5)
    arr = read_column(dec, data)
    made: Any = pd.Index(arr, dtype=arr.dtype, name=dec.node(name), copy=False)
    if made.__class__.__name__ != text(kind) or made.dtype != arr.dtype:
        raise Malformed(f"an index of another kind: {type(made).__name__}")
    if freq is not None:
        made.freq = _read_freq(freq)
    return made


@writes("pd.multiindex", pd.MultiIndex)
def _write_multiindex(enc: Encoder, obj: Any) -> list[Node]:
    levels = [enc.node(level, f" level {at}") for at, level in enumerate(obj.levels)]
    codes = [write_column(enc, np.asarray(code)) for code in obj.codes]
    return [levels, codes, enc.nodes(obj.names)]


@reads("pd.multiindex")
def _read_multiindex(dec: Decoder, node: list[Node]) -> Any:
    _, levels, codes, names = fields(node, 4)
    return pd.MultiIndex(
        levels=[instance(dec.node(level), pd.Index) for level in instance(levels, list)],
        codes=[read_column(dec, code) for code in instance(codes, list)],
        names=dec.nodes(names),
        verify_integrity=True,
    )


# -- series and frames -----------------------------------------------------------------------


def _write_extra(enc: Encoder, obj: Any) -> Node:
    """What a frame or series has besides its values."""
    with enc.at(" attrs"):
        attrs = enc.node(obj.attrs) if obj.attrs else None
    return [attrs, obj.flags.allows_duplicate_labels]


def _read_extra(dec: Decoder, node: Node, obj: Any) -> Any:
    attrs, duplicates = instance(node, list)
    if attrs is not None:
        obj.attrs = instance(dec.node(attrs), dict)
    if duplicates is False:
        obj.flags.allows_duplicate_labels = False
    return obj


@writes("pd.series", pd.Series)
def _write_series(enc: Encoder, obj: Any) -> list[Node]:
    data = write_column(enc, _values(obj))
    with enc.at(" index"):
        index = enc.node(obj.index)
    return [data, index, enc.node(obj.name), _write_extra(enc, obj)]


@reads("pd.series")
def _read_series(dec: Decoder, node: list[Node]) -> Any:
    _, data, labels, name, extra = fields(node, 5)
    arr = read_column(dec, data)
    index = instance(dec.node(labels), pd.Index)
    made = pd.Series(arr, index=index, dtype=arr.dtype, name=dec.node(name), copy=False)
    if made.dtype != arr.dtype:
        raise Malformed("a series of another dtype")
    return _read_extra(dec, extra, made)


@writes("pd.frame", pd.DataFrame)
def _write_frame(enc: Encoder, obj: Any) -> list[Node]:
    blocks = []
    for block in obj._mgr.blocks:
        places = block.mgr_locs.as_array.tolist()
        values = block.values
        if isinstance(values.dtype, np.dtype) and values.dtype != object:
            arr = np.asarray(values)
            blocks.append([places, ["np.array", *codec_numpy.write_array(enc, arr)]])
        else:
            blocks.extend([place, _write_place(enc, obj, place)] for place in places)
    with enc.at(" index"):
        index = enc.node(obj.index)
    with enc.at(" columns"):
        columns = enc.node(obj.columns)
    return [blocks, index, columns, _write_extra(enc, obj)]


def _write_place(enc: Encoder, obj: Any, place: int) -> Node:
    with enc.at(f" column {label(obj.columns[place])}"):
        return write_column(enc, _values(obj.iloc[:, place]))


@reads("pd.frame")
def _read_frame(dec: Decoder, node: list[Node]) -> Any:
    _, blocks, labels, names, extra = fields(node, 5)
    read = [_read_block(dec, block) for block in instance(blocks, list)]
    index = instance(dec.node(labels), pd.Index)
    columns = instance(dec.node(names), pd.Index)
    made = _frame(read, index, len(columns))
    made.columns = columns
    return _read_extra(dec, extra, made)


def _read_block(dec: Decoder, node: Node) -> tuple[list[int], Any]:
    """Positions, and an array of one row per position."""
    places, data = instance(node, list)
    if type(places) is int:
        return [places], read_column(dec, data)
    arr = codec_numpy.borrow(dec, data)
    if arr.ndim != 2 or len(arr) != len(integers(places)):
        raise Malformed("a block of another shape")
    return places, arr


def _frame(blocks: list[tuple[list[int], Any]], index: Any, width: int) -> Any:
    if len(blocks) == 1 and blocks[0][0] == list(range(width)) and blocks[0][1].ndim == 2:
        arr = blocks[0][1]
        if arr.shape[1] != len(index):
            raise Malformed("columns of another length than their index")
        made = pd.DataFrame(arr.T, index=index, copy=not arr.flags.writeable)
        _same_dtypes(made, [arr.dtype] * width)
        return made
    columns: dict[int, Any] = {}
    for places, arr in blocks:
        rows = [arr] if len(places) == 1 and arr.ndim == 1 else arr
        columns.update(zip(places, rows, strict=True))
    if sorted(columns) != list(range(width)):
        raise Malformed("columns are missing")
    return _mixed([columns[at] for at in range(width)], blocks, index)


def _mixed(columns: list[Any], blocks: list[tuple[list[int], Any]], index: Any) -> Any:
    if any(len(column) != len(index) for column in columns):
        raise Malformed("columns of another length than their index")
    series = {
        at: pd.Series(column, index=index, dtype=column.dtype, copy=False)
        for at, column in enumerate(columns)
    }
    borrowed = any(isinstance(a, np.ndarray) and not a.flags.writeable for _, a in blocks)
    made = pd.DataFrame(series, index=index, copy=borrowed or len(columns) > _WIDE)
    _same_dtypes(made, [column.dtype for column in columns])
    return made


def _same_dtypes(made: Any, dtypes: list[Any]) -> None:
    if list(made.dtypes) != dtypes:
        raise Malformed("columns came out with another dtype")


# -- scalars ---------------------------------------------------------------------------------


@writes("pd.nat", type(pd.NaT))
@writes("pd.na", type(pd.NA))
def _write_missing(_: Encoder, __: object) -> list[Node]:
    return []


@reads("pd.nat")
def _read_nat(_: Decoder, __: list[Node]) -> Any:
    return pd.NaT


@reads("pd.na")
def _read_na(_: Decoder, __: list[Node]) -> Any:
    return pd.NA


@writes("pd.timestamp", pd.Timestamp)
def _write_timestamp(enc: Encoder, obj: Any) -> list[Node]:
    moment = obj.to_datetime64()
    return [int(moment.view("i8")), obj.unit, _write_tz(enc, obj.tz)]


@reads("pd.timestamp")
def _read_timestamp(dec: Decoder, node: list[Node]) -> Any:
    _, value, unit, zone = fields(node, 4)
    if unit not in _UNITS:
        raise Malformed("not a unit of time")
    made = pd.Timestamp(np.datetime64(instance(value, int), unit))
    if made.unit != unit:
        raise Malformed("a time of another unit")
    return made if zone is None else made.tz_localize("UTC").tz_convert(_read_tz(dec, zone))


@writes("pd.timedelta", pd.Timedelta)
def _write_timedelta(_: Encoder, obj: Any) -> list[Node]:
    return [int(obj.to_timedelta64().view("i8")), obj.unit]


@reads("pd.timedelta")
def _read_timedelta(_: Decoder, node: list[Node]) -> Any:
    _, value, unit = fields(node, 3)
    if unit not in _UNITS:
        raise Malformed("not a unit of time")
    made = pd.Timedelta(np.timedelta64(instance(value, int), unit))
    if made.unit != unit:
        raise Malformed("a span of another unit")
    return made


@writes("pd.period", pd.Period)
def _write_period(_: Encoder, obj: Any) -> list[Node]:
    return [obj.ordinal, obj.freqstr]


@reads("pd.period")
def _read_period(_: Decoder, node: list[Node]) -> Any:
    _, ordinal, freq = fields(node, 3)
    return pd.Period(ordinal=instance(ordinal, int), freq=text(_read_freq(freq)))


@writes("pd.interval", pd.Interval)
def _write_interval(enc: Encoder, obj: Any) -> list[Node]:
    return [enc.node(obj.left), enc.node(obj.right), obj.closed]


@reads("pd.interval")
def _read_interval(dec: Decoder, node: list[Node]) -> Any:
    _, left, right, closed = fields(node, 4)
    return pd.Interval(dec.node(left), dec.node(right), _side(closed))
