"""Skills in folders, to the Agent Skills standard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cave
from cave.skills import FolderSkill, frontmatter, load
from cave.skills.folder import check

from .conftest import SCRIPT, Write

FULL = """---
name: ledger-close
description: >
  Closes the month. Use when
  a period is to be closed.
license: Apache-2.0
compatibility: Needs the warehouse
metadata:
  author: us
  version: "1.4.0"
allowed-tools: Bash(git:*) Read
---

# Closing

Do this, then that.
"""


def test_a_page_has_what_the_standard_names(tmp_path: Path, write: Write) -> None:
    """All fields are read; the version is that of the metadata."""
    skill = FolderSkill.at(write(tmp_path, "ledger-close", page=FULL))
    assert skill.name == "ledger-close"
    assert skill.description == "Closes the month. Use when a period is to be closed."
    assert skill.page.license == "Apache-2.0"
    assert skill.page.compatibility == "Needs the warehouse"
    assert skill.page.metadata == {"author": "us", "version": "1.4.0"}
    assert skill.page.allowed_tools == ("Bash(git:*)", "Read")
    assert skill.version == "1.4.0"
    assert skill.body == "# Closing\n\nDo this, then that."


def test_tools_may_be_a_list_and_names_of_any_alphabet(tmp_path: Path, write: Write) -> None:
    """The standard allows both, and lowercase letters of other alphabets."""
    page = "---\nname: abschlüsse\ndescription: d\nallowed-tools:\n - Read\n - Grep\n---\n"
    skill = FolderSkill.at(write(tmp_path, "abschlüsse", page=page))
    assert skill.page.allowed_tools == ("Read", "Grep")


def test_scripts_run_when_their_functions_are_wanted(tmp_path: Path, write: Write) -> None:
    """The catalogue and the list of names run nothing; the functions run each script once."""
    mark = tmp_path / "ran"
    source = SCRIPT.format(function="add", says="Add one.")
    source += f"\nwith open({str(mark)!r}, 'a') as f:\n    f.write('x')\n"
    skill = FolderSkill.at(write(tmp_path, "adding", adder=source))
    assert skill.offers == ("add",)
    assert skill.files == ("scripts/adder.py",)
    assert not mark.exists()
    assert [f.name for f in skill.functions] == ["add"]
    assert skill.functions[0](1) == 2
    assert skill.functions is skill.functions
    assert mark.read_text() == "x"


def test_the_text_is_body_functions_and_files(tmp_path: Path, write: Write) -> None:
    """What use_skill shows: instructions, signatures with their first sentence, other files."""
    folder = write(tmp_path, "adding", adder=SCRIPT.format(function="add", says="Add one."))
    (folder / "references").mkdir()
    (folder / "references" / "more.md").write_text("more")
    (folder / ".hidden").write_text("no")
    text = FolderSkill.at(folder).text
    assert text.startswith(f"# Skill adding ({folder})\n\n# adding\n\nDo it.")
    assert "- `add(x: int) -> int`: Add one." in text
    assert "- references/more.md" in text
    assert "hidden" not in text


def test_scripts_of_two_skills_do_not_meet(tmp_path: Path, write: Write) -> None:
    """Neighbours of one name are each their own skill's; none stays importable."""
    for name, value in (("one", 1), ("two", 2)):
        main = (
            "import cave\nfrom helper_of_it import VALUE\n"
            "@cave.skill\ndef f() -> int:\n    'v'\n    return VALUE\n"
        )
        write(tmp_path, name, main=main, helper_of_it=f"VALUE = {value}\n")
    one, two = load(tmp_path)
    assert isinstance(one, FolderSkill)
    assert isinstance(two, FolderSkill)
    assert [one.functions[0](), two.functions[0]()] == [1, 2]
    assert "helper_of_it" not in sys.modules
    assert not any("main" in name and "one" in name for name in sys.modules)


