"""Objects of the kinds that cross between host and kernel, and of those that do not."""

import collections
import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import uuid
import zoneinfo
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa


def same(a: Any, b: Any) -> bool:  # noqa: PLR0911 (a case per kind)
    """Equality that also tells types, NaN, -0.0 and the order of keys apart."""
    if type(a) is not type(b):
        return False
    match a:
        case float():
            return (math.isnan(a) and math.isnan(b)) or (a, math.copysign(1, a)) == (
                b,
                math.copysign(1, b),
            )
        case decimal.Decimal():
            return str(a) == str(b)
        case complex():
            return same(a.real, b.real) and same(a.imag, b.imag)
        case list() | tuple() | collections.deque():
            return len(a) == len(b) and all(map(same, a, b))
        case dict():
            return same(list(a.items()), list(b.items()))
        case np.ndarray():
            return same_array(a, b)
        case pd.DataFrame():
            return same_frame(a, b)
        case pd.Series():
            pd.testing.assert_series_equal(a, b, check_freq=True)
            return same(a.attrs, b.attrs) and same_elements(a, b)
        case pd.Index():
            pd.testing.assert_index_equal(a, b, exact=True)
            return getattr(a, "freq", None) == getattr(b, "freq", None)
        case pl.DataFrame() | pl.Series():
            return a.equals(b, null_equal=True) and getattr(a, "schema", 0) == getattr(
                b, "schema", 0
            )
        case pa.Table() | pa.RecordBatch() | pa.Array() | pa.ChunkedArray():
            return a.equals(b) and repr(getattr(a, "schema", 0)) == repr(getattr(b, "schema", 0))
        case pd.Timestamp() | pd.Timedelta():
            return a == b and a.unit == b.unit and getattr(a, "tz", 0) == getattr(b, "tz", 0)
    if isinstance(a, np.generic):
        return same_array(np.asarray(a), np.asarray(b))
    if a is pd.NaT or a is pd.NA:
        return a is b
    return bool(a == b)


def same_array(a: Any, b: Any) -> bool:
    fortran = a.flags.fnc and not b.flags.fnc
    if (a.dtype, a.shape) != (b.dtype, b.shape) or fortran:
        return False
    if a.dtype == object:
        return same(a.reshape(-1).tolist(), b.reshape(-1).tolist())
    return a.tobytes() == b.tobytes()


def same_frame(a: Any, b: Any) -> bool:
    pd.testing.assert_frame_equal(a, b, check_freq=True, check_column_type=True)
    same_columns = same(a.columns, b.columns) and same(a.index, b.index)
    flags = a.flags.allows_duplicate_labels == b.flags.allows_duplicate_labels
    parts = all(same_elements(a.iloc[:, at], b.iloc[:, at]) for at in range(a.shape[1]))
    return same_columns and flags and same(a.attrs, b.attrs) and parts


def same_elements(a: Any, b: Any) -> bool:
    return a.dtype != object or same(a.tolist(), b.tolist())


class Level(enum.Enum):
    LOW = 1


@dataclass
class Point:
    x: int


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


def flat(**columns: Any) -> pd.DataFrame:
    """A frame whose columns keep dtype object."""
    return pd.DataFrame({name: pd.Series(c, dtype=object) for name, c in columns.items()})


def with_attrs(df: pd.DataFrame) -> pd.DataFrame:
    df.attrs = {"source": "ledger", "n": 3}
    return df


