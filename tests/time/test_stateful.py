"""Stateful sessions whose kernel is killed after every cell."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import cave

from ._kill import kill

# cells that no snapshot has are lost where nothing confines them; confined ones run again
pytestmark = pytest.mark.usefixtures("sessions", "unconfined")


CASES = json.loads((Path(__file__).parent / "stories.json").read_text(encoding="utf-8"))


def test_stories_survive_a_kill_after_every_cell() -> None:
    """Stories that go on side by side in one session: every check holds after its cell, again
    after a kill, and nothing that was lost goes unnamed."""
    s = cave.open("stories")
    for row in itertools.zip_longest(*CASES.values()):
        turns = [turn for turn in row if turn is not None]
        for turn in turns:
            s.run("\n".join(turn["cell"])).raise_for_error()
            assert holds(s, turn), turn["asked"]
        kill(s)
        for turn in turns:
            assert holds(s, turn), turn["asked"]
        lost = {e.name for e in s.last_restore.lost} if s.last_restore else set()
        assert lost <= {"g"}


def holds(s: cave.Session, turn: dict[str, Any]) -> bool:
    """Whether the check of a turn is true."""
    return s.run(f"print(bool({turn['check']}))").text.strip() == "True"
