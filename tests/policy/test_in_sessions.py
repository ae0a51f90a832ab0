"""A session's policy: what it says holds for cells, and what nothing enforces is refused."""

from pathlib import Path

import pytest

import cave


def test_what_is_not_enforced_is_refused(sessions: None) -> None:
    """Nobody can rely on a limit or a rule that nothing holds cells to."""
    for policy in (
        cave.Policy(profile="remote"),
        cave.Policy(network=["api.example.com"]),
    ):
        with pytest.raises(cave.ConfigError, match="in this version"):
            cave.open("held", policy=policy)


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
