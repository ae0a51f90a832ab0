"""What of a namespace is kept, and the way back into a shell of IPython's."""

import atexit
import collections
import timeit
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests import _inkernel

lost: Any = _inkernel.load("image.lost")
hidden: Any = _inkernel.load("image.hidden")
roots: Any = _inkernel.load("image.roots")


class Plain(InteractiveShell):
    """A shell that stores nothing and leaves `sys` alone."""

    def init_sys_modules(self) -> None:
        self._main_mod_cache: dict[str, Any] = {}

    def init_virtualenv(self) -> None:
        pass

    def run(self, source: str) -> None:
        result = self.run_cell(source, store_history=True, silent=False)
        assert result.success, source


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Plain:
    monkeypatch.setitem(hidden._state, "remembered", False)
    hidden.remember()
    return new()


def new() -> Plain:
    from traitlets.config import Config

    made = Plain(config=Config({"HistoryManager": {"enabled": False}}), user_ns={"__name__": "m"})
    made.tempfiles, made.tempdirs = [], []
    atexit.unregister(made.atexit_operations)
    return made


def variables(shell: Plain) -> set[str]:
    return set(roots.variables(shell))


def test_variables_are_what_the_user_bound(shell: Plain) -> None:
    """Private names and modules are variables, IPython's own names are not."""
    assert variables(shell) == set()
    shell.run("import collections as c; x = 1; _y = 2; __z = 3")
    shell.run("x")
    assert variables(shell) == {"c", "x", "_y", "__z"}
    found = roots.roots(shell)
    assert found["c"] is collections
    assert found["out:2"] == 1
    assert not [name for name in found if name in {"In", "Out", "exit", "quit", "open", "_", "_2"}]


def test_names_of_ipython_that_the_user_took_are_variables(shell: Plain) -> None:
    """`open = f` and `for _ in ...` bind variables; without them IPython's names are back."""
    mine = shell.user_ns["open"]
    shell.run("def open(*a): return 7\nfor _ in range(3): pass")
    assert variables(shell) == {"open", "_"}
    taken = roots.roots(shell)
    other = new()
    roots.bind(other, taken, ())
    assert other.user_ns["open"] is taken["open"]
    assert other.user_ns["_"] == 2
    roots.bind(shell, {}, ())
    assert shell.user_ns["open"] is mine
    assert variables(shell) == set()
    shell.run("41 + 1")
    assert shell.user_ns["_"] == 42


def test_results_come_back(shell: Plain) -> None:
    """Out, _, __, ___ and _N are as before, and the next result goes on from them."""
    shell.run("[1]")
    shell.run("[2]")
    shell.run("[3]")
    taken = roots.roots(shell)
    other = new()
    other.execution_count = 4
    roots.bind(other, taken, ())
    assert [other.user_ns[name] for name in ("_", "__", "___")] == [[3], [2], [1]]
    assert other.user_ns["_2"] is other.user_ns["Out"][2] is taken["out:2"]
    assert set(roots.roots(other)) == set(taken)
    other.run("[4]")
    assert [other.user_ns[name] for name in ("_", "__", "___")] == [[4], [3], [2]]
    assert variables(other) == set()


def test_sources_come_back(shell: Plain) -> None:
    """In, _i, _ii and _iN are as before, at the same numbers, and stay bounded."""
    for number in range(1, 150):
        shell.run(f"x = {number}")
    taken = roots.roots(shell)
    assert len(taken["hidden:history"][1]) == 100
    other = new()
    other.execution_count = 150
    roots.bind(other, taken, ())
    assert other.user_ns["In"][149] == "x = 149"
    assert other.user_ns["_i149"] == "x = 149"
    assert other.user_ns["In"][3] == ""
    other.run("y = 1")
    assert other.user_ns["In"][150] == "y = 1"
    assert other.user_ns["_i"] == "x = 149"
    assert other.user_ns["_ii"] == "x = 148"


def test_step_back_removes_and_keeps(shell: Plain) -> None:
    """Names that are neither loaded nor kept go; kept ones are the same objects."""
    shell.run("a = [1]; b = [2]; c = [3]")
    shell.run("a")
    shell.run("b")
    kept = shell.user_ns["a"]
    roots.bind(shell, {"b": [5], "hidden:unders": (2, "", "")}, ("a", "out:2"))
    assert shell.user_ns["a"] is kept
    assert shell.user_ns["b"] == [5]
    assert "c" not in shell.user_ns
    assert list(shell.user_ns["Out"]) == [2]
    assert shell.user_ns["_"] is kept
    assert "_3" not in shell.user_ns


def test_results_outside_of_out_come_back(shell: Plain) -> None:
    """What only `_` holds is a root of its own."""
    shell.run("[1]")
    shell.user_ns["Out"].clear()
    taken = roots.roots(shell)
    assert taken["out:_"] == [1]
    other = new()
    roots.bind(other, taken, ())
    assert other.user_ns["_"] == [1]
    roots.bind(other, {}, set(roots.roots(other)))
    assert other.user_ns["_"] == [1]


def test_long_texts_are_variables_and_stay_hidden(shell: Plain) -> None:
    """`_output_N` is kept, and bound as the kernel binds it."""
    for space in (shell.user_ns, shell.user_ns_hidden):
        space["_output_3"] = "text"
    assert variables(shell) == {"_output_3"}
    other = new()
    roots.bind(other, roots.roots(shell), ())
    assert other.user_ns_hidden["_output_3"] == "text"
    roots.bind(other, {}, ())
    assert "_output_3" not in other.user_ns


def test_damaged_roots_cost_only_themselves(shell: Plain) -> None:
    """Placeholders for history, results and hidden state are borne."""
    names = ("hidden:history", "hidden:unders", "hidden:random", "hidden:cwd", "x", "out:1")
    roots.bind(shell, {name: lost.Lost(name, "t", "damaged") for name in names}, ())
    shell.run("1 + 1")
    assert "damaged" in repr(shell.user_ns["x"])


def test_finding_roots_is_fast(shell: Plain) -> None:
    """It is done after every cell: a few times what one plain pass over the names takes."""
    shell.user_ns.update({f"name{number}": object() for number in range(1000)})
    roots.roots(shell)
    ours = shell.user_ns_hidden

    def seconds(call: Callable[[], object]) -> float:
        return min(timeit.repeat(call, number=10, repeat=10))

    plain = seconds(lambda: {name for name in shell.user_ns if name not in ours})
    assert seconds(lambda: roots.variables(shell)) < 40 * plain
