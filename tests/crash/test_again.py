"""Deaths under what runs again: it still has to run, in its order, and ends as if it had not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import cave
from cave.cli.look import events
from cave.events import CellResumed, EffectResult, Event, Recovered

from . import world
from .conftest import Host, wait_until
from .test_effects import kill_kernel

OPEN = "from tests.crash import world\ns = cave.open('again', skills=world.SKILLS)\n"
LATE = OPEN.replace("world.SKILLS", "world.SKILLS, snapshot_every=50")
KILLED = "from cave import failpoints\nfailpoints.arm('cell.before_send', 'kill', after={})\n"

pytestmark = pytest.mark.usefixtures("unconfined")


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where skills do what they do."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))


def waits(go: Path) -> str:
    """Source that waits for a file."""
    return (
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists():\n    time.sleep(.02)"
    )


def seen(kind: type[Event], count: int = 1) -> bool:
    return sum(isinstance(event, kind) for event in events("again")) >= count


def both_die(worker: Host) -> None:
    worker.kill()
    kill_kernel("again")


def cut(host: Callable[..., Host], first: Path, second: Path) -> None:
    """Host and kernel die in a cell of three payments, between the first two."""
    pays = "seen = [pay('a')]", "seen.append(pay('b'))", "seen.append(pay('c'))"
    source = "\n".join([pays[0], waits(first), pays[1], waits(second), pays[2]])
    worker = host(f"{OPEN}s.run('before = 1')\nprint('ready')\ns.run({source!r})")
    worker.wait_for("ready")
    wait_until(lambda: seen(EffectResult))
    both_die(worker)


def check(s: cave.Session) -> None:
    assert s["seen"] == ["pay a", "pay b", "pay c"]
    assert sorted(item for _, _, item in world.rows()) == ["a", "b", "c"]
    assert [cell.status for cell in s.history] == ["ok", "ok"]
    assert s.plan().cells == ()


def test_the_end_of_a_cell_that_ran_again_is_seen_by_the_next_host(
    host: Callable[..., Host], tmp_path: Path
) -> None:
    """It had put nothing out, its host died, its kernel went on: its end is its end."""
    first, second = tmp_path / "first", tmp_path / "second"
    cut(host, first, second)
    first.touch()
    worker = host(f"{OPEN}s['before']")
    wait_until(lambda: seen(EffectResult, 2))
    worker.kill()
    second.touch()
    s = cave.open("again", skills=world.SKILLS)
    check(s)


def test_a_cell_that_was_to_run_again_and_was_not_sent_still_is(
    host: Callable[..., Host], tmp_path: Path
) -> None:
    """Its host died on the way, more than once: it was cut before and is cut still, and the next
    host runs it by itself."""
    first, second = tmp_path / "first", tmp_path / "second"
    cut(host, first, second)
    for _ in range(2):
        worker = host(f"{KILLED.format(1)}{OPEN}s['before']")
        assert worker.end() == -signal.SIGKILL
    with cave.open("again", skills=world.SKILLS, resume="ask") as s:
        assert s["before"] == 1
        assert s.plan().runs == (2,)
        assert s.history[2].status == "died"
        assert str(s.history[2].error).count("its host died before it was sent again") == 1
    first.touch()
    second.touch()
    s = cave.open("again", skills=world.SKILLS)
    check(s)
    (recovered,) = [event for event in s.events() if isinstance(event, Recovered)]
    assert recovered.cells == (2,)


@pytest.mark.parametrize("victim", ["host", "both"])
def test_cells_that_were_to_run_again_after_one_that_was_cut_still_do(
    host: Callable[..., Host], tmp_path: Path, victim: str
) -> None:
    """No snapshot had three cells; under the second, as it runs again, host or both die: none
    is forgotten, and they run in their order."""
    go = tmp_path / "go"
    go.touch()
    sources = "seen = [pay('a')]", f"seen.append(pay('b'))\n{waits(go)}", "seen.append(pay('c'))"
    rest = "print('ready')\nimport time\ntime.sleep(600)"
    worker = host(f"{LATE}for source in {sources!r}:\n    s.run(source)\n{rest}")
    worker.wait_for("ready")
    both_die(worker)
    if victim == "host":
        worker = host(f"{KILLED.format(2)}{LATE}s['seen']")
        assert worker.end() == -signal.SIGKILL
    else:
        go.unlink()
        worker = host(f"{LATE}s['seen']")
        wait_until(lambda: seen(CellResumed, 2))
        both_die(worker)
        go.touch()
    s = cave.open("again", skills=world.SKILLS, snapshot_every=50)
    assert s.plan().runs in {(), (1, 2, 3)}
    s.resume()
    assert s["seen"] == ["pay a", "pay b", "pay c"]
    assert sorted(item for _, _, item in world.rows()) == ["a", "b", "c"]


def test_a_cell_that_stopped_and_was_not_sent_again_stands_still_where_it_stood(
    host: Callable[..., Host], tmp_path: Path
) -> None:
    """A person had settled what it waited for; its host died as it was to go on: `resume` still
    goes on with it."""
    worker = host(
        f"{OPEN}s.run('before = 1')\nfrom cave import failpoints\n"
        "failpoints.arm('effect.after_call', 'kill')\ns.run(\"seen = await text('a')\")"
    )
    assert worker.end() == -signal.SIGKILL
    worker = host(f"{OPEN}s.settle('e1', 'done', result='by hand')\n{KILLED.format(1)}s.resume()")
    assert worker.end() == -signal.SIGKILL
    s = cave.open("again", skills=world.SKILLS)
    cell = s.resume()
    assert isinstance(cell, cave.Cell)
    assert (cell.n, cell.status, s["seen"], s["before"]) == (2, "ok", "by hand", 1)
