"""House rules that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 600
"""Lines of the longest file that somebody still reads."""


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def test_every_test_states_its_contract() -> None:
    """Each test function has a docstring that says what is promised."""
    silent = [
        f"{name}:{node.lineno} {node.name}"
        for name, text in sources("tests")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert not silent


def test_no_file_is_too_long_to_read() -> None:
    """No file of the package has more than 600 lines."""
    lengths = {name: len(text.splitlines()) for name, text in sources("cave")}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST}
