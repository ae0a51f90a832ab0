"""The namespace comes back: after deaths, after sleep, at an earlier moment, in a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

import cave
from cave import session
from cave.events import KernelEnded, Restored, SnapshotCommitted

from ._kill import kill

pytestmark = pytest.mark.usefixtures("sessions")


def test_the_namespace_is_back_on_the_next_call_after_a_kill() -> None:
    """kill -9 of the kernel: the next cell sees every object, exact, and the report says so."""
    s = cave.open("back")
    s.run(
        "import pandas as pd\nx = 41\nd = {'k': [1, 2]}\nalias = d['k']\n"
        "df = pd.DataFrame({'a': [1.5, 2]})"
    )
    kill(s)
    cell = s.run("alias.append(3)\nprint(x, d, df.a.sum(), pd.__name__)")
    assert cell.text.strip() == "41 {'k': [1, 2, 3]} 3.5 pandas"
    report = s.last_restore
    assert report is not None
    assert {e.name for e in report.restored} >= {"x", "d", "alias", "df"}
    assert not report.lost
    assert [type(e) for e in s.events() if isinstance(e, KernelEnded | Restored)] == [
        KernelEnded,
        Restored,
    ]


def test_a_cell_is_durable_when_its_snapshot_is_on_disk() -> None:
    """`durable` of cells that ran is true, and `vars` calls them exact."""
    s = cave.open("durable")
    assert s.run("x = 1").durable
    assert s.history[1].durable
    assert s.vars["x"].fidelity == "exact"
    s.put(y=2)
    assert s.vars["x"].fidelity == "exact"
    assert s.run("z = 3").durable
    assert {v.fidelity for v in s.vars} == {"exact"}


def test_closing_keeps_everything_and_opening_brings_it_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """close() then open(): same objects; nobody is told of losses where there are none."""
    s = cave.open("sleep")
    s.put(given=[1, 2])
    s.run("def f(x):\n    return x + n\nn = 5\nf.calls = 0")
    s.close()
    assert "gone" not in capfd.readouterr().err
    again = cave.open("sleep")
    assert again.run("n = 7\nprint(f(1), f.calls, given)").text.strip() == "8 0 [1, 2]"


def test_what_a_snapshot_cannot_hold_is_named_and_raises_on_use() -> None:
    """A generator is lost: in vars, in the report with reason and cell, and when it is used."""
    s = cave.open("lost")
    s.run("g = (i for i in range(3)); next(g)\nok = 1")
    assert s.vars["g"].fidelity == "lost"
    kill(s)
    cell = s.run("next(g)")
    assert not cell.ok
    assert "generator" in str(cell.error)
    report = s.last_restore
    assert report is not None
    assert [(e.name, e.type, e.cell) for e in report.lost] == [("g", "generator", 1)]
    assert report.lost[0].reason
    assert s["ok"] == 1


def test_restore_goes_back_in_the_same_kernel() -> None:
    """restore(at=1): values and names are those after cell 1, in the same process; objects that
    had not changed are the very same; later snapshots can still be gone to."""
    s = cave.open("steps")
    s.run("x = 1\nheld = [object()]\nsame = id(held)")
    s.run("x = 2\ny = 3")
    pid = s.kernel.pid
    report = s.restore(at=1)
    assert s.kernel.pid == pid
    assert s.run("print(x, 'y' in globals(), id(held) == same)").text.strip() == "1 False True"
    assert "held" in {e.name for e in report.kept}
    assert not report.lost
    s.restore(at=2)
    assert s.run("print(x, y)").text.strip() == "2 3"


def test_moments_are_cells_turns_names_and_snapshots() -> None:
    """`at` may be a cell, "turn 1", "before turn 1", a name, a Snapshot; else the error says
    which there are."""
    s = cave.open("moments", operator=["x = 'turn'"])
    s.run("x = 'first'")
    named = s.snapshot("mine")
    s.run("x = 'second'")
    s.ask("do")
    s.run("x = 'last'")
    for at, value in [
        (1, "first"),
        ("turn 1", "turn"),
        ("before turn 1", "second"),
        ("mine", "first"),
        (named, "first"),
        (4, "last"),
    ]:
        s.restore(at=at)
        assert s["x"] == value, at
    with pytest.raises(cave.SnapshotNotFound, match="nearest are after the cells"):
        s.restore(at=77)
    with pytest.raises(cave.SnapshotNotFound, match="'mine'"):
        s.restore(at="yours")
    assert s["x"] == "last"


def test_diff_names_what_changed_between_two_cells() -> None:
    """Added, changed, removed, unchanged, each name once; also where two names share."""
    s = cave.open("diff")
    s.run("a = 1\nb = [1]\nc = b\nd = 'x'\ngone = 0")
    s.run("new = 1")
    s.run("b.append(2)\ndel gone\na = 2")
    found = s.diff(1, 3)
    assert set(found.added) == {"new"}
    assert set(found.changed) == {"a", "b", "c"}
    assert set(found.removed) == {"gone"}
    assert set(found.unchanged) == {"d"}
    assert set(s.diff(3, 1).added) == {"gone"}


def test_a_fork_has_the_objects_and_a_life_of_its_own() -> None:
    """fork(at=1): same objects as after cell 1 with their sharing; neither sees the other's
    changes; the fork outlives the deletion of its parent."""
    s = cave.open("trunk")
    s.run(
        "import os, sqlite3\nx = [1]\ny = x\nnote = open('note.txt', 'w+')\n"
        "note.write('hi'); note.flush()\ndb = sqlite3.connect(os.path.abspath('t.db'))\n"
        "db.execute('create table t(a)')\nlog = open(os.path.abspath('log.txt'), 'a')"
    ).raise_for_error()
    s.run("x.append(2)")
    t = s.fork("branch", at=1)
    t.run(
        "db.execute('insert into t values (1)'); db.commit(); log.write('t'); log.flush()\n"
        "note.write('!'); note.flush()"
    ).raise_for_error()
    told = s.run("print(db.execute('select * from t').fetchall(), os.stat('log.txt').st_size)")
    assert told.text.strip() == "[] 0"
    assert t.run("y.append('t')\nprint(x, open('note.txt').read())").text.strip() == "[1, 't'] hi!"
    assert s["x"] == [1, 2]
    u = s.fork("now")
    assert u["y"] == [1, 2]
    cave.delete("trunk")
    kill(t)
    assert t["x"] == [1, "t"]
    with pytest.raises(cave.ConfigError, match="already"):
        t.fork("now")


def test_live_sessions_take_no_snapshots(unconfined: None) -> None:
    """persistence="live": no files, variables volatile, a death loses and names them (confined
    cells would run again)."""
    s = cave.open("live", persistence="live")
    assert not s.run("x = 1").durable
    assert s.vars["x"].fidelity == "volatile"
    with pytest.raises(cave.ConfigError, match="live"):
        s.snapshot()
    kill(s)
    assert "lost" in str(s.run("print(x)").error)
    assert not any(isinstance(e, SnapshotCommitted) for e in s.events())


def test_a_sleeping_session_has_no_process_between_its_turns() -> None:
    """persistence="snapshot": the kernel ends after each turn and each own cell, and the
    objects are there in the next."""
    s = cave.open("asleep", persistence="snapshot", operator=["y = x + 1"])
    s.run("x = 1")
    assert not s.kernel.alive
    assert s.ask("go on").ok
    assert not s.kernel.alive
    assert s.run("print(x, y)").text.strip() == "1 2"


def test_snapshot_every_counts_cells() -> None:
    """snapshot_every=3: the third cell makes all three durable; closing keeps the rest."""
    s = cave.open("every", snapshot_every=3)
    assert not s.run("a = 1").durable
    s.run("b = 2")
    assert s.run("c = 3").durable
    assert [cell.durable for cell in s.history] == [True] * 3
    s.run("d = 4")
    s.close()
    assert cave.open("every")["d"] == 4
    with pytest.raises(cave.ConfigError, match="snapshot_every"):
        cave.open("never", snapshot_every=0)


def test_an_operator_is_told_what_came_back(tmp_path: Path) -> None:
    """A kernel killed by a cell of a turn: the next step's view tells of the death, of what is
    lost, and the turn goes on with the restored objects."""
    told: list[str] = []

    def last(view: object) -> str:
        told.append("\n".join(m.text for m in view.messages))  # type: ignore[attr-defined]
        return "answer = x + 1"

    s = cave.open("told", operator=[
        "x = 1\ng = (i for i in 'ab')",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        last,
    ])  # fmt: skip
    turn = s.ask("work")
    assert turn.ok
    assert s["answer"] == 2
    assert "as after cell 1" in told[0]
    assert "g (generator" in told[0]


def test_a_dill_file_carries_the_namespace_out_and_in(tmp_path: Path) -> None:
    """export("x.dill") opens with plain dill and seeds a new session, if pickles are allowed."""
    s = cave.open("out")
    s.run("a = {'k': [1]}\nb = a['k']\ndef f(): return len(b)\nimport math\ng = (i for i in 'a')")
    with pytest.warns(UserWarning, match=r"without g \(TypeError"):
        path = s.export(tmp_path / "out.dill")
    import dill

    assert sorted(dill.loads(path.read_bytes())) == ["a", "b", "f"]
    with pytest.raises(cave.ConfigError, match="allow_pickle"):
        cave.open("in", seed=path)
    t = cave.open("in", seed=path, allow_pickle=True)
    assert t.run("b.append(2)\nprint(a, f())").text.strip() == "{'k': [1, 2]} 2"
    kill(t)
    assert t["a"] == {"k": [1, 2]}


def test_going_back_never_keeps_what_has_moved_on_unseen() -> None:
    """A generator, a cursor and a connection whose streams say the same as before are not kept
    in place: the first two are lost, the connection is opened again without its transaction."""
    s = cave.open("unseen")
    s.run(
        "import sqlite3\ng = (i for i in range(9)); a = next(g)\ndb = sqlite3.connect('q.db')\n"
        "db.execute('create table t(a)'); db.commit()\n"
        "opened = db.execute('insert into t values(1)')"
    ).raise_for_error()
    s.run("b = next(g)\nmore = db.execute('insert into t values(2)')").raise_for_error()
    report = s.restore(at=1)
    assert "g" in {e.name for e in report.lost}
    assert "ObjectLost" in str(s.run("next(g)").error)
    told = s.run("print(db.execute('select count(*) from t').fetchone(), db.in_transaction, a)")
    assert told.text.strip() == "(0,) False 0"


def test_what_was_put_survives_a_kill_right_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small values are in a snapshot when `put` returns."""
    monkeypatch.setattr(session, "PUT", 60.0)  # as if the machine were quick
    s = cave.open("given")
    s.put(z=[1], df={"k": 2})
    assert s.vars["z"].fidelity == "exact"
    kill(s)
    assert (s["z"], s["df"]) == ([1], {"k": 2})


