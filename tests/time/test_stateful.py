"""Stateful sessions whose kernel is killed after every cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cave

from ._kill import kill

pytestmark = pytest.mark.usefixtures("sessions")


CASES = json.loads((Path(__file__).parent / "stories.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("story", CASES)
def test_a_story_survives_a_kill_after_every_cell(story: str) -> None:
    """Every check of the story holds after its cell, again after a kill, and nothing that was
    lost goes unnamed."""
    s = cave.open(f"story-{story}")
    for turn in CASES[story]:
        asked, check = turn["asked"], turn["check"]
        s.run("\n".join(turn["cell"])).raise_for_error()
        assert s.run(f"print(bool({check}))").text.strip() == "True", asked
        kill(s)
        assert s.run(f"print(bool({check}))").text.strip() == "True", asked
        lost = {e.name for e in s.last_restore.lost} if s.last_restore else set()
        assert lost <= {"g"}
