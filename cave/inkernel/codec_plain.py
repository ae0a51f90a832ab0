"""The kinds of the standard library that the safe codecs carry: scalars, times, containers."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import pathlib
import re
import uuid
import zoneinfo
from collections.abc import Iterable
from typing import Any

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
    writes,
)


@reads("str")
def _read_str(_: Decoder, node: list[Node]) -> str:
    return bytes.fromhex(text(fields(node, 2)[1])).decode("utf-8", "surrogatepass")


@reads("int")
def _read_int(_: Decoder, node: list[Node]) -> int:
    digits = text(fields(node, 2)[1])
    if not re.fullmatch("-?[0-9a-f]+", digits):
        raise Malformed("not an int")
    return int(digits, 16)


@writes("complex", complex)
def _write_complex(_: Encoder, obj: complex) -> list[Node]:
    return [obj.real, obj.imag]


@reads("complex")
def _read_complex(_: Decoder, node: list[Node]) -> complex:
    _, real, imag = fields(node, 3)
    return complex(instance(real, float), instance(imag, float))


@writes("bytes", bytes)
@writes("bytearray", bytearray)
def _write_bytes(enc: Encoder, obj: bytes | bytearray) -> list[Node]:
    return [enc.stow(obj)]


@reads("bytes")
def _read_bytes(dec: Decoder, node: list[Node]) -> bytes:
    return bytes(dec.raw(fields(node, 2)[1]))


@reads("bytearray")
def _read_bytearray(dec: Decoder, node: list[Node]) -> bytearray:
    return bytearray(dec.raw(fields(node, 2)[1]))


@writes("ellipsis", type(...))
def _write_ellipsis(_: Encoder, __: object) -> list[Node]:
    return []


@reads("ellipsis")
def _read_ellipsis(_: Decoder, __: list[Node]) -> Any:
    return ...


@writes("decimal", decimal.Decimal)
@writes("uuid", uuid.UUID)
def _write_text(_: Encoder, obj: object) -> list[Node]:
    return [str(obj)]


@reads("decimal")
def _read_decimal(_: Decoder, node: list[Node]) -> decimal.Decimal:
    try:
        return decimal.Decimal(text(fields(node, 2)[1]))
    except decimal.InvalidOperation as error:
        raise Malformed("not a decimal") from error


@reads("uuid")
def _read_uuid(_: Decoder, node: list[Node]) -> uuid.UUID:
    return uuid.UUID(text(fields(node, 2)[1]))


@writes("fraction", fractions.Fraction)
def _write_fraction(enc: Encoder, obj: fractions.Fraction) -> list[Node]:
    return [enc.node(obj.numerator), enc.node(obj.denominator)]


@reads("fraction")
def _read_fraction(dec: Decoder, node: list[Node]) -> fractions.Fraction:
    top, bottom = (instance(dec.node(part), int) for part in fields(node, 3)[1:])
    return fractions.Fraction(top, bottom)


@writes("range", range)
@writes("slice", slice)
def _write_span(enc: Encoder, obj: range | slice) -> list[Node]:
    return [enc.node(part) for part in (obj.start, obj.stop, obj.step)]


@reads("range")
def _read_range(dec: Decoder, node: list[Node]) -> range:
    return range(*(dec.node(part) for part in fields(node, 4)[1:]))


@reads("slice")
def _read_slice(dec: Decoder, node: list[Node]) -> slice:
    return slice(*(dec.node(part) for part in fields(node, 4)[1:]))


_PATHS = {kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}
if type(pathlib.Path()) is pathlib.PosixPath:
    _PATHS["PosixPath"] = pathlib.PosixPath


@writes("path", *_PATHS.values())
def _write_path(enc: Encoder, obj: pathlib.PurePath) -> list[Node]:
    return [type(obj).__name__, enc.node(str(obj))]


@reads("path")
def _read_path(dec: Decoder, node: list[Node]) -> pathlib.PurePath:
    _, kind, path = fields(node, 3)
    return _PATHS[text(kind)](text(dec.node(path)))


# -- dates and times -------------------------------------------------------------------------


@writes("date", dt.date)
def _write_date(_: Encoder, obj: dt.date) -> list[Node]:
    return [[obj.year, obj.month, obj.day]]


@reads("date")
def _read_date(_: Decoder, node: list[Node]) -> dt.date:
    return dt.date(*integers(fields(node, 2)[1], 3))


@writes("datetime", dt.datetime)
def _write_datetime(enc: Encoder, obj: dt.datetime) -> list[Node]:
    parts = [obj.year, obj.month, obj.day, obj.hour, obj.minute, obj.second, obj.microsecond]
    return [parts, obj.fold, enc.node(obj.tzinfo)]


@reads("datetime")
def _read_datetime(dec: Decoder, node: list[Node]) -> dt.datetime:
    _, parts, fold, zone = fields(node, 4)
    made: Any = [*integers(parts, 7), dec.node(zone)]
    return dt.datetime(*made).replace(fold=fold)  # noqa: DTZ001 (the zone is its last part)


@writes("time", dt.time)
def _write_time(enc: Encoder, obj: dt.time) -> list[Node]:
    return [[obj.hour, obj.minute, obj.second, obj.microsecond], obj.fold, enc.node(obj.tzinfo)]


@reads("time")
def _read_time(dec: Decoder, node: list[Node]) -> dt.time:
    _, parts, fold, zone = fields(node, 4)
    made: Any = [*integers(parts, 4), dec.node(zone)]
    return dt.time(*made).replace(fold=fold)


@writes("timedelta", dt.timedelta)
def _write_timedelta(_: Encoder, obj: dt.timedelta) -> list[Node]:
    return [[obj.days, obj.seconds, obj.microseconds]]


@reads("timedelta")
def _read_timedelta(_: Decoder, node: list[Node]) -> dt.timedelta:
    return dt.timedelta(*integers(fields(node, 2)[1], 3))


@writes("timezone", dt.timezone)
def _write_timezone(enc: Encoder, obj: dt.timezone) -> list[Node]:
    if obj is dt.UTC:
        return [None, None]
    offset, *name = obj.__getinitargs__()  # type: ignore[attr-defined]
    return [_write_timedelta(enc, offset)[0], enc.node(name[0]) if name else None]


@reads("timezone")
def _read_timezone(dec: Decoder, node: list[Node]) -> dt.timezone:
    _, offset, name = fields(node, 3)
    if offset is None:
        return dt.UTC
    delta = dt.timedelta(*integers(offset, 3))
    return dt.timezone(delta) if name is None else dt.timezone(delta, text(dec.node(name)))


@writes("zone", zoneinfo.ZoneInfo)
def _write_zone(enc: Encoder, obj: zoneinfo.ZoneInfo) -> list[Node]:
    try:
        obj.__reduce__()  # refuses a zone that was read from a file of its own
    except Exception as error:
        raise enc.refusal("a time zone without a name") from error
    return [obj.key]


@reads("zone")
def _read_zone(_: Decoder, node: list[Node]) -> zoneinfo.ZoneInfo:
    key = text(fields(node, 2)[1])
    if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", key) or len(key) > 80:
        raise Malformed("not the name of a time zone")
    return zoneinfo.ZoneInfo(key)


# -- containers ------------------------------------------------------------------------------

_SEQUENCES: dict[str, type] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset)
}  # fmt: skip


@writes("list", list)
@writes("tuple", tuple)
@writes("set", set)
@writes("frozenset", frozenset)
def _write_items(enc: Encoder, obj: Iterable[Any]) -> list[Node]:
    return [enc.nodes(obj)]


@reads("list")
@reads("tuple")
@reads("set")
@reads("frozenset")
def _read_items(dec: Decoder, node: list[Node]) -> Any:
    tag, items = fields(node, 2)
    return _SEQUENCES[tag](dec.nodes(items))


@writes("deque", collections.deque)
def _write_deque(enc: Encoder, obj: collections.deque[Any]) -> list[Node]:
    return [enc.nodes(obj), obj.maxlen]


@reads("deque")
def _read_deque(dec: Decoder, node: list[Node]) -> collections.deque[Any]:
    _, items, maxlen = fields(node, 3)
    values = dec.nodes(items)
    if maxlen is not None and (type(maxlen) is not int or len(values) > maxlen):
        raise Malformed("a deque longer than its limit")
    return collections.deque(values, maxlen)


_MAPPINGS: dict[str, type] = {
    "dict": dict, "counter": collections.Counter, "odict": collections.OrderedDict
}  # fmt: skip
_FACTORIES: dict[str, type] = {
    kind.__name__: kind for kind in (list, dict, set, tuple, int, float, str, bool)
}


@writes("dict", dict)
@writes("counter", collections.Counter)
@writes("odict", collections.OrderedDict)
def _write_dict(enc: Encoder, obj: dict[Any, Any]) -> list[Node]:
    keys = list(obj)
    values = enc.nodes(obj.values(), lambda at: f"[{label(keys[at])}]")
    return [enc.nodes(keys, lambda at: f" key {label(keys[at])}"), values]


@reads("dict")
@reads("counter")
@reads("odict")
def _read_dict(dec: Decoder, node: list[Node]) -> Any:
    tag, values, keys = _pairs(dec, node)
    made = dict(zip(keys, values, strict=True))
    if len(made) != len(keys):
        raise Malformed("a key comes twice")
    return made if tag == "dict" else _MAPPINGS[tag](made)


def _pairs(dec: Decoder, node: list[Node]) -> tuple[str, list[Any], list[Any]]:
    """Values are written first, so they are also read first: references count on it."""
    tag, keys, values = fields(node, 3)
    made = dec.nodes(values)
    return tag, made, dec.nodes(keys)


@writes("defaultdict", collections.defaultdict)
def _write_defaultdict(enc: Encoder, obj: collections.defaultdict[Any, Any]) -> list[Node]:
    factory = obj.default_factory
    name = getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name) is not factory:
        raise enc.refusal("a defaultdict with a function of its own")
    return [None if factory is None else name, ["dict", *_write_dict(enc, obj)]]


@reads("defaultdict")
def _read_defaultdict(dec: Decoder, node: list[Node]) -> collections.defaultdict[Any, Any]:
    _, factory, pairs = fields(node, 3)
    made = _read_dict(dec, instance(pairs, list))
    name = None if factory is None else _FACTORIES[text(factory)]
    return collections.defaultdict(name, made)
