"""Descriptions tell facts, never run the user's code and never change what they describe."""

import collections
import dataclasses
import enum
import io
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests import _inkernel

describe: Any = _inkernel.load("describe")

FIELDS = {"name", "type", "shape", "size", "summary"}


def told(obj: object) -> str:
    return str(describe.describe("v", obj)["summary"])


class Hostile:
    """Every way in which a look at an object could run its code."""

    def __init__(self) -> None:
        object.__getattribute__(self, "__dict__")["visible"] = 1

    def _fail(self, *_: object) -> Any:
        raise AssertionError("the user's code was run")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = __bool__ = __sizeof__ = _fail
    __getattr__ = __getattribute__ = __contains__ = __getitem__ = __format__ = __dir__ = _fail
    __class__ = property(_fail)  # type: ignore[assignment]


class Meta(type):
    def __repr__(cls) -> str:
        raise AssertionError("the user's code was run")

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError("the user's code was run")


class HostileClass(metaclass=Meta):
    pass


class HostileList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise AssertionError("the user's code was run")

    __iter__ = __len__  # type: ignore[assignment]


class HostileDict(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise AssertionError("the user's code was run")

    items = __iter__ = __len__  # type: ignore[assignment]


class Slow:
    def __repr__(self) -> str:
        time.sleep(60)
        return "slow"


class Slots:
    __slots__ = ("a",)


class Level(enum.Enum):
    LOW = 1


@dataclasses.dataclass
class Order:
    id: int
    lines: list[int]

    def total(self) -> int:
        return sum(self.lines)


def generate() -> Iterator[int]:
    yield 1
    yield 2


KINDS: dict[str, Callable[[], Any]] = {
    "hostile": Hostile,
    "class with a hostile metaclass": lambda: HostileClass,
    "instance of it": HostileClass,
    "hostile list": lambda: HostileList([1]),
    "hostile dict": lambda: HostileDict(a=1),
    "hostile elements": lambda: [Hostile(), {1: Hostile()}],
    "hostile keys": lambda: {(1, 2): Hostile()},
    "hostile default": lambda: _with_default,
    "slow": Slow,
    "slots": Slots,
    "enum": lambda: Level.LOW,
    "dataclass": lambda: Order(1, [2]),
    "generator": generate,
    "iterator": lambda: iter([1, 2]),
    "map": lambda: map(str, [1]),
    "file": io.StringIO,
    "lock": threading.Lock,
    "thread": threading.Thread,
    "connection": lambda: sqlite3.connect(":memory:"),
    "lambda": lambda: lambda x: x,
    "method": lambda: [].append,
    "exception": lambda: ValueError("x"),
    "module": lambda: sys,
    "none": lambda: None,
    "huge int": lambda: 10**10_000,
    "surrogate": lambda: "\udcc3",
    "bytes": lambda: b"\xff",
    "deque": lambda: collections.deque([1]),
    "defaultdict": lambda: collections.defaultdict(list),
    "empty": lambda: [[], {}, (), set()],
    "array": lambda: np.arange(6).reshape(2, 3),
    "array of objects": lambda: np.array([Slow(), None], dtype=object),
    "empty array": lambda: np.empty((0, 3)),
    "array of no dimensions": lambda: np.array(1.5),
    "texts": lambda: np.array(["a"]),
    "structured": lambda: np.zeros(2, [("a", "i4")]),
    "all NaN": lambda: np.full(3, np.nan),
    "NaT": lambda: np.array(["NaT"], dtype="M8[s]"),
    "frame": lambda: pd.DataFrame({"a": [1, 2], "b": ["x", None]}),
    "frame of objects": lambda: pd.DataFrame({"a": pd.Series([Hostile()], dtype=object)}),
    "empty frame": pd.DataFrame,
    "wide frame": lambda: pd.DataFrame(np.zeros((3, 20_000))),
    "many blocks": lambda: pd.concat([pd.Series([1], name=f"c{n}") for n in range(300)], axis=1),
    "frame without rows": lambda: pd.DataFrame({"a": []}),
    "duplicate columns": lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "column levels": lambda: pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", 1)])),
    "nullable": lambda: pd.DataFrame({"i": pd.array([None, 1], dtype="Int64")}),
    "missing only": lambda: pd.DataFrame({"i": pd.array([None], dtype="Int64")}),
    "categories": lambda: pd.Series(["a", "b"], dtype="category"),
    "complex": lambda: pd.DataFrame({"c": [1j]}),
    "arrow columns": lambda: pd.DataFrame({"a": pd.array([1], dtype="int64[pyarrow]")}),
    "series": lambda: pd.Series([1.5, None], index=["x", "y"]),
    "index": lambda: pd.MultiIndex.from_tuples([("a", 1)]),
    "timestamp": lambda: pd.Timestamp("2024", tz="UTC"),
    "group by": lambda: pd.DataFrame({"a": [1]}).groupby("a"),
    "table": lambda: pa.table({"a": [1]}),
    "chunked": lambda: pa.chunked_array([[1]]),
    "polars": lambda: pl.DataFrame({"a": [1], "o": ["x"]}),
    "lazy": lambda: pl.LazyFrame({"a": [1]}),
    "scalar of numpy": lambda: np.float32(1.5),
}


def _with_default(a: Any = HostileClass) -> None:
    """Do nothing."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described(kind: str) -> None:
    """No kind raises, is waited for, runs code of the user, or gives what JSON cannot hold."""
    obj = KINDS[kind]()
    start = time.perf_counter()
    facts = describe.describe("v", obj)
    assert time.perf_counter() - start < 10
    assert set(facts) == FIELDS
    assert "not described" not in facts["summary"]
    assert len(facts["summary"]) <= describe.LIMIT
    facts["summary"].encode()
    assert facts["shape"] is None or all(type(n) is int for n in facts["shape"])
    assert facts["size"] is None or type(facts["size"]) is int
    if kind == "connection":
        obj.close()


def test_iterators_are_not_advanced() -> None:
    """A generator, an iterator and a file stand where they stood."""
    made = (generate(), iter([1, 2]), map(int, "12"), iter({1: 0, 2: 0}))
    for source in made:
        told(source)
        assert list(source) == [1, 2]
    lines = io.StringIO("a\nb")
    told(lines)
    assert lines.tell() == 0


def test_a_frame_is_told_so_that_nobody_needs_to_look() -> None:
    """Columns, dtypes, ranges, missing values and a row."""
    df = pd.DataFrame({
        "region": ["north", "south", None, "west"],
        "amount": [1.5, 9.25, 3.0, None],
        "day": pd.date_range("2024-01-01", periods=4),
        "kind": pd.Categorical(["a", "b", "a", "b"]),
    })  # fmt: skip
    summary = told(df)
    for fact in (
        "4x4",
        "region str 1 missing",
        "amount f64 1.5..9.25 1 missing",
        "2024-01-01..2024-01-04",
        "kind cat[2: a, b]",
        "row 0: 'north', 1.5",
    ):
        assert fact in summary
    assert describe.describe("v", df)["shape"] == [4, 4]


def test_functions_and_classes_are_told_by_their_signature() -> None:
    """Enough to call them."""

    def area(w: int, h: int = 2, *rest: int, unit: str = "m", **more: int) -> int:
        """Area of a rectangle."""
        return w * h

    assert told(area) == "area(w, h=2, *rest, unit='m', **more): Area of a rectangle."
    assert told(Order) == "class Order; fields id, lines; methods total"
    assert told(Order(5, [1, 2])) == "id=5, lines=[2 of int]"
    assert describe.describe("v", Order(1, []))["type"].endswith("Order")


def test_the_cost_does_not_grow_with_the_rows() -> None:
    """A hundred times the rows take no more than twenty times as long."""

    def seconds(obj: object) -> float:
        best = 9.9
        for _ in range(5):
            start = time.perf_counter()
            told(obj)
            best = min(best, time.perf_counter() - start)
        return best

    def objects(rows: int) -> list[object]:
        columns = {f"c{at}": np.arange(float(rows)) for at in range(12)}
        frame = pd.DataFrame(columns | {"s": ["x"] * rows})
        return [frame, frame["c1"], frame["c1"].to_numpy(), list(range(rows))]

    for few, many in zip(objects(10_000), objects(1_000_000), strict=True):
        assert seconds(many) < 20 * seconds(few)


def test_describing_imports_nothing(tmp_path: Path) -> None:
    """The kernel may have neither numpy nor pandas: describing an int loads none of them."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import _inkernel
names = [_inkernel.load(n) for n in ("describe", "namespace", "values")]
print(names[0].describe("x", 5)["summary"], names[2].dump("x", [1], allow_pickle=False)[0])
assert not {{"numpy", "pandas", "pyarrow", "polars"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.stdout == "5 safe\n", done.stderr


class Teller:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def _repr_llm_(self) -> object:
        return self.call()


def _prints() -> object:
    print("not for anybody")
    return "3 legs"


@pytest.mark.timeout(120, method="thread")  # leaves the timer of the process free
def test_what_an_object_tells_of_itself_wins(capsys: pytest.CaptureFixture[str]) -> None:
    """`_repr_llm_` is heard where it gives a text in time; what it prints is thrown away."""
    assert told(Teller(_prints)) == "3 legs"
    assert capsys.readouterr().out == ""
    for bad in (lambda: 1 / 0, lambda: sys.exit(1), lambda: 5, lambda: time.sleep(60)):
        assert told(Teller(bad)).startswith("call=")


@pytest.mark.timeout(120, method="thread")  # leaves the timer of the process free
def test_secrets_are_not_told() -> None:
    """Neither values under names of secrets, nor keys and passwords known by their form."""
    frame = pd.DataFrame({"password": ["hunter2"] * 2, "n": [1, 2]})
    held = {
        "api_key": "abcdef",
        "url": "postgres://me:hunter2@db/x",
        "deep": [{"token": "hunter2"}],
    }
    for obj in (frame, held, [held], frame["password"], Teller(lambda: "sk-" + "x" * 30)):
        text = told(obj)
        assert "hunter2" not in text
        assert "abcdef" not in text
        assert "x" * 20 not in text
    assert describe.describe("db_password", "hunter2")["summary"] == "<hidden>"
    assert told({"tokens": 5}) == "1 keys; 'tokens': 5"


def test_a_connection_is_told_of_and_left_as_it_was(tmp_path: Path) -> None:
    """Tables, columns and counts; no transaction, cursor, factory or callback is touched, and
    a database that is locked is not waited for."""
    path = tmp_path / "flights.db"
    conn = sqlite3.connect(path, timeout=60)
    conn.executescript("create table flights(id int, carrier text)")
    conn.executemany("insert into flights values (?, ?)", [(n, "x") for n in range(1500)])
    conn.commit()
    calls: list[object] = []
    conn.row_factory = lambda *row: calls.append(row)  # type: ignore[assignment]
    cursor = conn.execute("select 1 union select 2")
    before = (conn.in_transaction, conn.total_changes, conn.isolation_level)
    assert told(conn) == "SQLite flights.db; flights ~1,500 rows (id int, carrier text)"
    assert (conn.in_transaction, conn.total_changes, conn.isolation_level) == before
    assert calls == []
    cursor.close()
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("begin exclusive")
        began = time.perf_counter()
        assert "locked" in told(conn)
        assert time.perf_counter() - began < 30
        other.execute("rollback")
    other.close()
    conn.text_factory = calls.append
    assert "not asked" in told(conn)
    conn.text_factory = str
    conn.set_trace_callback(calls.append)
    assert "not asked" in told(conn)
    assert calls == []
    conn.close()
    assert told(conn) == "SQLite connection, closed"


def test_nested_data_is_told_by_its_keys() -> None:
    """A sketch of the records: keys, types, what is optional."""
    rows = [{"id": 1, "tags": ["a"], "geo": {"lat": 1.5}}, {"id": 2, "tags": []}]
    assert told(rows) == "2 of {id int, tags [str], geo? {lat float}}; first: 'id': 1"
    assert told({"items": rows}) == "1 keys; 'items': [2 of {id int, tags [str], geo? {lat float}}]"


def test_the_text_does_not_grow_with_the_rows() -> None:
    """Ten rows and a million cost the same within a few characters."""

    def length(rows: int) -> int:
        index = pd.date_range("2024-01-01", periods=rows, freq="s", tz="UTC")
        frame = pd.DataFrame({"a": np.arange(float(rows)), "s": ["x"] * rows}, index=index)
        return max(len(told(obj)) for obj in (frame, pl.from_pandas(frame)))

    assert abs(length(1_000_000) - length(10)) < 80