SCALARS: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63, -(2**64), 10**5000, -(10**5000), 2**4096],
    "floats": [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324, 0.1],
    "complex": [1j, complex(-0.0, math.nan), complex(math.inf, -0.0)],
    "strings": ["", "ü", "\x00", "\ud83d\ude00", "\udcc3", "😀", 'a"\\\n', "x" * 10_000],
    "bytes": [b"", b"\xff\x00", b"x" * 10_000],
    "bytearray": bytearray(b"abc" * 5000),
    "ellipsis": ...,
    "containers": [(1, (2,), []), {1, "a"}, frozenset({1.5}), {}, set(), ((),)],
    "dict": {1: "a", "1": "b", None: 0, (1, 2): [3], 2.5: {}, b"k": (), True and "t": 1},
    "range": [range(5), range(0, 10**30, 7), range(0)],
    "slice": slice(None, 5, None),
    "dates": [dt.date(1, 1, 1), dt.date.max, dt.datetime(2024, 10, 27, 2, 30, fold=1)],  # noqa: DTZ001
    "zones": [
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, seconds=3), "X")),
        dt.timezone(dt.timedelta(0)),
    ],
    "times": [dt.time(23, 59, 59, 999999), dt.time(1, tzinfo=dt.UTC), dt.timedelta.min],
    "decimals": [decimal.Decimal(t) for t in ("1.10", "-0", "Infinity", "1E+999")],
    "fraction": fractions.Fraction(-3, 7),
    "uuid": uuid.UUID(int=5),
    "paths": [pathlib.Path("/tmp/ü"), pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("c:")],
    "much text": ["some words ü"] * 200_000,
    "collections": [
        collections.deque([1, 2], maxlen=3),
        collections.Counter("abca"),
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, a=[1]),
    ],
}

ARRAYS: dict[str, Any] = {
    **{f"dtype {d}": np.arange(3).astype(d) for d in "?bBhHiIlLefdgFDG"},
    "large": np.arange(100_000.0).reshape(100, 1000),
    "big endian": np.arange(5, dtype=">i4"),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "transposed": np.arange(24).reshape(2, 3, 4).T,
    "strided": np.arange(10)[::2],
    "reversed": np.arange(10)[::-1],
    "zero dimensions": np.array(5.5),
    "empty": np.empty((0, 3), "f4"),
    "empty in the middle": np.empty((2, 0, 3)),
    "texts": np.array(["a", "bcd\0e", "ü"]),
    "bytes": np.array([b"a", b"\xff"]),
    "void": np.array([b"abc"], dtype="V3"),
    "datetimes": np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    "timedeltas": np.array([1, 2], dtype="m8[25us]"),
    "structured": np.array([(1, 2.5, "x")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U3")]),
    "aligned": np.zeros(2, np.dtype([("a", "i1"), ("b", "f8", (2,))], align=True)),
    "titled": np.zeros(2, np.dtype([(("title", "a"), "i4")])),
    "nested fields": np.zeros(2, [("p", [("x", "f4"), ("y", "?")]), ("u", "U2")]),
    "objects": np.array([1, "a", None, [1], {"k": np.arange(2)}], dtype=object),
    "object matrix": np.array([[1, None], ["x", 2.5]], dtype=object, order="F"),
    "scalars": [np.float32(1.5), np.int8(-3), np.bool_(True), np.str_("a\0"), np.bytes_(b"b\0"),
                np.datetime64("2020-01-01"), np.timedelta64("NaT", "s"), np.complex64(1j)],
    "record": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])[0],
}  # fmt: skip