def test_a_seed_that_cannot_be_read_leaves_no_session(tmp_path: Path) -> None:
    """A missing or broken seed raises, and the name is as free as before."""
    bad = tmp_path / "bad.dill"
    bad.write_bytes(b"no pickle")
    with pytest.raises(cave.ConfigError, match=r"none\.dill"):
        cave.open("sown", seed=tmp_path / "none.dill", allow_pickle=True)
    with pytest.raises(cave.PutError, match="the seed"):
        cave.open("sown", seed=bad, allow_pickle=True)
    assert "sown" not in [row.name for row in cave.sessions()]


def test_pyplot_goes_on_with_its_figure_and_backend() -> None:
    """The current figure is the variable's, the backend is the one that was chosen, and no cell
    shows a figure that nobody asked for."""
    s = cave.open("plots")
    s.run(
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n"
        "fig, ax = plt.subplots(); line = ax.plot([1, 2])"
    ).raise_for_error()
    kill(s)
    first = s.run("print(matplotlib.get_backend(), plt.gcf() is fig, plt.gca() is ax)")
    assert first.text.lower().split() == ["agg", "true", "true"]
    assert [o.kind for o in first.outputs] == ["stream"]
    assert s.run("print(plt.gcf() is fig, len(plt.gcf().axes))").text.split() == ["True", "1"]
