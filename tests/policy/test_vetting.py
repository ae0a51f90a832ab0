"""Vetting: what cells may not say, and what they are told to write instead."""

from __future__ import annotations

import pytest

import cave
from cave.policy.vetting import refusal, vet

DATA_WORK = {
    "frames": "import pandas as pd\ndf = pd.read_csv('a.csv')\ndf['c'] *= 2\n"
    "df.loc[df.a > 1, 'b'] += 1\ntop = df.groupby('k')['v'].sum().nlargest(3)\ntop",
    "query": "df.query('a > @least and `my col` == 3')\ndf.eval('d = a + b')",
    "annotations": "x: int = 1\ndef f(a: list[int], /, *b: float, **c) -> int | None:\n"
    "    return 1",
    "match": "match x:\n    case {'a': [1, *rest]} | [_, rest]: pass\n"
    "    case Point(x=0) as p: pass",
    "async": "async def f():\n    async with g() as h:\n        async for i in h:\n"
    "            await i\nawait f()",
    "classes": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
    "    def __repr__(self):\n        return f'{self.x!r:>4}'\n"
    "    def __eq__(self, o): return True",
    "names": "for _, row in df.iterrows(): pass\n_output_7[:10]\n_ = 1\n_tmp, *rest = [1, 2]",
    "numpy": "import numpy as np, numpy.linalg\nnp.linalg.norm(np.random.default_rng(1).random(3))",
    "errors": "try:\n    raise ValueError(1) from None\nexcept (KeyError, ValueError) as e:\n"
    "    print(e)\nelse:\n    assert True\nfinally:\n    pass",
    "scopes": "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n"
    "    return g\nglobal y\nwhile (y := 3) < 3: break",
    "charts": "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2])\n"
    "fig.savefig('a.png')",
    "functions": "sorted({**a, 'k': 1}, key=lambda r, *s, **t: r.v)[::-1]\ngetattr(df, 'shape')\n"
    "[i async for i in x] if z else (i for i in y if not i)",
    "loops": "import cave\nfor x in cave.each(items, key=str):\n    total += x",
    "no Python": "x = = 1",
}
"""Cells that pass, those that RestrictedPython itself cannot take among them."""

REFUSED = {
    "import os": "'os' is not allowed; use pandas",
    "from os import path": "'os'",
    "from pandas.io.common import os": "'os' as an attribute",
    "from numpy import *": "name what you need",
    "from . import x": "relative",
    "pd.io.common.os.system('x')": "'os' as an attribute",
    "typing.sys.modules": "x['sys'] if it is a column",
    "eval('1')": "write the expression itself",
    "f = eval": "write the expression itself",
    "open('x')": "pandas.read_csv",
    "x.__class__": "internal",
    "x._data": "use a public one",
    "(i for i in x).gi_frame": "frames",
    "'{0.__class__}'.format(x)": "'__class__'",
    "pd.read_pickle('x')": "parquet",
    "df.apply('to_pickle', path='x')": "parquet",
    "getattr(x, n)": "use a dict",
    "getattr(x, '__dict__')": "internal",
    "df.query(text)": "columns",
    "df.query('@pd.io.common.os.getcwd()')": "'os' as an attribute",
    "df.eval('__import__(\"os\")')": None,
    "!ls": "write it in Python",
    "x = 1\n%time x": "line 2: a shell command or a magic",
    "get_ipython().system('ls')": "write it in Python",
    "class A(metaclass=M): pass": "plain class",
    "class A:\n    def __getattribute__(self, n): pass": "line 2",
    "import json as __builtins__": None,
    "def f(__x__): pass": None,
    "match x:\n    case A(__class__=y): pass": "internal",
    "(" * 300 + ")" * 300: None,
}
"""Cells that do not, with what the answer says."""


@pytest.mark.parametrize("cell", DATA_WORK.values(), ids=DATA_WORK)
def test_data_work_passes(cell: str) -> None:
    """Also what RestrictedPython's own rules have no way to allow."""
    if cell == DATA_WORK["no Python"]:
        assert vet(cell) == ()  # the kernel says what is wrong with it
    assert refusal(cell) in {"", refusal("x = = 1")}


@pytest.mark.parametrize("cell", [c for c in REFUSED if not c.startswith("((")])
def test_what_is_refused_says_what_to_write(cell: str) -> None:
    """By line, with the name, and with another way."""
    told = refusal(cell)
    assert told
    assert (REFUSED[cell] or "line 1") in told
    assert "; " in told


def test_a_policy_says_what_may_be_imported() -> None:
    """A module of the list is allowed with all below it, and nothing else is."""
    assert not refusal("import os.path", ["os"])
    assert "use numpy, or a skill" in refusal("import pandas", ["numpy"])
    assert "use what is there already" in refusal("import pandas", [])
    many = refusal("\n".join(f"import m{n}" for n in range(9)))
    assert many.endswith("; and 4 more")


def test_a_vetted_session_refuses_cells_before_they_run(sessions: None) -> None:
    """The cell is denied with the reason, nothing of it runs, and the next one may."""
    s = cave.open("vetted", policy=cave.Policy(allow_modules=["math"]))
    assert s.kernel.profile == "vetted"
    denied = s.run("done = 1\nimport os")
    assert denied.status == "denied"
    assert denied.error is not None
    assert "line 2: the module 'os' is not allowed; use math" in denied.error.message
    assert "done" not in s
    assert s.run("import math\ndone = math.sqrt(4)").ok
    assert s["done"] == 2.0
