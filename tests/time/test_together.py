"""The end of a cell and the namespace after it in one commit, with the file in the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

import cave
from cave import cleaning, config, facade, saving, thinning
from cave.doctor import verify
from cave.errors import StoreError
from cave.events import CellFinished, SnapshotCommitted, SnapshotFailed
from cave.portal import portal
from cave.snapshot import Snapshots
from cave.snapshot.folder import SMALL

from ._kill import kill

# cells that no snapshot has are lost where nothing confines them; confined ones run again
pytestmark = pytest.mark.usefixtures("sessions", "unconfined")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the end of a cell waits for its image."""
    monkeypatch.setattr(saving, "AT_ONCE", 60.0)


def folder_of(name: str) -> Path:
    return config.home() / "sessions" / name / "snapshots"


def cut_the_power(name: str) -> int:
    """What a power cut may do to files that nobody waited for; how many it took."""
    portal().call(facade.leave_all())
    sizes = {pack: pack.stat().st_size for pack in sorted(folder_of(name).glob("*.[pd]a*"))}
    packs = [pack for pack, size in sizes.items() if size <= SMALL]
    for number, pack in enumerate(packs):
        size = sizes[pack]
        pack.unlink()  # what a fork has linked it has waited for
        if number % 3:
            pack.write_bytes(b"" if number % 3 == 1 else bytes(size))
    (folder_of(name) / "boot").write_text("another boot")
    return len(packs)


def test_a_small_snapshot_is_committed_with_the_end_of_its_cell() -> None:
    """One transaction has both, and the whole file: one wait for the disk."""
    s = cave.open("both")
    cell = s.run("a = [1]")
    assert cell.durable
    finished, committed = list(s.events())[-2:]
    assert isinstance(finished, CellFinished)
    assert isinstance(committed, SnapshotCommitted)
    assert committed.file
    assert (committed.cell, committed.covers) == (1, finished.seq)
    assert s.vars["a"].fidelity == "exact"


def test_an_image_that_fails_behind_a_cell_leaves_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing can be written: the cell is journaled as it ended and is not durable, the journal
    says why, and the next snapshot has everything."""
    s = cave.open("fails")
    s.run("a = [1]")

    def full(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Snapshots, "write", full)
        cell = s.run("a.append(2); print(a)")
    assert (cell.text.strip(), cell.ok, cell.durable) == ("[1, 2]", True, False)
    finished, failed = list(s.events())[-2:]
    assert isinstance(finished, CellFinished)
    assert isinstance(failed, SnapshotFailed)
    assert s.run("a.append(3)").durable
    assert s.history[2].durable
    kill(s)
    assert s.run("print(a)").text.strip() == "[1, 2, 3]"


def test_what_a_power_cut_takes_is_written_again_from_the_journal() -> None:
    """Files that nobody waited for are gone or torn after the machine was started again: all
    moments come back, and damage is seen nowhere."""
    s = cave.open("power")
    s.run("a = [1]; b = a\nclass P: pass\np = P()")
    for n in range(2, 7):
        s.run(f"a.append({n})")
    kill(s)
    assert cut_the_power("power") >= 6
    s = cave.open("power", wait=60)
    assert s.run("print(a, b is a, type(p) is P)").text.strip() == "[1, 2, 3, 4, 5, 6] True True"
    report = s.last_restore
    assert report is not None
    assert (report.lost, report.changed) == ((), ())
    for n in range(1, 7):
        s.restore(at=n)
        assert s["a"] == list(range(1, n + 1))
    assert verify("power")[0].state == "ok"


def test_a_power_cut_before_a_fork_or_a_cleaning_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork, and `cave gc`, see the files whole first, so that what only a torn one needs
    stays; the fork's own outlast the next cut of its parent's."""
    s = cave.open("parent")
    s.run("import os; a = [1]; rest = os.urandom(40_000)")
    s.run("a.append(2)")
    with monkeypatch.context() as patched:
        patched.setattr(thinning, "kept", lambda history, **_: {history.lasting.latest})
        portal().call(s._inner.retire())
    assert [snapshot.cell for snapshot in s.snapshots] == [2]
    s.close()
    cut_the_power("parent")
    home = cave.open("other")._inner.home
    portal().call(cleaning.collect(home, now=True))
    s = cave.open("parent", wait=60)
    assert s["a"] == [1, 2]
    s.run("a.append(3)")
    child = s.fork("child", at=2)
    assert child["a"] == [1, 2]
    cut_the_power("parent")
    child = cave.open("child", wait=60)
    kill(child)
    assert child.run("print(a, len(rest))").text.strip() == "[1, 2] 40000"
    assert cave.open("parent", wait=60).restore(at=2) is not None


def test_untouched_moments_outlast_retention() -> None:
    """Cells that change nothing, snapshots let go of, the power cut: each that is kept comes
    back, and a fork of one."""
    s = cave.open("still")
    s.run("big = list(range(100)); a = [0]")
    for _ in range(12):
        s.run("len(big)")
    s._inner._lineage.retention = 4
    portal().call(s._inner.retire())
    portal().call(cleaning.collect(s._inner.home, now=True))
    kept = [snapshot.cell for snapshot in s.snapshots]
    assert len(kept) < 13
    kill(s)
    cut_the_power("still")
    s = cave.open("still", wait=60)
    for n in kept:
        s.restore(at=n)
        assert (len(s["big"]), s["a"]) == (100, [0])
    t = s.fork("still-fork", at=kept[-1])
    assert t["a"] == [0]
    assert verify("still")[0].state == "ok"


def test_many_small_variables_of_which_few_change() -> None:
    """What a cell left as it was is told of by its place only: names that change, come and go
    are right at every moment, also after the kernel came back."""
    s = cave.open("many")
    s.run("for i in range(150): globals()[f'v{i}'] = [i]")
    s.run("v7.append('seven')")
    s.run("del v9; v200 = v10")
    kill(s)
    s.run("v3 = 'three'")
    s.run("v149.append(v3)")
    look = "print(v7, 'v9' in globals(), 'v200' in globals(), v3, v149)"
    seen = {
        2: "[7, 'seven'] True False [3] [149]",
        3: "[7, 'seven'] False True [3] [149]",
        5: "[7, 'seven'] False True three [149, 'three']",
        1: "[7] True False [3] [149]",
        4: "[7, 'seven'] False True three [149]",
    }
    for n, text in seen.items():
        s.restore(at=n)
        assert s.run(look).text.strip() == text
        assert s.run("print('v200' in globals() and v200 is v10)").text.strip() == str(n > 2)
