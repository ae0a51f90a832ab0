"""No room for snapshots: cells go on, nothing is thrown away, and with room all is well again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import cave
from cave import failpoints
from tests.test_bad_input import fill, small_disk

from ._kill import kill

__all__ = ["small_disk"]


@pytest.mark.needs_root
def test_without_room_snapshots_are_given_up_and_nothing_else(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A disk with room for the journal alone: cells run, the person is told once, `vars` says
    volatile; what would throw away what is in memory only (going back, a fork of now, restart,
    close) is refused by name; an old moment can be forked and come back to without space; with
    room again the next snapshot is whole."""
    s = cave.open("full", policy=cave.Policy(profile="open"))  # confined cells run again when lost
    s.run("import os\nx = [1]; y = x; big = os.urandom(3_000_000)")
    filler = small_disk / "filler"
    with contextlib.suppress(OSError):
        fill(filler)
    os.truncate(filler, filler.stat().st_size - 1_500_000)
    for n in (2, 3):
        cell = s.run(f"x.append({n}); big = os.urandom(3_000_000)")
        assert (cell.status, cell.durable) == ("ok", False)
    assert {v.fidelity for v in s.vars} == {"volatile"}
    with pytest.raises(cave.SnapshotError, match="full"):
        s.snapshot("mine")
    for verb in (lambda: s.restore(at=1), lambda: s.fork("now"), s.restart, s.close):
        with pytest.raises(cave.SnapshotError, match=r"nothing was done.*full"):
            verb()
    assert s.fork("then", at=1)["x"] == [1]
    assert [row.name for row in cave.sessions() if row.name == "now"] == []
    assert s.run("print(x, y is x)").text.strip() == "[1, 2, 3] True"
    assert capfd.readouterr().err.count("no snapshot was taken") == 1
    kill(s)
    assert s.run("print(x, y is x, len(big))").text.strip() == "[1] True 3000000"
    assert s.last_restore is not None
    assert s.last_restore.undone == (2, 3, 4)
    filler.unlink()
    assert s.run("x.append(9)").durable
    assert s.snapshot("mine").vars
    kill(s)
    assert s.run("print(x, y is x, len(big))").text.strip() == "[1, 9] True 3000000"


def test_a_snapshot_that_failed_is_no_ground_to_leave_anything_as_it_is(
    home: Path, sessions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of a cell was given and could not be written, at any moment of the writing;
    the kernel then goes back to the snapshot before: nothing of that cell stays."""
    s = cave.open("again")
    s.run("x = [1]; y = x; z = 5")
    for point in ("snapshot.before_write", "snapshot.before_manifest", "snapshot.before_return"):
        failpoints.arm(point, "enospc")
        try:
            assert not s.run("y.append('lost')").durable
        finally:
            failpoints.disarm()
        with monkeypatch.context() as patch:
            patch.setattr(type(s._inner), "_up_to_date", _nothing)
            s.restore(at=1)
        assert s.run("print(x, y is x)").text.strip() == "[1] True"
    assert s.run("x.append(2)").durable
    kill(s)
    assert s["y"] == [1, 2]


async def _nothing(*_: object) -> None:
    pass
