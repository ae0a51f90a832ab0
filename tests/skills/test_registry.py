"""Loading by object, module, folder and package; names that hide each other."""

from __future__ import annotations

import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

import cave
from cave.skills import FolderSkill, Registry, ShadowWarning, load

from .conftest import SCRIPT, Write


@cave.skill
def first(x: int) -> int:
    """The first."""
    return x


def bare(x: int) -> int:
    """A plain function."""
    return x


def module(name: str, **values: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(values)
    return made


def test_everything_that_holds_skills_can_be_loaded(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects, functions, modules, folders, folders of folders, files, packages, lists."""
    write(tmp_path / "many", "one")
    write(tmp_path / "many", "two")
    (tmp_path / "file.py").write_text(SCRIPT.format(function="in_file", says="f"))
    package = tmp_path / "pack_of_skills"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text(SCRIPT.format(function="in_package", says="p"))
    (package / "sub" / "__init__.py").write_text(SCRIPT.format(function="in_sub", says="s"))
    write(package / ".agents" / "skills", "shipped")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def names(*things: Any) -> list[str]:
        return [entry.name for entry in load(*things)]

    assert names(first) == ["first"]
    assert names(bare) == ["bare"]
    assert names(module("m", a=first, b=1)) == ["first"]
    assert names(tmp_path / "many" / "one") == ["one"]
    assert names(str(tmp_path / "many")) == ["one", "two"]
    assert names("many/two", ["./many/one"]) == ["two", "one"]
    assert names("file.py") == ["in_file"]
    assert names("pack_of_skills") == ["in_package", "shipped"]
    assert names("pack_of_skills.sub") == ["in_sub"]
    assert names(FolderSkill.at("many/one"), (first,)) == ["one", "first"]
    for name in [n for n in sys.modules if n.startswith("pack_of_skills")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        (3, "3 is not a skill; give a function, a module"),
        ("no_such_module_here", "no module and no folder 'no_such_module_here'"),
        ("./nowhere", "there is no folder 'nowhere'"),
        (Path("/nowhere"), "there is no folder '/nowhere'"),
        ("textwrap", "module 'textwrap' has no skills; decorate"),
        (textwrap, "module 'textwrap' has no skills"),
    ],
)
def test_what_cannot_be_loaded_is_named(thing: Any, told: str) -> None:
    """The error says what was given and what can be."""
    with pytest.raises(cave.SkillError, match=told):
        load(thing)


def test_a_folder_without_skills_and_a_module_that_raises_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SKILL.md anywhere below, or an exception while it is imported."""
    with pytest.raises(cave.SkillError, match=r"has no SKILL\.md, nor has one below"):
        load(tmp_path)
    (tmp_path / "raises_at_import.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(cave.SkillError, match="'raises_at_import' cannot be imported: RuntimeErr"):
        load("raises_at_import")
    (tmp_path / "needs_more.py").write_text("import absent_thing\n")
    with pytest.raises(cave.SkillError, match="'needs_more' cannot be imported: ModuleNotFound"):
        load("needs_more")


def test_a_registry_is_read_by_name() -> None:
    """Iteration, length, membership, get, and the nearest name for a wrong one."""
    registry = Registry(first, bare)
    assert registry.names == ("first", "bare")
    assert [entry.name for entry in registry] == ["first", "bare"]
    assert registry["first"] is first
    assert len(registry) == 2
    assert "bare" in registry
    assert "none" not in registry
    assert registry.get("none") is None
    with pytest.raises(cave.SkillError, match="no skill 'frist'; did you mean 'first'"):
        registry["frist"]
    assert registry.catalogue == "- first: The first.\n- bare: A plain function."


def named(name: str, where: str) -> cave.Skill:
    space: dict[str, Any] = {"cave": cave, "__name__": where}
    source = f"@cave.skill\ndef {name}(x: int) -> int:\n    '''from {where}'''\n    return x\n"
    exec(compile(source, f"{where}.py", "exec"), space)
    made: cave.Skill = space[name]
    return made


def test_later_skills_hide_earlier_ones_and_say_so() -> None:
    """The warning names both places, and so do conflicts()."""
    registry = Registry(named("f", "a"), first)
    with pytest.warns(ShadowWarning, match=r"skill 'f' of b\.py:1 hides the one of a\.py:1"):
        registry.add(named("f", "b"))
    assert registry["f"].description == "from b"
    [conflict] = registry.conflicts()
    assert str(conflict) == "f: b.py:1 is used, hiding a.py:1"


def test_a_skill_that_is_defined_again_takes_its_place_in_silence() -> None:
    """A cell that is run twice is no conflict."""
    registry = Registry(named("f", "a"))
    again = named("f", "a")
    registry.add(again)
    assert registry["f"] is again
    assert registry.conflicts() == ()


def test_two_of_one_name_in_one_place_are_refused() -> None:
    """Given together, neither can be meant to hide the other."""
    with pytest.raises(cave.SkillError, match=r"called 'f': a\.py:1 and b\.py:1; rename one"):
        Registry(named("f", "a"), named("f", "b"))


def test_folders_come_into_use_one_after_the_other(tmp_path: Path, write: Write) -> None:
    """Found folders are in the catalogue; their functions can be called once they are used."""
    one = write(tmp_path, "one", s=SCRIPT.format(function="add", says="One's."))
    two = write(tmp_path, "two", s=SCRIPT.format(function="add", says="Two's."))
    registry = Registry(first)
    registry.add(one, two, source="user", active=False)
    assert [skill.name for skill in registry.functions] == ["first"]
    assert "add" not in registry
    assert "`add(x: int) -> int`: One's." in registry.use("one")
    assert registry.functions[-1].description == "One's."
    assert registry["add"].description == "One's."
    with pytest.warns(ShadowWarning, match="function 'add' of .*two.* hides the one of .*one"):
        registry.use("two")
    assert registry["add"].description == "Two's."
    assert [c.name for c in registry.conflicts()] == ["add"]
    assert registry.use("first") == "`first(x: int) -> int`\n\nThe first."


def test_given_folders_are_in_use_at_once(tmp_path: Path, write: Write) -> None:
    """Who names a folder wants its functions."""
    folder = write(tmp_path, "one", s=SCRIPT.format(function="add", says="One's."))
    registry = Registry(folder)
    assert [skill.name for skill in registry.functions] == ["add"]
