"""Functions that go into kernels: they work where neither their module nor their file is."""

from __future__ import annotations

import pickle
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import cave
from cave.kernel import values
from cave.ports import KernelFacts
from cave.skills import load

LOAD = """
import pickle, sys
from cave.inkernel import byvalue
data, buffers, calls = pickle.load(open(sys.argv[1], "rb"))
space = {"__name__": "__main__", "live": 7}
made = byvalue.Unpickler(data, buffers, byvalue.Home(space)).load()
import typing
types = typing.get_type_hints(made).items()
hints = sorted(f"{k}: {v if k == 'line' else v.__name__}" for k, v in types)
print([made(*call) for call in calls], hints, [m for m in sys.modules if "mine" in m])
"""
MODULE = """
from __future__ import annotations
import math
from dataclasses import dataclass
import cave
from {helpers} import helped

RATE = 0.5

@dataclass
class Line:
    n: int
    def twice(self) -> float:
        return scaled(self.n) * FACTOR

FACTOR = 4

def scaled(n):
    return deep(n) + RATE

def deep(n):
    return math.floor(n) * helped(1)

@cave.skill
def total(n: int, line: Line | None, ctx: cave.SkillContext) -> float:
    return Line(n).twice() if line is None else line.twice()
"""
HELPERS = "SECRET = 10\ndef helped(n):\n    return n * SECRET\n"


def elsewhere(function: Any, calls: list[tuple[Any, ...]], folder: Path) -> str:
    """What calls of the function give in a process that knows nothing of its files."""
    facts = KernelFacts(0, platform.python_version(), "", {}, "open", Path(), 0.0)
    parcel = values.pack({"made": function}, peer=facts)
    data, *buffers = (bytes(part) for part in parcel.buffers)
    file = folder / "parcel"
    file.write_bytes(pickle.dumps((data, buffers, calls)))
    away = folder / "away"
    away.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(file)],
        cwd=away,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on this process's import path."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mine_"):
            del sys.modules[name]


def test_a_skill_of_a_file_takes_its_helpers_along(mine: Path) -> None:
    """Constants, functions and classes of its module, and of modules that it imports from."""
    (mine / "mine_a.py").write_text(MODULE.format(helpers="mine_b"))
    (mine / "mine_b.py").write_text(HELPERS)
    [skill] = load("mine_a")
    assert skill(2, None) == 82.0
    told = elsewhere(skill.carried, [(2, None, None)], mine)
    assert told == "[82.0] ['line: mine_a.Line | None', 'n: int'] []"


def test_a_skill_of_a_folder_takes_its_neighbours_along(tmp_path: Path) -> None:
    """A script may import from another script beside it."""
    folder = tmp_path / "sums"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: sums\ndescription: Sums.\n---\nAdd.\n")
    (folder / "scripts" / "mine_c.py").write_text(MODULE.format(helpers="mine_d"))
    (folder / "scripts" / "mine_d.py").write_text(HELPERS)
    [made] = load(folder)
    [skill] = made.functions
    assert skill(2, None) == 82.0
    assert "mine_d" not in sys.modules
    told = elsewhere(skill.carried, [(2, None, None)], tmp_path)
    assert told == "[82.0] ['line: sums.mine_c.Line | None', 'n: int'] []"


MAIN = """
import sys, platform, pickle
from pathlib import Path
import cave
from cave.kernel import values
from cave.kernel import values
from cave.ports import KernelFacts

TAX = 0.25

def rounded(x):
    return round(x * (1 + TAX), DIGITS)

DIGITS = 1

@cave.skill
def gross(x: float) -> float:
    return rounded(x)

@cave.skill
def living(x: int) -> int:
    return x + live

facts = KernelFacts(0, platform.python_version(), "", {}, "open", Path(), 0.0)
parcel = values.pack({"f": globals()[sys.argv[1]].carried}, peer=facts)
data, *buffers = (bytes(part) for part in parcel.buffers)
pickle.dump((data, buffers, [(2,)]), open("parcel", "wb"))
"""


@pytest.mark.parametrize(("name", "result"), [("gross", "[2.5]"), ("living", "[9]")])
def test_a_skill_of_main_takes_its_constants_or_means_the_sessions(
    name: str, result: str, tmp_path: Path
) -> None:
    """What `__main__` has here goes along; a name that it has not is the session's variable."""
    (tmp_path / "main.py").write_text(textwrap.dedent(MAIN))
    subprocess.run([sys.executable, "main.py", name], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, "parcel"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(result), done.stderr


def test_a_module_of_ones_own_is_refused_with_what_to_write(mine: Path) -> None:
    """`import mine_e; mine_e.f()` cannot work in a kernel, and the error says what can."""
    (mine / "mine_e.py").write_text(HELPERS)
    (mine / "mine_f.py").write_text(
        "import cave\nimport mine_e\n@cave.skill\ndef f(n: int):\n    return mine_e.helped(n)\n"
    )
    [skill] = load("mine_f")
    assert skill(1) == 10
    with pytest.raises(cave.SkillError, match="write `from mine_e import"):
        _ = skill.carried


def test_installed_modules_are_imported_there() -> None:
    """What is installed is named and not copied."""

    @cave.skill
    def text(x: int) -> str:
        return textwrap.dedent(str(x))

    assert text.carried.__globals__["textwrap"] is textwrap
    assert "__cave_by_value__" not in vars(textwrap)
