"""Folders of skills, and a world in which only the test's are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Write = Callable[..., Path]
SCRIPT = '''
import cave

@cave.skill
def {function}(x: int) -> int:
    """{says}"""
    return x + 1
'''


@pytest.fixture
def write() -> Write:
    """Write a folder of a skill."""

    def make(place: Path, name: str, *, page: str | None = None, **scripts: str) -> Path:
        folder = place / name
        (folder / "scripts").mkdir(parents=True)
        text = page or f"---\nname: {name}\ndescription: About {name}.\n---\n# {name}\n\nDo it.\n"
        (folder / "SKILL.md").write_text(text, encoding="utf-8")
        for script, source in scripts.items():
            (folder / "scripts" / f"{script}.py").write_text(source, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def world(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project that is the current folder, and a user whose folder is `user` beside it."""
    project, user = tmp_path / "project", tmp_path / "user"
    project.mkdir()
    user.mkdir()
    (project / "pyproject.toml").touch()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(user))
    return project
