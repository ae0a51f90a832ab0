"""What a cell's code can reach, and that finding out costs the code nothing."""

import asyncio
import threading
import time
import types
from typing import Any

import pytest

from tests import _inkernel
from tests.inkernel.image._space import Space, assumed

touch: Any = _inkernel.load("image.touch")
threads: Any = _inkernel.load("threads")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = y", {"x", "y"}),
        ("del x", {"x"}),
        ("x.append(y[z])", {"x", "y", "z"}),
        ("def f(a, b=c):\n    global d\n    d = e", {"f", "c", "d", "e"}),
        ("[i for i in data if g(i)]", {"data", "g"}),
        ("class A(B):\n    x = y\n    def m(self): return z", {"A", "B", "y", "z"}),
        ("f = lambda: (lambda: q)", {"f", "q"}),
        ("import numpy as np; from os import path as p", {"np", "p"}),
        ("await thing(x)", {"thing", "x"}),
        ("for i in r: t += i", {"i", "r", "t"}),
        ("df.eval('a + b'); model.eval()", {"df", "model"}),
    ],
)
def test_names_in_code(source: str, found: set[str]) -> None:
    """Globals that are read, bound and deleted, at any depth; no attributes, no locals."""
    names = touch.of_source(source)
    assert found <= names
    assert touch.OPAQUE.isdisjoint(names)
    assert {name for name in names - found if name[:2] != "__"} <= {"x", "m"}


@pytest.mark.parametrize(
    "source",
    [
        "exec('x = 1')", "eval(s)", "globals()['x'] = 1", "vars()", "get_ipython()",
        "setattr(a, 'b', 1)", "import __main__", "from __main__ import x", "%time x", "!ls",
        "f.__globals__['x'] = 1", "import sys; sys._getframe(1).f_globals",
        "def f():\n    return locals()", "import gc; gc.get_objects()",
    ],
)  # fmt: skip
def test_code_that_may_reach_anything(source: str) -> None:
    """What reaches names without naming them, and what is no plain Python."""
    assert not touch.OPAQUE.isdisjoint(touch.of_source(source))


def test_many_names_use_extended_arguments() -> None:
    """The 300th name of a cell is found like the first."""
    names = {f"n{at}" for at in range(700)}
    assert names <= touch.of_source("\n".join(f"{name} = 1" for name in names))


@pytest.mark.parametrize(
    ("make", "cell"),
    [
        ("def f(): v.append(1)", "f()"),
        ("def f(): g()\ndef g(): v.append(1)", "f()"),
        ("class A:\n    def m(self): v.append(1)\na = A()", "a.m()"),
        ("class A:\n    def m(self): v.append(1)\nclass B(A): pass\nb = B()", "b.m()"),
        ("class A:\n    @property\n    def p(self): return v.append(1)\na = A()", "a.p"),
        ("class A:\n    @staticmethod\n    def s(): v.append(1)\na = A()", "a.s()"),
        ("def f(): v.append(1)\nl = [f]", "l[0]()"),
        ("def f(): v.append(1)\nimport functools\np = functools.partial(f)", "p()"),
        ("class A:\n    def __call__(self): v.append(1)\nd = {'k': A()}; del A", "d['k']()"),
        ("def outer():\n    def inner(): v.append(1)\n    return inner\nh = outer()", "h()"),
        ("def make(x):\n    def add(): x.append(1)\n    return add\nadd = make(v)", "add()"),
        (
            "def m():\n    def i(): v.append(1)\n    def o(): i()\n    return o\nh = m()",
            "h()",
        ),
        ("class A:\n    go = staticmethod(lambda: v.append(1))\na = [A]", "a[0].go()"),
        ("import functools\n@functools.lru_cache\ndef f(): v.append(1)", "f()"),
        ("class A:\n    def m(self): v.append(1)\nm = A().m", "m()"),
        ("w = v", "w.append(1)"),
        ("d = {'deep': [v]}", "d['deep'][0].append(1)"),
        ("", "exec('v.append(1)')"),
        ("", "globals()['v'].append(1)"),
    ],
)
def test_what_a_cell_changes_is_never_assumed(make: str, cell: str) -> None:
    """However a cell gets at a variable, the next image looks at it."""
    space = Space()
    space.run("v = [0]; other = [1]")
    space.run(make)
    space.take()
    space.run(cell)
    taken = space.take()
    assert "v" not in assumed(taken)
    assert Space.of(space)["v"] == [0, 1]


def test_what_runs_beside_cells_touches_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live thread, a pending task, a hook: from before their end until the next image."""
    shell = types.SimpleNamespace()
    threads.remember_ours()
    touched = touch.Touch()
    assert touched.take(shell) is None  # the first time there is nothing to compare with
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert touched.cell(shell) == set()
    finally:
        go.set()
        thread.join()
    assert touched.take(shell) is None
    assert touched.take(shell) == set()

    async def tasks() -> None:
        shell.kernel = types.SimpleNamespace(
            io_loop=types.SimpleNamespace(asyncio_loop=asyncio.get_running_loop())
        )
        touched.beside(shell)
        del shell.kernel

    asyncio.run(tasks())
    assert touched.take(shell) is None
    shell.events = types.SimpleNamespace(callbacks={"post_execute": [lambda: None]})
    assert touched.take(shell) is None


def test_names_add_up_until_an_image() -> None:
    """Cells, puts and deletions count until they are taken, and again when no image came of it."""
    threads.remember_ours()
    shell, touched = types.SimpleNamespace(), touch.Touch()
    touched.take(shell)
    touched.ran(compile("x = 1", "<cell>", "exec"))
    assert touched.cell(shell) == {"x"}
    touched.add(["put"])
    taken = touched.take(shell)
    assert taken == {"x", "put"}
    touched.again(taken)
    assert touched.take(shell) == {"x", "put"}
    assert touched.take(shell) == set()


def test_loops_of_cells_run_at_full_speed() -> None:
    """A loop at the top of a cell takes what plain exec takes; a watched dict takes five times."""
    source = "for i in range(50_000):\n    x = i * 2\n    y = x + i"
    space, plain = Space(), {"__name__": "plain"}
    space.take()
    ratios = []
    for _ in range(7):
        start = time.perf_counter()
        exec(compile(source, "<cell>", "exec"), plain)
        middle = time.perf_counter()
        space.run(source)
        ratios.append((time.perf_counter() - middle) / (middle - start))
    assert min(ratios) < 2
