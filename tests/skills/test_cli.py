"""`cave skills`: list, show, check, trust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cave
from cave.cli import cave as program
from cave.skills import ShadowWarning, trust

from .conftest import SCRIPT, Write


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(program, ["skills", *arguments])
    assert done.exit_code == code, done.output
    return done


def test_list_shows_names_sources_and_descriptions(world: Path, write: Write) -> None:
    """As lines and as JSON; what is not trusted is told on stderr."""
    write(world / ".cave" / "skills", "mine", s=SCRIPT.format(function="add", says="Add."))
    done = run("list")
    assert "reconcile   bundled    " in done.stdout
    assert "mine" not in done.stdout
    assert f"cave skills trust {world}" in done.stderr
    run("trust", str(world))
    assert trust.trusted(world)
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert rows["mine"] == {
        "name": "mine",
        "description": "About mine.",
        "version": "0.0.0",
        "source": "project",
        "where": str(world / ".cave/skills/mine"),
        "functions": ["add"],
    }
    run("trust", str(world), "--revoke")
    assert not trust.trusted(world)


def test_conflicts_are_names_that_hide_each_other(world: Path, home: Path, write: Write) -> None:
    """Both places are shown, the one in use first."""
    assert run("list", "--conflicts").stdout == ""
    folder = write(home / "skills", "sql")
    assert run("list", "--conflicts").stdout.startswith(f"sql: {folder} is used, hiding ")
    [row] = json.loads(run("list", "--conflicts", "--json").stdout)
    assert row["used"] == str(folder)
    with pytest.warns(ShadowWarning, match="cave skills list --conflicts"):
        cave.skills.discover()


def test_show_is_what_the_operator_reads(world: Path) -> None:
    """Fields, functions and the instructions; a wrong name proposes the right one."""
    shown = run("show", "reconcile").stdout
    assert "match_tables" in shown
    assert "# " in shown
    row = json.loads(run("show", "reconcile", "--json").stdout)
    assert row["license"] == "MIT"
    assert "scripts/reconcile.py" in row["files"]
    done = CliRunner().invoke(program, ["skills", "show", "reconcil"])
    assert "did you mean 'reconcile'" in str(done.exception)


def test_check_names_every_fault_and_exits_with_one(tmp_path: Path, write: Write) -> None:
    """A good folder is 0; a folder of folders is checked as a whole."""
    write(tmp_path, "good", s=SCRIPT.format(function="add", says="Add."))
    assert "1 skill checked: 0 faults" in run("check", str(tmp_path / "good")).stderr
    write(tmp_path, "bad", page="---\nname: good\n---\n", s="raise RuntimeError('down')\n")
    done = run("check", str(tmp_path), code=1)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{tmp_path}/bad/SKILL.md: name: 'good' is not the name of its")
    assert lines[1].startswith(f"{tmp_path}/bad/SKILL.md: description: it is missing")
    assert "bad/scripts/s.py: script: " in lines[2]
    assert "RuntimeError: down" in lines[2]
    faults = json.loads(run("check", str(tmp_path), "--json", code=1).stdout)
    assert [fault["field"] for fault in faults] == ["name", "description", "script"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no such file" in run("check", str(empty), code=1).stdout


def test_every_verb_and_flag_is_in_the_readme() -> None:
    """The README names what `cave skills` understands."""
    from cave.cli.skills import skills

    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    for name, verb in skills.commands.items():
        assert f"cave skills {name}" in text
        flags = [flag for option in verb.params for flag in option.opts if flag.startswith("--")]
        assert not [flag for flag in flags if flag not in text]
