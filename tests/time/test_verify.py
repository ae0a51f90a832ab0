"""What no cell was seen to reach is only assumed, until it has been looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import cave
from cave import tending
from cave.events import SnapshotCommitted

from ._kill import kill

# cells that no snapshot has are lost where nothing confines them; confined ones run again
pytestmark = pytest.mark.usefixtures("sessions", "unconfined")

GRAPH = (
    "class Node:\n    def __init__(self, n):\n        self.n = n\n        self.next = None\n"
    "head = at = Node(0)\n"
    "for i in range(12_000):\n    at.next = Node(i)\n    at = at.next\n"
    "del at, i\nother = 1\nimport csv, functools"
)
HOLD = "csv.__dict__['poke'] = functools.partial(setattr, head, 'n')"
"""A library holds a function that changes a variable: no name in a cell's code says so."""


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def missed(s: cave.Session) -> set[str]:
    commits = [e for e in s.events() if isinstance(e, SnapshotCommitted)]
    return {name for event in commits for name in event.missed}


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> cave.Session:
    monkeypatch.setattr(tending, "QUIET", 3600.0)
    s = cave.open("graph")
    s.run(GRAPH).raise_for_error()
    s.run(HOLD).raise_for_error()
    s.run("other = 2")
    assert s.vars["head"].fidelity == "assumed"
    s.run("csv.poke(77)").raise_for_error()
    return s


def test_what_was_assumed_is_named_when_it_comes_back_unseen(graph: cave.Session) -> None:
    """A change that the analysis cannot see, and a death before anybody looked: the variable is
    named as assumed, never as restored."""
    assert graph.vars["head"].fidelity == "assumed"
    kill(graph)
    assert graph.run("print(other)").text.strip() == "2"
    report = graph.last_restore
    assert report is not None
    assert "head" in {e.name for e in report.assumed}
    assert "head" not in {e.name for e in report.restored}


def test_an_idle_session_looks_at_what_it_assumed(
    graph: cave.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a quiet moment, also when somebody asks for `vars` again and again: the change is
    found, journaled as missed, and on disk; what was assumed is exact."""
    monkeypatch.setattr(tending, "QUIET", 0.3)
    monkeypatch.setattr(tending, "LONGEST", 0.5)

    def is_exact() -> bool:
        return graph.vars["head"].fidelity == "exact"

    until(is_exact)
    assert missed(graph) == {"head"}
    kill(graph)
    assert graph.run("print(head.n)").text.strip() == "77"
    report = graph.last_restore
    assert report is not None
    assert report.exact


def test_going_back_looks_first(graph: cave.Session) -> None:
    """restore() leaves nothing in the kernel that was only assumed to be unchanged."""
    graph.restore(at=3)
    assert graph.run("print(head.n)").text.strip() == "0"
    assert missed(graph) == {"head"}
    graph.restore(at=4)
    assert graph.run("print(head.n)").text.strip() == "77"
