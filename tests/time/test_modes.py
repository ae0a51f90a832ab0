"""Persistence modes one after the other, forks of all kinds, branches: nothing goes silently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import cave
from cave.doctor import verify
from cave.tending import QUIET
from tests.crash.conftest import Host, host, wait_until

from ._kill import kill

__all__ = ["host"]

pytestmark = pytest.mark.usefixtures("sessions")
# where nothing confines them, cells that no snapshot has are lost with their kernel; confined ones
# run again by themselves, and nothing would be to be told


def undone(s: cave.Session) -> tuple[int, ...]:
    assert s.last_restore is not None
    return s.last_restore.undone


def test_switching_modes_loses_nothing_silently(unconfined: None) -> None:
    """live, hybrid, live, snapshot, live on one session, with deaths: what has a snapshot comes
    back in every mode, and what has none is named."""
    s = cave.open("modes", persistence="live")
    s.run("a = [1]; b = a")
    s = cave.open("modes", persistence="hybrid")
    assert {v.fidelity for v in s.vars} == {"volatile"}
    s.run("c = 1")
    assert {v.fidelity for v in s.vars} == {"exact"}
    s = cave.open("modes", persistence="live")
    s.run("a.append(2); d = 1")
    kill(s)
    assert s.run("print(a, b is a, c)").text.strip() == "[1] True 1"
    assert undone(s) == (3,)
    assert s.last_restore is not None
    assert [e.name for e in s.last_restore.lost] == ["d"]
    s = cave.open("modes", persistence="snapshot")
    s.run("n = 2")
    assert not s.kernel.alive
    s = cave.open("modes", persistence="live")
    assert s.run("print(a, n)").text.strip() == "[1] 2"


def test_a_death_between_two_snapshots_names_the_cells_that_it_undid(unconfined: None) -> None:
    """snapshot_every=3 and a death after five cells: as after the third, without 4 and 5."""
    s = cave.open("every", snapshot_every=3)
    for n in range(1, 6):
        s.run(f"v{n} = {n}; last = {n}")
    kill(s)
    assert s["last"] == 3
    assert undone(s) == (4, 5)
    assert s.last_restore is not None
    assert {e.name for e in s.last_restore.lost} == {"v4", "v5"}


def test_branches_keep_their_cells_and_numbers() -> None:
    """Back, on from there, forward to what was undone: each moment is itself, no number is used
    twice, diffs work across branches, and a fork of a fork has its objects."""
    s = cave.open("trunk")
    for n in (1, 2, 3):
        s.run(f"v = {n}")
    s.restore(at=2)
    assert s.restore(at=2).kept
    assert s.run("w = 1").n == 4
    s.restore(at=3)
    assert (s["v"], "w" in s) == (3, False)
    s.restore(at=4)
    assert (s["v"], s["w"]) == (2, 1)
    assert (s.diff(3, 4).added, s.diff(4, 3).removed) == (("w",), ("w",))
    kill(s)
    assert s.restore(at=1).cell == 1
    t = s.fork("fork", at=4)
    t.run("q = 1")
    u = t.fork("fork-of-it")
    assert (u["v"], u["q"]) == (2, 1)
    with pytest.raises(cave.SnapshotNotFound):
        u.restore(at=s.snapshots[0])
    assert verify("trunk")[0].state == "ok"


def test_a_fork_that_fails_leaves_no_session(home: Path) -> None:
    """A snapshot that lacks a file cannot be forked, and the name is free afterwards."""
    s = cave.open("harmed")
    s.run("x = [1]")
    s.run("y = 2")
    min((home / "sessions" / "harmed" / "snapshots").glob("*.pack")).unlink()
    with pytest.raises(cave.SnapshotCorrupt, match=r"missing|lacks"):
        s.fork("half", at=2)
    assert [row.name for row in cave.sessions()] == ["harmed"]


@pytest.mark.parametrize(
    "name", ["turn 3", "before turn 1", "3", " x", "a\nb", "\ud800", "x" * 300]
)
def test_a_snapshot_has_a_name_that_can_be_gone_to(name: str) -> None:
    """Names that are moments already, or no line of text, are refused before anything runs."""
    from cave import moments

    with pytest.raises(cave.ConfigError, match="cannot be called"):
        moments.checked_name(name)
    assert moments.checked_name("vor dem Abschluß 日本") == "vor dem Abschluß 日本"


def test_a_moment_of_a_wrong_type_is_named() -> None:
    """at=1.5, None, True, bytes, a list: ConfigError says what a moment is; numpy's integers
    are numbers of cells."""
    import numpy as np

    from cave import moments
    from cave.history import History

    for at in (1.5, None, True, b"x", []):
        with pytest.raises(cave.ConfigError, match="no moment"):
            moments.resolve(History(), at)
    with pytest.raises(cave.SnapshotNotFound):
        moments.resolve(History(), np.int64(3))


BUSY = (
    "s = cave.open('busy')\ns.run('x = [1]')\nprint('go')\n"
    "s.run('import time\\nx.append(2)\\ntime.sleep(60)')"
)


def test_others_may_look_and_fork_the_past_while_one_works(host: Callable[..., Host]) -> None:
    """Another process runs a long cell: verbs that act raise SessionBusy, those that read work,
    and a moment that is on disk can be forked."""
    other = host(BUSY)
    other.wait_for("go")
    s = cave.open("busy")
    wait_until(lambda: len(s.events()) >= 6)  # the second cell has begun
    acts: list[Callable[[], object]] = [
        lambda: s.restore(at=1), s.snapshot, s.restart, lambda: s.fork("now"),
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(cave.SessionBusy):
            act()
    assert s.diff(1, 1).unchanged == ("x",)
    assert [one.cell for one in s.snapshots] == [1]
    assert s.fork("past", at=1)["x"] == [1]
    other.kill()
    s.interrupt()


def test_threads_and_cancelled_tasks_leave_a_whole_session() -> None:
    """restore, snapshot, diff, fork and run from five threads at once, then as tasks that are
    cancelled in the middle: sharing holds, no fork is half, the chain is whole."""
    s = cave.open("many")
    s.run("x = [0]; y = x")
    s.run("x.append(1)")
    faults: list[Exception] = []

    def often(act: Callable[[], object]) -> None:
        try:
            for _ in range(2):
                act()
        except Exception as fault:  # noqa: BLE001 - told by the main thread
            faults.append(fault)

    acts: list[Callable[[], object]] = [
        lambda: s.restore(at=1), lambda: s.restore(at=2), lambda: s.snapshot("n"),
        lambda: s.diff(1, 2), lambda: s.run("x.append(5)"),
    ]  # fmt: skip
    threads = [threading.Thread(target=often, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    asyncio.run(cancel_often())
    assert s.run("print(y is x)").text.strip() == "True"
    assert verify("many")[0].state == verify("tasks")[0].state == "ok"
    for row in cave.sessions():
        assert cave.open(row.name).run("print(y is x)").text.strip() == "True", row.name


async def cancel_often() -> None:
    async with cave.open_async("tasks") as a:
        await a.run("x = [1]; y = x; big = bytearray(5_000_000)")
        for delay in (0, 0.002, 0.02):
            for verb in (a.restore(1), a.snapshot(), a.fork(f"t{int(delay * 1000)}"), a.run("1")):
                task = asyncio.ensure_future(verb)
                await asyncio.sleep(delay)
                task.cancel()
                await asyncio.wait({task})
        assert (await a.run("print(y is x)")).text.strip() == "True"


def test_idle_work_waits_a_moment() -> None:
    """A cell that `snapshot_every` leaves out is on disk soon after, when nothing follows."""
    s = cave.open("idle", snapshot_every=50)
    s.run("x = 1")
    assert s.vars["x"].fidelity == "volatile"
    for _ in range(200):
        if s.vars["x"].fidelity == "exact":
            break
        threading.Event().wait(QUIET)
    assert s.vars["x"].fidelity == "exact"
