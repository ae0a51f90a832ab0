"""%load_ext cave in IPython: %cave binds a session, %%ask asks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cave

pytestmark = pytest.mark.usefixtures("sessions")


@pytest.fixture
def shell() -> Iterator[Any]:
    """An IPython shell of its own, with the extension loaded."""
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "cave")
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def test_cave_binds_and_ask_brings_a_variable(shell: Any, tmp_path: Any) -> None:
    """%cave NAME binds `s`; %%ask -o VAR asks and puts VAR into the notebook."""
    steps = tmp_path / "steps.py"
    steps.write_text("steps = ['top = [3, 2, 1]']\n")
    shell.run_line_magic("cave", f"magic --model script:{steps}")
    assert shell.user_ns["s"] is cave.open("magic")
    turn = shell.run_cell_magic("ask", "-o top", "the best three?\n")
    assert turn.status == "done"
    assert shell.user_ns["top"] == [3, 2, 1]


def test_wrong_lines_say_what_to_type(shell: Any) -> None:
    """A magic with wrong words is a ConfigError with the right ones."""
    with pytest.raises(cave.ConfigError, match="%cave NAME"):
        shell.run_line_magic("cave", "")
    shell.run_line_magic("cave", "words")
    with pytest.raises(cave.ConfigError, match="%%ask"):
        shell.run_cell_magic("ask", "what is this", "x")
