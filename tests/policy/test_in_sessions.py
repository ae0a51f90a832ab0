"""A session's policy: what it says holds for cells, and what nothing enforces is refused."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cave
from cave import doctor
from cave.display import html
from cave.kernel import trial


def test_what_is_not_enforced_is_refused(sessions: None) -> None:
    """Nobody can rely on a limit or a rule that nothing holds cells to."""
    with pytest.raises(cave.ConfigError, match="in this version"):
        cave.open("held", policy=cave.Policy(profile="remote"))


def test_a_policy_confines_the_cells(
    sessions: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells read and write what the policy names, see the variables it names, and no others."""
    monkeypatch.setenv("TOLD", "told")
    monkeypatch.setenv("UNTOLD", "untold")
    given, mine = tmp_path / "given", tmp_path / "mine"
    for folder in (given, mine):
        folder.mkdir()
        (folder / "data.txt").write_text("data")
    tmp_path.chmod(0o755)
    policy = cave.Policy(read=[given], env=["TOLD"])
    s = cave.open("held", policy=policy)
    assert s.kernel.profile == "confined"
    s.run(f"import os; there = open({str(given / 'data.txt')!r}).read()").raise_for_error()
    s.run("seen = os.environ.get('TOLD'), os.environ.get('UNTOLD')").raise_for_error()
    assert (s["there"], s["seen"]) == ("data", ("told", None))
    for refused in (f"open({str(mine / 'data.txt')!r})", f"open({str(given / 'new')!r}, 'w')"):
        error = s.run(refused).error
        assert error is not None
        assert error.name == "PermissionError"


@pytest.fixture
def lame(home: Path) -> Iterator[None]:
    """As if this system's Landlock did not hold: its trial went through, and that is known."""
    found = {"landlock": {"read a file of the user": "open"}}
    file = home / "confinement.json"
    file.write_text(json.dumps({"stamp": trial._stamp(), "tried": found}))
    yield
    file.unlink()


def test_doctor_names_what_cannot_be_put_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that this system has not is missing, not one that held where nothing was tried."""
    found = {
        "network": {"to be put on": "open: no namespaces"},
        "seccomp": {"x": "stopped (EPERM)"},
    }
    monkeypatch.setattr(trial, "tried", lambda *_: found)
    told = {one.what: one for one in doctor._confinement()}
    assert (told["network"].state, told["seccomp"].state) == ("DEGRADED", "ok")
    assert "no namespaces" in told["network"].detail


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these layers")
def test_a_missing_layer_is_told_or_refused(
    lame: None, sessions: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line where people look, once for each opening; no kernel where it is required."""
    s = cave.open("lame")
    s.run("x = 1")
    told = capsys.readouterr().err
    line = "DEGRADED landlock: cells can read and write every file of the user"
    assert told.count(line) == 1 == html.session(s).count(line)
    s.close()
    with pytest.raises(cave.KernelStartError, match=line):
        cave.open("lame", policy=cave.Policy(confinement="require"))


def test_an_open_profile_says_so_and_so_does_a_kernel_of_before(
    sessions: None, unconfined: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who chose it is told what it means; who is stricter later, what that takes."""
    assert cave.open("wide").kernel.profile == "open"
    assert capsys.readouterr().err.count("profile open: cells may do what you may") == 1
    s = cave.open("wide", policy=cave.Policy())
    s.run("x = 1")
    s.run("x = 2")
    assert capsys.readouterr().err.count("s.restart() puts this one on") == 1
    s.restart()
    assert (s.kernel.profile, s.kernel.stale, s["x"]) == ("confined", False, 2)
