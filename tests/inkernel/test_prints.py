"""Prints: the same for the same content in any process, another for another content."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import _inkernel
from tests.kernel._host import Host

prints: Any = _inkernel.load("prints")

_BEFORE = """
import array, collections, dataclasses, datetime, decimal, enum, fractions, functools, io, math
import pathlib, random, re, types, uuid, zoneinfo
import numpy as np, pandas as pd, pyarrow as pa, polars as pl, scipy.sparse
from sklearn.linear_model import LinearRegression
def rng(seed=0): return np.random.default_rng(seed)
class Plain:
    def __init__(self, x): self.x = x; self.parts = [x, {"y": np.arange(3) + len(str(x))}]
class Slots:
    __slots__ = ("x", "y")
    def __init__(self, x): self.x = x
@dataclasses.dataclass
class Data:
    x: object
    y: list = dataclasses.field(default_factory=list)
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Child(Plain, dict): pass
Pair = collections.namedtuple("Pair", "a b")
def cyclic(x):
    made = [x]
    made.append(made)
    return made
def maker(x):
    def inner(y=x): return x + y
    return inner
def frame(x, n=20_000):
    made = pd.DataFrame({"a": np.arange(n) + x, "b": rng(x).normal(size=n)})
    made["c"] = [f"text {i % 97} {x}" for i in range(n)]
    made["d"] = made["c"].astype("category")
    made["e"] = pd.date_range("2020", periods=n, freq="min", tz="UTC")
    return made
