"""Frames and series of polars through Arrow, with their dtypes spelled out.

Arrow has fewer types than polars (an Enum comes back as a categorical), so the schema
travels beside the data, and the result is compared with it.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from . import codec_arrow
from .codec import (
    Decoder,
    Encoder,
    Malformed,
    Node,
    fields,
    instance,
    integers,
    reads,
    text,
    writes,
)

_PLAIN: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
        *(pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary),
        *(pl.Date, pl.Time, pl.Null, pl.Categorical),
    )
}


def _write_dtype(enc: Encoder, dtype: Any) -> Node:
    match dtype:
        case pl.Datetime():
            return ["datetime", dtype.time_unit, dtype.time_zone]
        case pl.Duration():
            return ["duration", dtype.time_unit]
        case pl.Decimal():
            return ["decimal", dtype.precision, dtype.scale]
        case pl.Enum():
            return ["enum", enc.nodes(dtype.categories.to_list())]
        case pl.List():
            return ["list", _write_dtype(enc, dtype.inner)]
        case pl.Array():
            return ["array", _write_dtype(enc, dtype.inner), dtype.size]
        case pl.Struct():
            return ["struct", [[f.name, _write_dtype(enc, f.dtype)] for f in dtype.fields]]
    kind = type(dtype).__name__
    if kind not in _PLAIN or dtype != _PLAIN[kind]():
        raise enc.refusal(f"a column of polars with dtype {kind}")
    return kind


def _read_dtype(dec: Decoder, node: Node) -> Any:
    match node:
        case str():
            return _PLAIN[node]()
        case ["datetime", unit, zone]:
            return pl.Datetime(text(unit), None if zone is None else text(zone))  # type: ignore[arg-type]
        case ["duration", unit]:
            return pl.Duration(text(unit))  # type: ignore[arg-type]
        case ["decimal", precision, scale]:
            return pl.Decimal(*integers([precision, scale]))
        case ["enum", names]:
            return pl.Enum([text(name) for name in dec.nodes(names)])
        case ["list", inner]:
            return pl.List(_read_dtype(dec, inner))
        case ["array", inner, size]:
            return pl.Array(_read_dtype(dec, inner), instance(size, int))
        case ["struct", list(members)]:
            return pl.Struct([pl.Field(text(n), _read_dtype(dec, d)) for n, d in members])
    raise Malformed("not a dtype of polars")


@writes("pl.frame", pl.DataFrame)
def _write_frame(enc: Encoder, obj: Any) -> list[Node]:
    schema = []
    for name, dtype in obj.schema.items():
        with enc.at(f" column {name!r}"):
            schema.append([enc.node(name), _write_dtype(enc, dtype)])
    table = obj.to_arrow()
    try:
        same = _rebuilt(table, obj.schema).equals(obj, null_equal=True)
    except Malformed:
        same = False
    if not same:
        raise enc.refusal("a frame of polars that Arrow does not give back equal")
    return [schema, obj.height, codec_arrow.write(enc, table)]


@reads("pl.frame")
def _read_frame(dec: Decoder, node: list[Node]) -> Any:
    _, schema, height, data = fields(node, 4)
    wanted = {text(name): _read_dtype(dec, dtype) for name, dtype in instance(schema, list)}
    made = _rebuilt(codec_arrow.table(dec, data), pl.Schema(wanted))
    if made.height != height:
        raise Malformed("another number of rows")
    return made


def _rebuilt(table: Any, schema: Any) -> Any:
    """The frame of a table with exactly that schema. Raises `Malformed`."""
    try:
        made: Any = pl.from_arrow(table)
        casts = {n: d for n, d in schema.items() if made.schema.get(n) != d}
        made = made.cast(casts) if casts else made
    except pl.exceptions.PanicException as error:  # derives from BaseException
        raise Malformed(str(error)) from None
    if made.schema != schema or list(made.columns) != list(schema):
        raise Malformed("columns came out with another dtype")
    return made


@writes("pl.series", pl.Series)
def _write_series(enc: Encoder, obj: Any) -> list[Node]:
    return [enc.node(obj.name), *_write_frame(enc, obj.alias("values").to_frame())]


@reads("pl.series")
def _read_series(dec: Decoder, node: list[Node]) -> Any:
    _, name, *rest = fields(node, 5)
    return _read_frame(dec, ["pl.frame", *rest]).to_series().alias(text(dec.node(name)))