DAYS = pd.date_range("2024-01-01", periods=3)
FRAMES: dict[str, Any] = {
    "numbers": frame(a=[1, 2, 3], b=[0.5, math.nan, -0.0], c=[True, False, True]),
    "one block": pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=list("abc")),
    "narrow dtypes": frame(a=np.arange(3, dtype="i1"), b=np.arange(3, dtype="f2"), c=[1j, 2, 3]),
    "strings": frame(s=["a", None, "ü"]),
    "many strings": frame(s=["x", None, "yz"] * 1000),
    "surrogates": flat(s=["\udcc3", "b", None]),
    "no rows": frame(a=np.array([], "i8"), s=pd.Series([], dtype="str")),
    "no columns": pd.DataFrame(index=[3, 4]),
    "nothing": pd.DataFrame(),
    "dates of Python": flat(d=[dt.date(2024, 1, 1), None, dt.date(2024, 1, 2)]),
    "decimals": flat(d=[decimal.Decimal("1.10"), decimal.Decimal("NaN"), None]),
    "nested": flat(l=[[1, [2]], {"a": (1,)}, np.arange(3)]),
    "none and nan": flat(x=[None, math.nan, pd.NA, pd.NaT]),
    "mixed": flat(x=[1, "a", 2.5, True, np.int8(3), pd.Timestamp("2024", tz="UTC")]),
    "times": frame(t=DAYS, s=DAYS.as_unit("s"), d=DAYS - DAYS[0], z=DAYS.tz_localize("UTC")),
    "zones": frame(
        a=DAYS.tz_localize("Europe/Berlin"), b=DAYS.tz_localize(dt.timezone(dt.timedelta(hours=2)))
    ),
    "NaT": frame(t=[pd.Timestamp("2024"), pd.NaT]),
    "categories": frame(
        a=pd.Categorical(["x", None, "y"], categories=["y", "x", "unused"], ordered=True),
        b=pd.Categorical([3, 1, 3]),
        c=pd.Categorical(DAYS),
        d=pd.Categorical([5, "a", None], categories=["a", 5]),
    ),
    "nullable": frame(
        i=pd.array([1, None, 3], dtype="Int64"),
        u=pd.array([1, None, 3], dtype="UInt8"),
        f=pd.array([1.5, None, math.nan], dtype="Float32"),
        b=pd.array([True, None, False], dtype="boolean"),
        s=pd.array(["a", None, ""], dtype="string"),
        p=pd.array(["a", None, ""], dtype=pd.StringDtype("python")),
        q=pd.array(["a", None, ""], dtype=pd.StringDtype("python", na_value=np.nan)),
    ),
    "arrow": frame(
        i=pd.array([1, None], dtype="int64[pyarrow]"),
        l=pd.array([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int8()))),
        d=pd.array([decimal.Decimal("1.1"), None], dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
        t=pd.array([dt.time(1), None], dtype=pd.ArrowDtype(pa.time64("us"))),
        s=pd.array([{"a": 1}, None], dtype=pd.ArrowDtype(pa.struct([("a", pa.int64())]))),
    ),
    "periods": frame(p=pd.period_range("2024-01", periods=2, freq="M")),
    "intervals": frame(i=pd.interval_range(0, 3), f=pd.interval_range(0.5, 3.5, closed="both")),
    "column names": pd.DataFrame([[1, 2, 3, 4]], columns=pd.Index([1, "a", None, (1, 2)])),
    "duplicate names": pd.DataFrame([[1, "x", 2.5]], columns=["a", "a", "b"]),
    "named columns": pd.DataFrame([[1]], columns=pd.Index(["a"], name="metric")),
    "date columns": pd.DataFrame([[1, 2, 3]], columns=DAYS),
    "column levels": pd.DataFrame(
        [[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", None)], names=["x", None])
    ),
    "many columns": pd.DataFrame(np.arange(600).reshape(2, 300)),
    "frequency": frame(a=[1, 2, 3]).set_index(DAYS),
    "business days": frame(a=[1, 2]).set_index(pd.date_range("2024-01-05", periods=2, freq="B")),
    "row levels": frame(v=[1, 2, 3]).set_index(
        pd.MultiIndex.from_arrays([["a", "a", None], DAYS], names=["k", ("d", 1)])
    ),
    "range": pd.DataFrame({"a": [1, 2]}, index=pd.RangeIndex(5, 1, -2, name="r")),
    "float rows": frame(a=[1, 2]).set_index(pd.Index([0.5, math.nan])),
    "category rows": frame(a=[1, 2]).set_index(pd.CategoricalIndex(["x", "y"], name="c")),
    "interval rows": frame(a=[1, 2]).set_index(pd.IntervalIndex.from_breaks([0, 1, 2])),
    "attrs": with_attrs(frame(a=[1])),
    "no duplicates": frame(a=[1]).set_flags(allows_duplicate_labels=False),
    "slice": frame(a=range(10), s=list("abcdefghij")).iloc[2:7:2],
    "unsorted blocks": frame(a=[1], b=["x"], c=[2], d=[0.5], e=[3]),
    "series": pd.Series([1.5, None], name=("a", 1), index=["x", "y"]),
    "series of frames": pd.Series([frame(a=[1]), np.arange(2)], dtype=object),
    "series of times": pd.Series(pd.timedelta_range("1h", periods=3)),
    "indexes": [DAYS, pd.timedelta_range("1h", periods=2), pd.Index(["a"], dtype=object),
                pd.Index([1, None], dtype="Int64"), pd.RangeIndex(3), pd.Index([True, False])],
    "scalars": [pd.Timestamp("2024-10-27 00:30", tz="UTC").tz_convert("Europe/Berlin"),
                pd.Timestamp("1500-01-01"),
                pd.Timedelta("1ns"), pd.Timedelta("3D"), pd.Period("2024Q1"), pd.NaT, pd.NA,
                pd.Interval(0, 1, closed="left")],
}  # fmt: skip

TABLE = pa.table({"a": [1, None, 3], "s": ["x", "y", None], "l": [[1], [], None]})
OTHERS: dict[str, Any] = {
    "table": TABLE,
    "sliced table": TABLE.slice(1, 1),
    "table of no rows": TABLE.slice(0, 0),
    "chunks": pa.chunked_array([[1, 2], [], [3]]),
    "no chunks": pa.chunked_array([], type=pa.int8()),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "batch": TABLE.to_batches()[0],
    "struct": pa.array([{"a": 1, "b": "x"}, None]),
    "metadata": TABLE.replace_schema_metadata({"k": "v"}),
    "arrow times": pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("ms", "UTC")),  # noqa: DTZ001
    "polars": pl.DataFrame({"a": [1, None], "s": ["x", None], "l": [[1], None], "f": [1.5, -0.0]}),
    "polars kinds": pl.DataFrame({
        "e": pl.Series(["x", "y"], dtype=pl.Enum(["y", "x"])),
        "c": pl.Series(["x", "y"], dtype=pl.Categorical),
        "t": pl.Series([dt.datetime(2024, 1, 1)] * 2, dtype=pl.Datetime("ms", "Europe/Berlin")),  # noqa: DTZ001
        "d": pl.Series([decimal.Decimal("1.10"), None], dtype=pl.Decimal(10, 2)),
        "s": pl.Series([{"a": 1}, {"a": None}]),
        "r": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2)),
        "n": pl.Series([None, None], dtype=pl.Null),
        "b": pl.Series([b"x", None]),
        "u": pl.Series([dt.timedelta(1), None], dtype=pl.Duration("ms")),
        "h": pl.Series([dt.time(1), None]),
    }),
    "polars series": pl.Series("n", [1, 2, 3]),
    "polars nothing": pl.DataFrame(),
}  # fmt: skip

