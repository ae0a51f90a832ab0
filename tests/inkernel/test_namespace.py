"""The namespace's delta: what a cell made, changed and removed, and nothing else."""

import time
import types
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import _inkernel

namespace: Any = _inkernel.load("namespace")


class Cells:
    """Runs cells in a namespace, as a shell does."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {"__name__": "__main__", "In": [], "Out": {}, "exit": 1}
        shell = types.SimpleNamespace(user_ns=self.space, user_ns_hidden={"hidden": 1})
        self.names = namespace.Namespace(shell)
        self.count = 0

    def run(self, source: str) -> dict[str, Any]:
        self.count += 1
        exec(source, self.space)
        delta: dict[str, Any] = self.names.delta(self.count, source)
        return {k: [v if isinstance(v, str) else v["name"] for v in delta[k]] for k in delta}


@pytest.fixture
def cells() -> Cells:
    return Cells()


def changes(
    added: list[str] | None = None,
    changed: list[str] | None = None,
    removed: list[str] | None = None,
) -> dict[str, list[str]]:
    return {"added": added or [], "changed": changed or [], "removed": removed or []}


def test_names_that_come_and_go(cells: Cells) -> None:
    """A new name is added, another object is a change, a deleted name is removed."""
    assert cells.run("x = 1; y = 2") == changes(added=["x", "y"])
    assert cells.run("x = 2") == changes(changed=["x"])
    assert cells.run("print") == changes()
    assert cells.run("del y") == changes(removed=["y"])
    assert cells.run("z = 1\ndel z") == changes()


def test_only_variables_of_the_user(cells: Cells) -> None:
    """Not IPython's own names, private names, nor modules; functions and classes are."""
    source = "import math\n_a = 1\nIn = 2\nhidden = 1\ndef f(): pass\nclass A: pass"
    assert cells.run(source) == changes(added=["f", "A"])
    assert cells.run("hidden = 2") == changes(added=["hidden"])


def test_a_variable_that_becomes_a_module_is_gone(cells: Cells) -> None:
    """What is no variable any more is reported as removed."""
    cells.run("x = 1")
    assert cells.run("import math as x") == changes(removed=["x"])


@pytest.mark.parametrize(
    ("make", "change"),
    [
        ("v = [1, 2]", "v.append(3)"),
        ("v = [1, 2]", "v[0] = 5"),
        ("v = {'a': 1}", "v['a'] = 2"),
        ("v = {'a': [1]}", "v['a'].append(2)"),
        ("v = {1}", "v.add(2)"),
        ("v = bytearray(b'ab')", "v[0] = 0"),
        ("import numpy as np; v = np.arange(5)", "v[2] = 9"),
        ("import numpy as np; v = np.arange(12).reshape(3, 4).T", "v[2, 1] = 9"),
        ("import numpy as np; v = np.array([1, None], dtype=object)", "v[0] = 'x'"),
        ("import pandas as pd; v = pd.DataFrame({'a': [1, 2]})", "v['b'] = 3"),
        ("import pandas as pd; v = pd.DataFrame({'a': [1, 2]})", "v.loc[0, 'a'] = 3"),
        ("import pandas as pd; v = pd.DataFrame({'a': ['x']})", "v.loc[0, 'a'] = 'y'"),
        ("import pandas as pd; v = pd.DataFrame({'a': [1]})", "v.columns = ['z']"),
        ("import pandas as pd; v = pd.Series([1, 2])", "v[0] = 5"),
        ("class A: pass\nv = A()", "v.x = 1"),
        ("class A: pass\nv = A(); v.l = []", "v.l.append(1)"),
        ("v = [1]\ndef add(): v.append(2)", "add()"),
        ("v = [1]\ndef inner(): v.append(2)\ndef outer(): inner()", "outer()"),
        ("v = [1]\nclass A:\n    def go(self): v.append(2)\na = A()", "a.go()"),
        ("v = [1]", "globals()['v'].append(2)"),
        ("v = [1]", "exec('v.append(2)')"),
    ],
)
def test_changes_in_place_are_seen(cells: Cells, make: str, change: str) -> None:
    """An object that a cell changed in place is a change of its name, once."""
    cells.run(make)
    assert "v" in cells.run(change)["changed"]
    assert cells.run("v") == changes()


def test_another_name_of_the_same_object_changes_too(cells: Cells) -> None:
    """Where one holder of an object saw a change, the others are looked at."""
    cells.run("a = [1]; b = a; c = {'deep': a}; d = [1]")
    assert sorted(cells.run("b.append(2)")["changed"]) == ["a", "b", "c"]


def test_reading_is_no_change(cells: Cells) -> None:
    """Using an object without changing it says nothing."""
    cells.run("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 's': ['x', 'y']})\nl = [1]")
    assert cells.run("df.head(); df['a'].sum(); df.groupby('s').sum(); len(l)") == changes()
    assert cells.run("x = df.describe()") == changes(added=["x"])


def test_a_variable_knows_its_cell(cells: Cells) -> None:
    """The cell that set or changed it last; None for what was put."""
    cells.run("a = 1; b = [1]")
    cells.run("b.append(2)")
    cells.space["p"] = 5
    (put,) = cells.names.note_put(["p"])
    assert put["cell"] is None
    assert cells.run("1") == changes()
    assert {v["name"]: v["cell"] for v in cells.names.variables()} == {"a": 1, "b": 2, "p": None}
    del cells.space["p"]
    cells.names.note_deleted(["p"])
    assert cells.run("1") == changes()


