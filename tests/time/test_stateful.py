"""Stateful sessions whose kernel is killed after every cell, or every third outside of sweeps."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import cave

from ._kill import kill

# cells that no snapshot has are lost where nothing confines them; confined ones run again
pytestmark = pytest.mark.usefixtures("sessions", "unconfined")


EACH = 1 if os.environ.get("CAVE_CRASH_ROUNDS") else 3
"""Cells from one kill to the next; scripts/crash kills after every one."""
CASES = json.loads((Path(__file__).parent / "stories.json").read_text(encoding="utf-8"))


def test_stories_survive_kills_between_their_cells() -> None:
    """Stories that go on side by side in one session: every check holds after its cell, again
    after a kill, and nothing that was lost goes unnamed."""
    s = cave.open("stories")
    first = random.SystemRandom().randrange(EACH)
    for number, row in enumerate(itertools.zip_longest(*CASES.values()), first):
        turns = [turn for turn in row if turn is not None]
        for turn in turns:
            s.run("\n".join(turn["cell"])).raise_for_error()
            assert holds(s, turn), turn["asked"]
        if number % EACH == 0:
            kill(s)
        for turn in turns:
            assert holds(s, turn), turn["asked"]
        lost = {e.name for e in s.last_restore.lost} if s.last_restore else set()
        assert lost <= {"g"}


def holds(s: cave.Session, turn: dict[str, Any]) -> bool:
    """Whether the check of a turn is true."""
    return s.run(f"print(bool({turn['check']}))").text.strip() == "True"