KINDS = {f"{k}": v for part in (SCALARS, ARRAYS, FRAMES, OTHERS) for k, v in part.items()}


SPARSE = pd.Series([0, 1], dtype=pd.SparseDtype("int64"))
REFUSED: dict[str, tuple[Any, str]] = {
    "enum": (Level.LOW, "Level"),
    "dataclass": ([Point(1)], r"Point.*\[0\]"),
    "namedtuple": (Pair(1, 2), "Pair"),
    "function": (len, "builtin"),
    "generator": ((i for i in ()), "generator"),
    "subclass of str": (type("S", (str,), {})("x"), "S"),
    "deep": (None, "deep"),
    "itself": (None, "itself"),
    "records": (np.zeros(1, [("a", "i4")]).view(np.recarray), "recarray"),
    "masked": (np.ma.array([1], mask=[True]), "MaskedArray"),
    "fields with objects": (np.zeros(1, [("a", object)]), "objects"),
    "sparse": (frame(ok=[1, 2], bad=SPARSE), "'bad'"),
    "element": (flat(ok=[1, 2], bad=[1, Point(1)]), r"Point.*'bad'\[1\]"),
    "attrs": (frame(a=[1]), "attrs"),
    "lambda": (collections.defaultdict(lambda: 1), "function"),
    "extension array": (pa.array([b"x" * 16], pa.uuid()), "UuidArray"),
    "extension column": (pa.table({"u": pa.array([b"x" * 16], pa.uuid())}), "'u'.*extension"),
    "polars object": (pl.Series("o", [object()], dtype=pl.Object), "Object"),
    "lazy": (pl.LazyFrame(), "LazyFrame"),
    "memoryview": (memoryview(b"x"), "memoryview"),
}  # fmt: skip
REFUSED["attrs"][0].attrs["f"] = Point(1)


def deep() -> list[Any]:
    top: list[Any] = []
    for _ in range(100_000):
        top = [top]
    return top


def cycle() -> dict[str, Any]:
    loop: dict[str, Any] = {"a": ([],)}
    loop["a"][0].append(loop)
    return loop


REFUSED["deep"] = (deep(), "deep")
REFUSED["itself"] = (cycle(), "itself")
