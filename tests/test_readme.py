"""The README's own commands and programs run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from ._cli import cave

README = Path(__file__).parents[1] / "README.md"
OPERATOR = """
steps = [
    ("Sum by region", "top = sales.groupby('region').amount.sum().nlargest(5)\\ntop"),
    ("Name the first", "print(top.index[0])"),
]
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def sales() -> pd.DataFrame:
    return pd.DataFrame({"region": ["north", "south", "north"], "amount": [1.0, 5.0, 2.5]})


@pytest.fixture
def desk(tmp_path: Path, sessions: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README's reader has, and a scripted model."""
    monkeypatch.chdir(tmp_path)
    sales().to_csv("sales.csv", index=False)
    Path("report.py").write_text("print(sales.amount.mean())\n", encoding="utf-8")
    Path("steps.py").write_text(OPERATOR, encoding="utf-8")
    Path("out").mkdir()
    monkeypatch.setenv("CAVE_MODEL", f"script:{tmp_path / 'steps.py'}")
    return tmp_path


def test_the_python_of_the_readme_runs(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its Python blocks, one after the other, give what their text says."""
    names: dict[str, object] = {"sales": sales()}
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), names)
    out = capsys.readouterr().out
    assert "south" in out
    assert names["top"].index[0] == "south"  # type: ignore[attr-defined]
    assert "4950" in out
    assert (desk / "story.ipynb").is_file()
    assert re.search(r"^cell \d+ ok$", out, re.MULTILINE)


def test_the_commands_of_the_readme_run(desk: Path) -> None:
    """Its `cave` commands exit with 0, and the table taken out is right."""
    commands = [
        line.removeprefix("$ ")
        for block in blocks("console")
        for line in block.splitlines()
        if line.startswith("$ cave ")
    ]
    assert len(commands) >= 6
    for command in commands:
        cave(*shlex.split(command)[1:])
    assert pd.read_csv("top.csv").iloc[0, 0] == "south"


def test_every_setting_and_operator_is_in_the_readme() -> None:
    """The README names the settings that exist, and the table of models the operators."""
    from dataclasses import fields

    from cave.config import Settings

    text = README.read_text(encoding="utf-8")
    missing = [f.name for f in fields(Settings) if f"`{f.name}`" not in text]
    assert not missing
    for spec in ("anthropic", "openai:", "llama:", "script:", "human"):
        assert f"`{spec}" in text


def test_every_layer_and_all_that_is_open_is_in_the_readme() -> None:
    """The README's table has the layers that there are, in order, and its list what none stops."""
    from cave.inkernel.confine import LAYERS
    from cave.kernel.confinement import left_open

    text = README.read_text(encoding="utf-8").partition("## What holds, and what does not")[2]
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == ("environment", *LAYERS)
    assert not [name for name in left_open(another_user=False) if f"`{name}`" not in text]