FAULTS = {
    "no page": (None, "file: there is no such file"),
    "no matter": ("# Hello\n", "front matter: there is none; begin the file with a line of ---"),
    "open matter": ("---\nname: x\n", "front matter: it has no end"),
    "yaml": ("---\nname: x\ndescription: a: b\n---\n", "front matter: it is not YAML (line 3"),
    "no fields": ("---\n---\n", "front matter: it has no fields"),
    "a list": ("---\n- a\n---\n", "front matter: it has no fields"),
    "no name": ("---\ndescription: d\n---\n", "name: it is missing; write name: x"),
    "no description": ("---\nname: x\n---\n", "description: it is missing; say what"),
    "empty description": ("---\nname: x\ndescription: ' '\n---\n", "description: it is ' '"),
    "long description": (
        f"---\nname: x\ndescription: {'d' * 1025}\n---\n",
        "description: it has 1025 characters; 1024 is the most",
    ),
    "other folder": ("---\nname: y\ndescription: d\n---\n", "name: 'y' is not the name of its"),
    "upper": ("---\nname: X\ndescription: d\n---\n", "name: 'X' is not allowed"),
    "hyphens": ("---\nname: x--y\ndescription: d\n---\n", "name: 'x--y' is not allowed"),
    "hyphen first": ("---\nname: -x\ndescription: d\n---\n", "name: '-x' is not allowed"),
    "space": ("---\nname: x y\ndescription: d\n---\n", "name: 'x y' is not allowed"),
    "long name": (f"---\nname: {'x' * 65}\ndescription: d\n---\n", "name: it has 65 characters"),
    "number": ("---\nname: 7\ndescription: d\n---\n", "name: it is 7, not a text"),
    "unknown": ("---\nname: x\ndescription: d\nverison: 1\n---\n", "verison: the standard has no"),
    "compatibility": (
        f"---\nname: x\ndescription: d\ncompatibility: {'c' * 501}\n---\n",
        "compatibility: it has 501 characters",
    ),
    "license": ("---\nname: x\ndescription: d\nlicense: [a]\n---\n", "license: it is ['a']"),
    "metadata": ("---\nname: x\ndescription: d\nmetadata: a\n---\n", "metadata: it is 'a', not a"),
    "metadata value": (
        "---\nname: x\ndescription: d\nmetadata:\n  version: 1.0\n---\n",
        'metadata.version: it is 1.0, not a text; quote it: version: "1.0"',
    ),
    "version": (
        "---\nname: x\ndescription: d\nmetadata:\n  version: '1.0'\n---\n",
        "metadata.version: '1.0' is not a semantic version",
    ),
    "tools": ("---\nname: x\ndescription: d\nallowed-tools: {a: b}\n---\n", "allowed-tools: it"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_each_fault_of_a_page_is_named_by_file_and_field(case: str, tmp_path: Path) -> None:
    """`check` tells it, and loading raises it as a SkillError."""
    page, told = FAULTS[case]
    folder = tmp_path / "x"
    folder.mkdir()
    if page is not None:
        (folder / "SKILL.md").write_text(page)
    faults = [str(fault) for fault in check(folder)]
    assert faults[0].startswith(f"{folder / 'SKILL.md'}: {told}")
    with pytest.raises(cave.SkillError) as caught:
        FolderSkill.at(folder)
    assert str(caught.value).startswith(faults[0])


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    """A page with several is checked to its end; loading says how many more there are."""
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: Y\nfoo: 1\n---\n")
    assert {fault.field for fault in frontmatter.read(folder)[1]} == {"name", "description", "foo"}
    with pytest.raises(cave.SkillError, match="and 2 more: cave skills check"):
        load(folder)


def test_a_page_may_begin_with_a_mark_and_end_lines_as_windows(tmp_path: Path) -> None:
    """A byte-order mark and CRLF are no faults."""
    folder = tmp_path / "x"
    folder.mkdir()
    text = "\ufeff---\r\nname: x\r\ndescription: d\r\n---\r\nBody\r\n"
    (folder / "SKILL.md").write_bytes(text.encode())
    assert FolderSkill.at(folder).body == "Body"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import cave\nraise RuntimeError('no server')\n", r"bad\.py:2: .*RuntimeError: no server"),
        ("import cave\ndef f(:\n", r"bad\.py:2: skill 'x': the script raised SyntaxError"),
        ("import not_installed_here\n", r"bad\.py:1: .* No module named 'not_installed_here'"),
        (
            "import cave\n@cave.skill\ndef f(x: Undefined): ...\n",
            r"(bad\.py:2: skill 'f', function 'f', parameter 'x'|bad\.py:3: .*NameError)",
        ),
        (
            "import cave\n@cave.skill(effect='some')\ndef f(x: int): ...\n",
            r"bad\.py:2: .*effect is",
        ),
    ],
)
def test_a_script_that_fails_is_named_with_its_line(
    source: str, told: str, tmp_path: Path, write: Write
) -> None:
    """The error names script, line, skill and cause; `check` finds it too."""
    folder = write(tmp_path, "x", bad=source)
    skill = FolderSkill.at(folder)
    with pytest.raises(cave.SkillError, match=told):
        _ = skill.functions
    [fault] = check(folder)
    assert fault.file == folder / "scripts" / "bad.py"


def test_two_functions_of_one_name_in_a_folder_are_refused(tmp_path: Path, write: Write) -> None:
    """Nobody could say which is meant: both places are named."""
    source = SCRIPT.format(function="add", says="Add.")
    folder = write(tmp_path, "x", a=source, b=source)
    with pytest.raises(cave.SkillError, match=r"b\.py:4: .*two functions 'add'.*a\.py:4"):
        _ = FolderSkill.at(folder).functions
    assert [fault.field for fault in check(folder)] == ["add"]


def test_check_wants_docstrings(tmp_path: Path, write: Write) -> None:
    """An operator that is told nothing of a function cannot use it."""
    folder = write(tmp_path, "x", a=SCRIPT.format(function="add", says=""))
    assert [str(f).partition(": ")[2] for f in check(folder)] == [
        "add: it has no docstring; say in it what it does and when to use it"
    ]
