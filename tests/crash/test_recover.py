"""Host and kernel died in a cell: what runs again by itself, and what is left to a person."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import cave
from cave.cli import cave as command
from cave.cli.look import events
from cave.events import EffectResult, Recovered

from . import world
from .conftest import Host, wait_until
from .test_effects import kill_kernel

CELL = """
seen = [pay('a'), mail('b')]
{more}
import pathlib, time
while not pathlib.Path({marker!r}).exists():
    time.sleep(0.02)
seen.append(pay('c'))
"""
HOST = """
from tests.crash import world
s = cave.open('cut', skills=world.SKILLS)
s.run('before = 1')
print('ready')
{arm}
s.run({source!r})
"""


@pytest.fixture
def both_die(
    host: Callable[..., Host], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Kills host and kernel in the middle of a cell that waits for a file; gives the file."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))

    def die(more: str = "", point: str = "") -> Path:
        go = tmp_path / "go"
        arm = f"from cave import failpoints; failpoints.arm({point!r}, 'kill', after=3)"
        source = CELL.format(more=more, marker=str(go))
        worker = host(HOST.format(source=source, arm=arm if point else ""))
        worker.wait_for("ready")
        if point:
            assert worker.end(keep=True) == -signal.SIGKILL, worker.rest()
            kill_kernel("cut")
            return go
        wait_until(lambda: sum(isinstance(e, EffectResult) for e in events("cut")) == 2)
        if "out.txt" in more:
            wait_until((home / "sessions/cut/work/out.txt").exists)
        worker.kill()
        kill_kernel("cut")
        return go

    return die


def test_a_cell_of_known_effects_runs_again_by_itself(both_die: Callable[..., Path]) -> None:
    """The session opens with the cell's work done, nothing twice, and the report says so."""
    both_die().touch()
    s = cave.open("cut", skills=world.SKILLS)
    assert s["seen"] == ["pay a", "mail b", "pay c"]
    assert s["before"] == 1
    assert sorted(item for _, _, item in world.rows()) == ["a", "b", "c"]
    cell = s.history[2]
    assert cell.ok
    assert [e.state for e in cell.effects] == ["done"] * 3
    recovered = [e for e in s.events() if isinstance(e, Recovered)]
    assert [(e.cells, e.left) for e in recovered] == [((2,), ())]


def test_a_person_who_wants_to_be_asked_sees_the_plan_first(both_die: Callable[..., Path]) -> None:
    """Nothing runs; the plan says in words what would; `recover` does it."""
    go = both_die()
    s = cave.open("cut", skills=world.SKILLS, resume="ask")
    told = str(s.plan())
    assert "the namespace comes back as it was after cell 1" in told
    assert "cell 2 (seen = [pay('a'), mail('b')]) runs again" in told
    assert "e1 pay(item='a') was done: it is answered from the ledger" in told
    assert len(world.rows()) == 2
    go.touch()
    assert s.recover().cells == (2,)
    assert s["seen"] == ["pay a", "mail b", "pay c"]


def test_what_touched_the_world_besides_is_left_to_a_person(both_die: Callable[..., Path]) -> None:
    """A cell that wrote a file is not run again, and the plan names the file."""
    both_die("open('out.txt', 'w').write('x')").touch()
    s = cave.open("cut", skills=world.SKILLS)
    s.run("pass").raise_for_error()
    assert "seen" not in s
    (event,) = [e for e in s.events() if isinstance(e, Recovered)]
    assert event.cells == ()
    assert [n for n, _ in event.left] == [2]
    assert "out.txt" in event.left[0][1]
    assert len(world.rows()) == 2


def test_the_command_line_tells_the_plan_and_takes_answers(
    both_die: Callable[..., Path],
) -> None:
    """`cave recover --plan` says what is in doubt and starts nothing, `cave settle` lists it and
    takes the answer, and then the session goes on."""
    both_die("sent = await text('d')", point="effect.after_call").touch()
    plan = CliRunner().invoke(command, ["recover", "cut", "--plan"])
    assert plan.exit_code == 0, plan.output
    assert "e3 text(item='d') is in doubt" in plan.stdout
    listed = CliRunner().invoke(command, ["settle"])
    assert listed.stdout.startswith("cut/e3  text(item='d')  process ")
    assert "cave settle cut/e3 not_done  # it was not" in listed.stdout
    unknown = CliRunner().invoke(command, ["settle", "cut/e9", "done"])
    assert isinstance(unknown.exception, cave.ConfigError)
    given = CliRunner().invoke(command, ["settle", "e3", "done", "--result", json.dumps("by hand")])
    assert given.exit_code == 0, given.output
    assert CliRunner().invoke(command, ["settle"]).stdout == ""
    s = cave.open("cut", skills=world.SKILLS)
    assert s["sent"] == "by hand"
    assert s["seen"] == ["pay a", "mail b", "pay c"]
    assert [item for _, skill, item in world.rows() if skill == "text"] == ["d"]


FINISHED = """
from tests.crash import world
s = cave.open('late', skills=world.SKILLS, snapshot_every=50)
for source in {sources!r}:
    s.run(source).raise_for_error()
print('ready')
import time
time.sleep(600)
"""


def lose(host: Callable[..., Host], *sources: str) -> None:
    """Cells end, no snapshot has them, and host and kernel die."""
    worker = host(FINISHED.format(sources=sources))
    worker.wait_for("ready")
    worker.kill()
    kill_kernel("late")


@pytest.fixture
def outside(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where skills do what they do."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))


def test_cells_that_no_snapshot_has_run_again_in_order(
    host: Callable[..., Host], outside: None, unconfined: None
) -> None:
    """Their effects come from the ledger; a name that comes out otherwise is said to be changed."""
    lose(
        host,
        "import os\nfirst = pay('a')",
        "both = [first, mail('b')]\nchance = os.urandom(8)",
        "n = len(both)",
    )
    s = cave.open("late", skills=world.SKILLS)
    assert s["both"] == ["pay a", "mail b"]
    assert "n" not in s  # nothing confines cells here: what has no effects is left to a person
    (event,) = [e for e in s.events() if isinstance(e, Recovered)]
    assert (event.cells, [n for n, _ in event.left]) == ((1, 2), [3])
    assert s.plan().runs == (3,)
    cell = s.resume()
    assert isinstance(cell, cave.Cell)
    assert (cell.n, s.plan().runs, s["n"]) == (3, (), 2)
    assert len(world.rows()) == 2
    assert [(note.kind, note.name) for note in event.notes] == [("changed", "chance")]
    assert [cell.status for cell in s.history] == ["ok"] * 3


def test_a_cell_that_calls_something_else_is_stopped(
    host: Callable[..., Host], outside: None
) -> None:
    """Other arguments than the first time: nothing is called, and nothing after it runs."""
    lose(host, "import os\nwhat = pay(os.urandom(4).hex())", "after = pay('b')")
    s = cave.open("late", skills=world.SKILLS)
    (event,) = [e for e in s.events() if isinstance(e, Recovered)]
    assert event.cells == (1,)
    ((left, why),) = event.left
    assert left == 2
    assert "with other arguments" in why
    error = s.history[1].error
    assert error is not None
    assert error.name == "Divergence"
    assert len(world.rows()) == 2
    assert "after" not in s