"""

KINDS = {
    "none": ("None", "0"),
    "bool": ("True", "False"),
    "int": ("12345", "12346"),
    "big int": ("10 ** 500", "10 ** 500 + 1"),
    "float": ("0.1 + 0.2", "0.3"),
    "zero": ("0.0", "-0.0"),
    "nan": ("float('nan')", "float('inf')"),
    "complex": ("1 + 2j", "1 + 3j"),
    "str": ("'text é \\ud800'", "'text e'"),
    "long str": ("'ab' * 1_000_000", "'ab' * 999_999 + 'ba'"),
    "bytes": ("b'ab' * 10", "b'ab' * 11"),
    "bytearray": ("bytearray(5)", "bytearray(6)"),
    "list": ("[1, 'a', None]", "[1, 'a', 0]"),
    "types in a list": ("[1, 2]", "[1, 2.0]"),
    "tuple": ("(1, 2)", "[1, 2]"),
    "long list": ("list(range(100_000))", "list(range(1, 100_001))"),
    "rows": ("[[i, str(i)] for i in range(1000)]", "[[i, str(-i)] for i in range(1000)]"),
    "records": ("[{'a': i, 'b': 'x'} for i in range(1000)]", "[{'a': i} for i in range(1000)]"),
    "nested": ("{'a': [1, {'b': (2, 3)}]}", "{'a': [1, {'b': (2, 4)}]}"),
    "set": ("{'a', 'b', 'c', 1, (2, 'x')}", "{'a', 'b', 'd', 1, (2, 'x')}"),
    "frozenset": ("frozenset(map(str, range(1000)))", "frozenset(map(str, range(1001)))"),
    "range": ("range(10)", "range(11)"),
    "slice": ("slice(1, 2)", "slice(1, 3)"),
    "counter": ("collections.Counter('aab')", "collections.Counter('abb')"),
    "defaultdict": ("collections.defaultdict(list, a=[1])", "collections.defaultdict(list)"),
    "ordered": ("collections.OrderedDict(a=1, b=2)", "collections.OrderedDict(b=2, a=1)"),
    "deque": ("collections.deque([1, 2], 3)", "collections.deque([1, 2], 4)"),
    "namedtuple": ("Pair(1, 2)", "Pair(1, 3)"),
    "cycle": ("cyclic(1)", "cyclic(2)"),
    "array": ("array.array('i', [1, 2])", "array.array('l', [1, 2])"),
    "date": ("datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 2)"),
    "zone": ("datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Rome'))",
             "datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)"),
    "timedelta": ("datetime.timedelta(1)", "datetime.timedelta(2)"),
    "decimal": ("decimal.Decimal('1.10')", "decimal.Decimal('1.1')"),
    "fraction": ("fractions.Fraction(1, 3)", "fractions.Fraction(1, 4)"),
    "uuid": ("uuid.UUID(int=1)", "uuid.UUID(int=2)"),
    "path": ("pathlib.Path('a/b')", "pathlib.Path('a/c')"),
    "pattern": ("re.compile('a')", "re.compile('a', re.I)"),
    "random": ("random.Random(1)", "random.Random(2)"),
    "text file": ("io.StringIO('a')", "io.StringIO('b')"),
    "namespace": ("types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
    "exception": ("ValueError('a', 1)", "ValueError('a', 2)"),
    "object": ("Plain(1)", "Plain(22)"),
    "slots": ("Slots(1)", "Slots(2)"),
    "dataclass": ("Data({'a': 1}, [2])", "Data({'a': 1}, [3])"),
    "enum": ("Color.RED", "Color.BLUE"),
    "child": ("Child('a')", "Child('bb')"),
    "lambda": ("lambda x: x + 1", "lambda x: x + 2"),
    "closure": ("maker(1)", "maker(2)"),
    "partial": ("functools.partial(maker, 1)", "functools.partial(maker, x=1)"),
    "method": ("Plain(1).__init__", "Plain(2).__init__"),
    "builtin": ("math.sin", "math.cos"),
    "class": ("type('K', (), {'a': 1, '__module__': '__main__'})",
              "type('K', (), {'a': 2, '__module__': '__main__'})"),
    "class of ours": ("Plain", "Slots"),
    "dataclass of ours": ("Data", "Color"),
    "numpy scalar": ("np.float32(1)", "np.float64(1)"),
    "ndarray": ("np.arange(10)", "np.arange(10).astype('i4')"),
    "shape": ("np.zeros((2, 3))", "np.zeros((3, 2))"),
    "large ndarray": ("np.arange(3_000_000) * 1.5", "np.arange(3_000_000) * 1.6"),
    "order": ("np.asfortranarray(np.arange(1e4).reshape(100, 100))", "np.zeros((100, 100))"),
    "strings": ("np.array(['a', 'b'])", "np.array(['a', 'c'])"),
    "objects": ("np.array(['a', None, 1], object)", "np.array(['a', None, 2], object)"),
    "record": ("np.zeros(2, [('a', 'i4'), ('b', 'f8')])", "np.ones(2, [('a', 'i4'), ('b', 'f8')])"),
    "times": ("np.array(['2020-01-01'], 'M8[ns]')", "np.array(['2020-01-01'], 'M8[s]')"),
    "masked array": ("np.ma.array([1, 2], mask=[0, 1])", "np.ma.array([1, 2], mask=[1, 0])"),
    "generator": ("rng(1)", "rng(2)"),
    "frame": ("frame(1)", "frame(2)"),
    "labels": ("pd.DataFrame({'a': [1]})", "pd.DataFrame({'b': [1]})"),
    "wide": ("pd.DataFrame(np.ones((5, 200)))", "pd.DataFrame(np.zeros((5, 200)))"),
    "series": ("frame(1)['c']", "frame(2)['c']"),
    "category": ("frame(1)['d']", "frame(2)['d']"),
    "integers with holes": ("pd.Series([1, None, 3], dtype='Int64')",
                            "pd.Series([1, 2, None], dtype='Int64')"),
    "arrow series": ("pd.Series([1, None], dtype='int64[pyarrow]')",
                     "pd.Series([1, 0], dtype='int64[pyarrow]')"),
    "periods": ("pd.period_range('2020', periods=3, freq='M')",
                "pd.period_range('2020', periods=3, freq='D')"),
    "intervals": ("pd.interval_range(0, 5)", "pd.interval_range(0, 5, closed='left')"),
    "many levels": ("pd.MultiIndex.from_product([[1, 2], ['a']])",
                    "pd.MultiIndex.from_product([[1, 2], ['b']])"),
    "timestamp": ("pd.Timestamp('2020')", "pd.Timestamp('2020', tz='UTC')"),
    "missing": ("pd.NA", "pd.NaT"),
    "grouped": ("frame(1).groupby('d', observed=True)['a'].sum()", "frame(1)['a'].sum()"),
    "table": ("pa.table({'a': [1, 2], 'b': ['x', None]})",
              "pa.table({'a': [1, 2], 'b': [None, 'x']})"),
    "long table": ("pa.table({'b': ['text %d' % i for i in range(50_000)]})",
                   "pa.table({'b': ['text %d' % (i + 1) for i in range(50_000)]})"),
    "polars": ("pl.DataFrame({'a': [1, 2], 'b': ['x', None]})",
               "pl.DataFrame({'a': [1, 3], 'b': ['x', None]})"),
    "sparse": ("scipy.sparse.eye(5, format='csr')", "scipy.sparse.eye(6, format='csr')"),
    "model": ("LinearRegression().fit([[1], [2]], [1, 2])",
              "LinearRegression().fit([[1], [2]], [1, 3])"),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Iterator[tuple[Host, Host]]:
    """Two kernels that know the same classes and functions."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        hosts = []
        for name in ("one", "two"):
            Path(folder, name).mkdir()
            hosts.append(Host(Path(folder, name)))
        try:
            for host in hosts:
                host.start()
                assert host.run(_BEFORE).status == "ok"
            yield hosts[0], hosts[1]
        finally:
            for host in hosts:
                host.close()


