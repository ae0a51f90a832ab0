"""Every kind of object after kill -9, after a step back, and in its third life."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter

import pytest

from cave import home, tending

from . import _run

FULL = os.environ.get("CAVE_OBJECTS") == "full"
# what images carry is looked at, and not what confined cells would make again
pytestmark = [
    pytest.mark.usefixtures("sessions", "unconfined"),
    pytest.mark.timeout(3000 if FULL else 600),
]
LOTS = _run.lots(_run.kinds())
EVERY = 10 if FULL else 1000
"""Cells from one snapshot to the next; what is killed has one of its own."""
TRACKING = {"pages": "", "hashes": "hashes"} if FULL else {"pages": ""}
"""How kernels find what was written to: by page where the system can tell, or by hashing."""


@pytest.fixture(autouse=True)
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """None for idleness, and none inside a cell; see `EVERY` for those after one."""
    for name in ("QUIET", "LONGEST"):
        monkeypatch.setattr(tending, name, 3600.0)
    monkeypatch.setattr(home, "LEFT_ALONE", None)


@pytest.fixture(params=TRACKING, autouse=True)
def tracking(
    request: pytest.FixtureRequest, sessions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of the test track memory so; without a word they choose by themselves."""
    if TRACKING[request.param]:
        monkeypatch.setenv("CAVE_TRACKING", TRACKING[request.param])


@pytest.mark.parametrize("number", range(len(LOTS)))
def test_kinds_are_exact_rebuilt_or_lost_as_they_say(number: int) -> None:
    """Used after a death: what the report calls exact is so, what is not is named with a reason,
    and using what is lost raises. Outside of sweeps for two of three kinds, others each time."""
    left_out = None if FULL else random.SystemRandom().randrange(3)
    some = [kind for at, kind in enumerate(LOTS[number]) if at % 3 != left_out]
    outcome = _lived(some, None, ("kill", "back", "twice") if FULL else ("kill",))
    assert not outcome.wrong, "\n".join(outcome.wrong)


def test_kinds_survive_a_step_back_and_a_second_death() -> None:
    """Some of all kinds: used, brought back in place, killed twice and used again. Not those that
    end: attrs' classes hold the namespace that they were made in, and nothing ends beside them."""
    some = [kind for lot in LOTS for kind in lot if "gc.collect" not in kind.check]
    outcome = _lived(some[:: 1 if FULL else 24], None, ("back", "twice"), every=1000)
    assert not outcome.wrong, "\n".join(outcome.wrong)


def test_old_values_end_by_their_own_classes() -> None:
    """A step back ends what it replaces before it binds the new: what finalisers change is of
    the old world, also for what is held in a cycle."""
    ending = [kind for kind in _run.kinds("") if "class_with_del" in kind.prefix]
    outcome = _lived(ending, None, ("control", "back"))
    assert outcome.found == {("back", kind.name): "exact" for kind in ending}


@pytest.mark.skipif(not FULL, reason="scripts/crash runs it: CAVE_OBJECTS=full")
@pytest.mark.parametrize("number", range(len(LOTS)))
@pytest.mark.parametrize("python", _run.pythons() or [""])
def test_kinds_on_another_python(python: str, number: int) -> None:
    """The same on each interpreter that CAVE_TEST_PYTHONS lists."""
    if not python:
        pytest.skip("CAVE_TEST_PYTHONS lists no other Python")
    if not set(_run.NEEDED) <= _run.libraries(python):
        pytest.skip(f"{python} lacks one of {', '.join(_run.NEEDED)}")
    outcome = _lived(LOTS[number], python, ("kill", "back", "twice"))
    assert not outcome.wrong, "\n".join(outcome.wrong)


def _lived(
    lot: list[_run.Kind], python: str | None, modes: tuple[str, ...], every: int = EVERY
) -> _run.Outcome:
    there = _run.libraries(python or sys.executable)
    outcome = _run.Outcome()
    _run.live([kind for kind in lot if set(kind.needs) <= there], python, outcome, "kinds",
              modes=modes, every=every)  # fmt: skip
    counts = Counter((mode, found) for (mode, _), found in outcome.found.items())
    for (mode, found), count in sorted(counts.items()):
        print(f"{mode}: {count} {found}")
    return outcome