def test_broken_source_and_magics(cells: Cells) -> None:
    """Source that is not plain Python may have changed anything."""
    cells.run("l = [1]")
    cells.space["l"].append(2)
    delta = cells.names.delta(2, "%time l.append(2)")
    assert [v["name"] for v in delta["changed"]] == ["l"]


def test_large_objects_are_not_kept_alive(cells: Cells) -> None:
    """A frame that a cell replaces is free at once, not at the cell's end."""
    cells.run("import numpy as np, weakref\na = np.arange(10.0)\nr = weakref.ref(a)")
    cells.run("a = None\nfreed = r() is None")
    assert cells.space["freed"]


def test_hostile_objects_do_not_matter(cells: Cells) -> None:
    """Objects whose comparison or hash raises are told apart by identity."""
    source = """
class Bad:
    def __eq__(self, other): raise RuntimeError
    __hash__ = __repr__ = __len__ = __eq__
    def __getattribute__(self, name): raise RuntimeError
bad = Bad(); l = [bad]; d = {'k': bad}
"""
    assert cells.run(source) == changes(added=["Bad", "bad", "l", "d"])
    assert cells.run("bad; l.append(bad)") == changes(changed=["l"])


def test_the_cost_of_a_delta(cells: Cells) -> None:
    """1,000 variables that a cell does not reach take a third of those it reaches, at most."""
    names = [f"v{at}" for at in range(1000)]
    cells.space.update({name: list(range(100)) for name in names})
    cells.run("x = 0")

    def seconds(reached: list[str]) -> float:
        best = 9.9
        for at in range(10):
            cells.space["x"] = at + 1000
            start = time.thread_time()
            delta = cells.names.delta(at, reached)
            best = min(best, time.thread_time() - start)
            assert len(delta["changed"]) == 1
        return best

    assert 3 * seconds(["x"]) < seconds(["x", *names])


def test_a_delta_of_many_frames_keeps_its_time(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time a delta names what changed without looking into it."""
    now = iter(range(1000))
    clock = types.SimpleNamespace(perf_counter=lambda: next(now), thread_time=time.thread_time)
    monkeypatch.setattr(namespace, "time", clock)
    monkeypatch.setattr(namespace, "_SECONDS", 20)  # looks at the clock
    frame = pd.DataFrame(np.zeros((10, 4)))
    cells.space.update({f"df{at}": frame.copy() for at in range(200)})
    added = cells.names.delta(1, "make()")["added"]
    assert len(added) == 200
    assert all(v["type"] == "DataFrame" for v in added)
    assert 5 < len([v for v in added if v["shape"]]) <= 20


@pytest.mark.parametrize(
    ("make", "then", "said"),
    [
        ("v = pd.DataFrame({'a': [1, 2]})", "v['b'] = 1.5", "+ b f64"),
        ("v = pd.DataFrame({'a': [1, 2]})", "v = v[v.a > 1]", "rows 2 -> 1"),
        ("v = pd.DataFrame({'a': [1], 'b': [2]})", "v = v.drop(columns='b')", "- b"),
        ("v = pd.DataFrame({'a': [1]})", "v = v.rename(columns={'a': 'z'})", "renamed a -> z"),
        ("v = pd.DataFrame({'a': [1]})", "v = v.astype('float32')", "dtype a i64 -> f32"),
        ("v = pd.DataFrame({'a': [1, None]})", "v = v.fillna(0)", "missing a 1 -> 0"),
        ("v = pd.DataFrame({'a': [1, 2], 'b': [1, 2]})", "v.loc[0, 'a'] = 9", "values of a"),
        ("v = pl.DataFrame({'a': [1]})", "v = v.with_columns(b=pl.lit(1))", "+ b i32"),
        ("v = [1]", "v.append(2)", "len 1 -> 2"),
        ("v = {'a': 1, 'c': 1}", "v['b'] = 1; del v['c']", "+ 'b'; - 'c'"),
        ("v = 1", "v = 2", "was 1"),
        ("v = 1", "v = [1]", "was 1"),
        ("w = [1]; v = 5", "v = w", "is w; was 5"),
        ("w = np.arange(9); v = None", "v = w[2:].reshape(7, 1)", "view of w; was None"),
        ("v = np.zeros(3)", "v = np.zeros((2, 2))", "was 3 float64"),
    ],
)
def test_a_change_is_told(cells: Cells, make: str, then: str, said: str) -> None:
    """What differs of a frame, a container, a value; whose object or memory it is now."""
    cells.run("import numpy as np, pandas as pd, polars as pl")
    cells.run(make)
    exec(then, cells.space)
    (row,) = cells.names.delta(9, then)["changed"]
    assert row["change"] == said


def test_what_one_change_cannot_reach_is_not_looked_at(cells: Cells) -> None:
    """Lists of plain values apart from a changed object keep their prints; aliases do not."""
    cells.space.update({f"v{n}": [n] for n in range(5)})
    cells.run("deep = [v1]")
    assert sorted(cells.run("deep[0].append(1)")["changed"]) == ["deep", "v1"]