def of_cell(host: Host, source: str) -> dict[str, str]:
    """The prints of the names that a cell made."""
    done = host.run(source)
    assert done.status == "ok", done.error
    return done.delta.prints


@pytest.mark.parametrize(("value", "other"), KINDS.values(), ids=KINDS)
def test_the_same_content_has_the_same_print_in_another_kernel(
    kernels: tuple[Host, Host], value: str, other: str
) -> None:
    """Made by the same code in two processes it is the same; what differs is not."""
    one, two = kernels
    source = f"value = {value}\nother = {other}"
    for host in kernels:
        host.run("value = other = ...")
    first, second = of_cell(one, source), of_cell(two, source)
    assert first == second
    assert len(first["value"]) == 20
    assert first["value"] != first["other"]


@pytest.mark.parametrize(
    "value",
    [
        "(i for i in range(3))",
        "iter([1])",
        "open('/dev/null')",
        "__import__('threading').Lock()",
        "__import__('threading').Thread()",
        "__import__('socket').socket()",
        "__import__('sqlite3').connect(':memory:')",
        "[1, (i for i in ())]",
        "__import__('weakref').ref(Plain)",
        "__import__('matplotlib.figure').figure.Figure()",
    ],
)
def test_what_cannot_be_looked_into_has_no_print(kernels: tuple[Host, Host], value: str) -> None:
    """Neither alone nor as a part: no print is better than one that leaves something out."""
    assert "value" not in of_cell(kernels[0], f"value = {value}")


def test_a_change_in_place_changes_the_print(kernels: tuple[Host, Host]) -> None:
    """Mutated containers, arrays and frames are in the delta with a new print."""
    host = kernels[0]
    made = of_cell(host, "l = [1, 2]; d = {'a': [1]}; a = np.arange(5); f = frame(1); p = Plain(1)")
    changed = of_cell(host, "l.append(3); d['a'].append(2); a[2] = 7; f.loc[5, 'b'] = 0.0; p.x = 2")
    assert made.keys() == changed.keys() == set("ldafp")
    for name in "ldap":
        assert made[name] != changed[name], name


def test_a_kernel_that_comes_back_prints_what_it_restored_alike(
    kernels: tuple[Host, Host],
) -> None:
    """What went through a pickle, a copy or another layout has the print that it had."""
    host = kernels[0]
    first = of_cell(host, "a = frame(3)\nx = {'k': [Plain(1), Slots(2), Data(3)], 's': {1, 2}}")
    again = "a = pickle.loads(pickle.dumps(a)).copy()\nx = copy.deepcopy(x)"
    assert of_cell(host, f"import copy, pickle\n{again}") == first


def test_a_print_never_raises_and_runs_no_code_of_the_user() -> None:
    """Objects whose every special method raises are printed by their attributes, or not at all."""

    class Hostile:
        def __init__(self) -> None:
            self.x = 1

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __hash__(self) -> int:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

        def __iter__(self) -> Any:
            raise RuntimeError

    assert prints.of(Hostile()) == prints.of(Hostile()) != ""
    assert prints.of([Hostile(), Hostile()])


def test_prints_take_little_time_whatever_the_size() -> None:
    """A hundred times the data does not take a hundred times the time."""
    small = [np.ones(10_000), list(range(10_000)), "x" * 10_000, pd.DataFrame(np.ones((5_000, 2)))]
    large = [
        np.ones(10_000_000), list(range(1_000_000)), "x" * 10_000_000,
        pd.DataFrame(np.ones((1_000_000, 2))),
    ]  # fmt: skip

    def seconds(values: list[Any]) -> float:
        best = []
        for _ in range(5):
            began = time.thread_time()
            for one in values:
                assert prints.of(one)
            best.append(time.thread_time() - began)
        return min(best)

    assert seconds(large) < 20 * seconds(small) + 0.02
