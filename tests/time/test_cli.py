"""The verbs of time at a terminal."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

import cave
from cave.cli import cave as command

pytestmark = pytest.mark.usefixtures("sessions")


def call(*arguments: str) -> Result:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_the_verbs_of_time_from_snapshot_to_gc() -> None:
    """snapshot, snapshots, diff, restore --plan and restore, fork, gc: each says what it did,
    and --plan and --dry-run change nothing."""
    s = cave.open("q3")
    s.run("x = [1]\ny = x")
    assert "'friday'" in call("snapshot", "q3", "friday").stderr
    s.run("x.append(2)\nz = 3")
    rows = json.loads(call("snapshots", "q3", "--json").stdout)
    assert [(row["cell"], row["name"]) for row in rows][:2] == [(1, ""), (1, "friday")]
    assert "friday" in call("snapshots", "q3").stdout
    found = json.loads(call("diff", "q3", "1", "2", "--json").stdout)
    assert (found["added"], sorted(found["changed"])) == (["z"], ["x", "y"])
    plan = call("restore", "q3", "friday", "--plan").stdout
    assert "- z" in plan
    assert s["z"] == 3
    assert "as after cell 1" in call("restore", "q3", "friday").stdout
    assert "z" not in s
    call("fork", "q3", "branch", "--at", "2")
    t = cave.open("branch")
    assert t.run("y.append('t'); print(x)").text.strip() == "[1, 2, 't']"
    before = [row.id for row in s.snapshots]
    assert "would free" in call("gc", "--dry-run", "--now").stdout
    assert "freed" in call("gc", "--now").stdout
    assert [row.id for row in s.snapshots] == before
    s.restore(at=2)
    assert s["y"] == [1, 2]


def test_a_moment_that_is_not_there_is_a_named_error() -> None:
    """An unknown moment says which there are, and a session without snapshots says so."""
    cave.open("q3").run("x = 1")
    with pytest.raises(cave.SnapshotNotFound, match="nearest"):
        call("diff", "q3", "1", "99")
    with pytest.raises(cave.SessionNotFound, match="did you mean 'q3'"):
        call("snapshots", "q2")
    cave.open("bare", persistence="live").run("x = 1")
    assert "no snapshots yet" in call("snapshots", "bare").stderr
