"""Hints say in one line what the live namespace knows about a fault, and run nobody's code."""

import linecache
import time
from pathlib import Path
from typing import Any

import pytest

from tests import _inkernel

hints: Any = _inkernel.load("hints")

SET_UP = """
import json, sqlite3
import duckdb, numpy as np, pandas as pd, polars as pl, sqlalchemy as sa
df = pd.DataFrame({"region": ["n", "s"], "amount": [1.5, 2.0], "id": [1, 2]})
other = pd.DataFrame({"id": ["1", "2"], "rate": [0.1, 0.2]})
labelled = df.set_index("region")
pf = pl.DataFrame({"region": ["n"], "amount": [1.0]})
a, b, none, prices = np.zeros((2, 3)), np.zeros((4, 2)), None, {"open": 1, "close": 2}
nested = {"frames": [df]}
conn = sqlite3.connect(":memory:")
conn.execute("create table flights(id int, carrier text)")
duck = duckdb.connect()
duck.execute("create table airports(code text)")
def area(width, height=2, *, unit="m"): return width
class Account:
    def __init__(self, owner, balance=0): self.owner = owner
    def deposit(self, amount): return amount
account = Account("x")
def inner(frame): return frame["amout"]
"""


@pytest.fixture(scope="module")
def space() -> Any:
    made: dict[str, Any] = {"__name__": "__main__"}
    linecache.cache["<set up>"] = (0, None, SET_UP.splitlines(keepends=True), "<set up>")
    exec(compile(SET_UP, "<set up>", "exec"), made)
    yield made
    made["conn"].close()
    made["duck"].close()


def hint(source: str, space: dict[str, Any]) -> str:
    """What is said of the fault of a cell with this source."""
    file = f"<hint {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source, file, "exec"), space)
    except Exception as error:  # noqa: BLE001 - whatever a cell raises
        return str(hints.of(error, space))
    raise AssertionError(f"no fault: {source}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("df['amout']", "(nearest columns of df: amount)"),
        ("x = [\n  df['Region '],\n]", "(nearest columns of df: region)"),
        ("df['zzz']", "(columns of df: region, amount, id)"),
        ("df[['region', 'amont']]", "(nearest columns of df: amount)"),
        ("df.groupby('regon').sum()", "(nearest columns of df: region)"),
        ("df.sort_values('amuont')", "(nearest columns of df: amount)"),
        ("df.merge(other, on='rat')", "(nearest columns of other: rate; columns of df: "),
        ("df.merge(other, on='id')", "(id is: other str, df i64; convert one with astype)"),
        ("labelled.loc['nn']", "nearest keys of rows of labelled: n)"),
        ("inner(df)", "(nearest columns of frame: amount)"),
        ("nested['frames'][0]['amoun']", "(nearest columns of nested['frames'][0]: amount)"),
        ("prices['opne']", "(nearest keys of prices: open)"),
        ("{'1': 0}[1] if 0 else {**prices, '7': 1}['clse']", ""),
        ("pf['amout']", "(nearest columns of pf: amount)"),
        ("pf.select('amout')", "(nearest columns of pf: amount)"),
        ("amont = acount", "(names that are there: account, conn)"),
        ("plt.plot([1])", "(it is not imported: import matplotlib.pyplot as plt)"),
        ("collections.Counter()", "(it is not imported: import collections)"),
        ("df.amout", "(nearest columns: amount)"),
        ("df.group_by('region')", "(here it is called: groupby)"),
        ("pf.groupby('region')", "(here it is called: group_by)"),
        ("df.sort_vales('id')", "(DataFrame has: sort_values"),
        ("[1].push(2)", ""),
        ("account.deposite(1)", "(Account has: deposit)"),
        ("none.x", "(none is None)"),
        ("none[0]", "(none is None)"),
        ("json.load_s('1')", "(json has: loads, load"),
        ("np.arrange(3)", "(numpy has: arange, "),
        ("area()", "(signature: area(width, height=2, *, unit='m'))"),
        ("area(1, hight=3)", "(signature: area(width, height=2, *, unit='m'))"),
        ("Account()", "(signature: Account(owner, balance=0))"),
        ("account.deposit(1, 2)", "(signature: deposit(amount))"),
        ("pd.read_csv('x', seperator=';')", "(nearest arguments of read_csv: "),
        ("abs = 1; abs(2)", "(abs is a variable here; `del abs` brings the builtin back)"),
        ("a + b", "(shapes: a 2x3, b 4x2)"),
        ("a @ a", "(shapes: a 2x3)"),
        ("df['c'] = [1, 2, 3]", ""),
        ("df.region + df.id", "types: "),
        ("'a' + df.id.sum()", ""),
        ("pd.to_numeric(df.region)", "(texts are among the numbers; pd.to_numeric("),
        ("[1, 2][5]; xs[9]", ""),
        ("xs = [1, 2]\nxs[9]", "(xs has 2 elements)"),
        ("import sklern", "installed and near: sklearn"),
        ("import cv2", "its package is opencv-python"),
        ("import json.decodr", "(modules of json: decoder, encoder)"),
        ("from json import dums", "(json has: dumps"),
        ("conn.execute('select * from flihgts')", "(nearest tables: flights(id, carrier))"),
        ("conn.execute('select carier from flights')", "(nearest columns: flights.carrier)"),
        ("pd.read_sql('select * from flight', conn)", "(nearest tables: flights(id, carrier))"),
        ("duck.execute('select * from airport')", "(nearest tables: airports(code))"),
    ],
)  # fmt: skip
def test_a_fault_is_explained_by_what_is_there(source: str, said: str, space: Any) -> None:
    """Each kind of fault has its line, with the nearest of what the namespace holds."""
    found = hint(source, space)
    assert said in found
    assert len(found) < 400
    assert "\n" not in found


def test_a_missing_file_names_what_is_in_its_folder(
    space: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest files of the folder, else some of them; of a missing folder its parent's."""
    monkeypatch.chdir(tmp_path)
    assert hint("open('sales.csv')", space) == "(the working folder is empty)"
    (tmp_path / "sales_2024.csv").write_text("")
    (tmp_path / "data").mkdir()
    assert hint("open('sales.csv')", space) == "(nearest in the working folder: sales_2024.csv)"
    assert "data" in hint("open('dta/x.csv')", space)


def test_a_hint_runs_no_code_of_the_user(space: Any) -> None:
    """Hostile keys, attributes and exceptions give no hint, and nothing of them is called."""
    source = """
def boom(*_): raise AssertionError("the user's code was run")
class Bad(dict):
    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = __getattr__ = boom
class Odd(KeyError):
    __str__ = __repr__ = boom
    args = property(boom)
bad = Bad()
"""
    exec(source, space)
    for cell in (
        "raise Odd('x', bad)",
        "bad.keyz",
        "dict.__getitem__(bad, 'x')",
        "area(bad, bad, bad)",
    ):
        error: Any = None
        try:
            exec(cell, space)
        except Exception as raised:  # noqa: BLE001 - the same
            error = raised
        if not isinstance(error, AssertionError):
            assert "user's code" not in hints.of(error, space)


def test_a_hint_compares_a_bounded_number_of_names(space: Any) -> None:
    """Of fifty times the names that are compared a hint takes far less than fifty times as long."""

    def seconds(count: int) -> float:
        names = {**space, **{f"value_{n}": n for n in range(count)}}
        before = time.thread_time()
        hint("value_x = valu_17", names)
        return time.thread_time() - before

    assert seconds(50 * hints.NAMES) < 10 * seconds(hints.NAMES)
