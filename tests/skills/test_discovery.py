"""Where skills are found, in which order, and whom one has to trust."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cave
from cave import config
from cave.skills import ShadowWarning, bundled, discover, discovery, trust

from .conftest import SCRIPT, Write


@pytest.fixture
def alone(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A world without skills: nothing is bundled or installed."""
    monkeypatch.setattr(discovery, "bundled", lambda: tmp_path / "bundled")
    monkeypatch.setattr(discovery, "_packaged", list)
    return world


def test_the_bundled_skills_are_found_and_wait(world: Path) -> None:
    """Those that ship with cave are in the catalogue, and cannot be called before they are used."""
    found = discover()
    assert {"dataframes", "sql", "files", "charts", "reconcile"} <= set(found.registry.names)
    assert found.registry.functions == ()
    assert found.faults == ()
    assert bundled().name == "skills"


def test_the_stronger_source_wins(alone: Path, tmp_path: Path, write: Write) -> None:
    """Given before project before user before bundled; each that hides another says so."""
    user = Path.home() / ".agents" / "skills"
    places = {
        "bundled": tmp_path / "bundled",
        "user": user,
        "home": config.home() / "skills",
        "project": alone / ".cave" / "skills",
        "given": tmp_path / "given",
    }
    for place, folder in places.items():
        page = f"---\nname: one\ndescription: from {place}\n---\n"
        write(folder, "one", page=page)
    trust.trust(alone)
    for weaker, stronger in (("bundled", "home"), ("home", "project"), ("project", "given")):
        with pytest.warns(ShadowWarning):
            found = discover(*([places["given"]] if stronger == "given" else []))
        if stronger == "project":
            assert found.registry["one"].description == "from project"
        if stronger == "given":
            assert found.registry["one"].description == "from given"
        assert weaker
    [conflict] = found.registry.conflicts()
    order = [Path(where).parent for where in conflict.hidden]
    assert order == [places["project"], places["home"], places["user"], places["bundled"]]


def test_an_untrusted_project_is_named_and_not_loaded(alone: Path, write: Write) -> None:
    """Nothing of it is read into the catalogue or run; the note says what to type."""
    source = SCRIPT.format(function="add", says="Add.") + "\nraise SystemExit('I ran')\n"
    write(alone / ".cave" / "skills", "mine", s=source)
    write(alone / ".agents" / "skills", "other")
    found = discover()
    assert found.registry.names == ()
    assert found.untrusted == (alone / ".cave/skills", alone / ".agents/skills")
    assert "(mine) that are not loaded" in found.notes[0]
    assert f"cave skills trust {alone}" in found.notes[0]


def test_trust_is_kept_in_the_home_and_can_be_taken_back(alone: Path, write: Write) -> None:
    """It holds for that folder, under its real name, and for no other."""
    write(alone / ".cave" / "skills", "mine")
    link = alone.parent / "link"
    link.symlink_to(alone)
    assert trust.trust(link) == alone
    assert trust.trusted(alone)
    assert not trust.trusted(alone.parent)
    assert not trust.trusted(alone / ".cave")
    assert discover().registry.names == ("mine",)
    inner = alone / "src" / "deep"
    inner.mkdir(parents=True)
    assert discover(project=trust.project(inner)).registry.names == ("mine",)
    trust.distrust(alone)
    assert discover().registry.names == ()
    file = config.home() / "trusted.json"
    assert json.loads(file.read_text()) == {"format": 1, "folders": []}
    file.write_text("nonsense")
    with pytest.raises(cave.ConfigError, match=r"trusted\.json cannot be read"):
        discover()


def test_the_users_home_is_no_project(
    alone: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    """`~/.agents/skills` are the user's, also when the current folder is `~`."""
    write(Path.home() / ".agents" / "skills", "mine")
    monkeypatch.chdir(Path.home())
    found = discover()
    assert found.untrusted == ()
    assert [entry.source for entry in found.registry.listed] == ["user"]


def test_packages_bring_skills_by_entry_points(
    alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write: Write
) -> None:
    """An entry point may name a function, a module or a path; a broken one is a fault."""

    def given(x: int) -> int:
        """Given."""
        return x

    def broken() -> Any:
        raise ImportError("no driver")

    points = [
        SimpleNamespace(name="a", value="p:given", load=lambda: given),
        SimpleNamespace(name="b", value="p:folder", load=lambda: write(tmp_path, "two")),
        SimpleNamespace(name="c", value="p:broken", load=broken),
    ]

    def entry_points(*, group: str) -> list[Any]:
        return points if group == "cave.skills" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    found = discover()
    assert found.registry.names == ("given", "two")
    assert found.faults == (
        "entry point 'c': 'p:broken' raised ImportError: no driver; mend or uninstall the package",
    )


def test_packages_bring_skills_in_a_folder(
    world: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write: Write
) -> None:
    """`.agents/skills` of an installed package is found; cave's own is the bundled one."""
    write(tmp_path / "site" / "their_package" / ".agents" / "skills", "theirs")
    write(tmp_path / "site" / "cave" / ".agents" / "skills", "ours")
    monkeypatch.setattr(discovery.sysconfig, "get_path", lambda _: str(tmp_path / "site"))
    sources = {entry.entry.name: entry.source for entry in discover().registry.listed}
    assert sources["theirs"] == "installed"
    assert sources["sql"] == "bundled"
    assert "ours" not in sources


def test_a_broken_folder_is_a_fault_and_hides_no_other(alone: Path, write: Write) -> None:
    """The session opens with the skills that are whole, and the fault names file and field."""
    write(config.home() / "skills", "bad", page="---\nname: bad\n---\n")
    write(config.home() / "skills", "good")
    found = discover()
    assert found.registry.names == ("good",)
    [fault] = found.faults
    assert fault.startswith(f"{config.home()}/skills/bad/SKILL.md: description: it is missing")
    with pytest.raises(cave.SkillError, match="description: it is missing"):
        discover(config.home() / "skills" / "bad")


def test_what_cave_keeps_is_never_part_of_a_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A trusted folder with the home of cave in it is not opened: keys are there."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setenv("CAVE_HOME", str(tmp_path.parent / "kept"))
    assert trust.readable(tmp_path) is None
    trust.trust(tmp_path)
    assert trust.readable(tmp_path) == tmp_path.resolve()
    monkeypatch.setenv("CAVE_HOME", str(tmp_path / "kept"))
    trust.trust(tmp_path)
    assert trust.readable(tmp_path) is None
