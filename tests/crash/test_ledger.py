"""The ledger alone, without kernels: owners that are killed, paused, or too slow for their lease.

The outside must have each effect once, whoever made it. The same rounds are run with each
protection taken away, and must then fail. `CAVE_CRASH_SEED` repeats a sweep; `scripts/crash
ROUNDS` makes a long one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from . import ledger_worker, world
from .conftest import Host, wait_until
from .test_effects import stopped

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
KILLS = 50 * int(os.environ.get("CAVE_CRASH_ROUNDS") or 2)
PARTS = max(2, KILLS // 500)
"""Sweeps of their own, for the workers of a long run."""

WORK = """
from cave import failpoints
{arm}
from tests.crash import ledger_worker
print('go', flush=True)
ledger_worker.run({home!r}, {mutant!r}, {slow!r}, {pause!r})
"""
POINTS = (
    "effect.before_intent", "effect.after_intent", "effect.before_call", "effect.after_call",
    "effect.before_result", "effect.after_result", "store.before_commit", "store.after_commit",
)  # fmt: skip


class Sweep:
    """Owners of one session after another, and what the outside has of them."""

    def __init__(self, host: Callable[..., Host], folder: Path, mutant: str = "") -> None:
        self._host = host
        self._folder = folder
        self._mutant = mutant
        self.made = 0
        self.effects = 0
        """Those of sessions that are finished."""
        self.begin()

    def begin(self) -> None:
        """A new session and an empty outside."""
        self.made += 1
        self.home = self._folder / f"home{self.made}"
        self.home.mkdir()
        os.environ["WORLD"] = str(self.home / "world.db")

    def owner(self, *, arm: str = "", slow: float = 0.0, pause: int = 0) -> Host:
        """A process that goes on with the session."""
        armed = f"failpoints.arm({arm})" if arm else ""
        return self._host(
            WORK.format(arm=armed, home=str(self.home), mutant=self._mutant, slow=slow, pause=pause)
        )

    def doubled(self) -> list[str]:
        """What the outside has more than once."""
        return [
            key for key, count in Counter(key for key, _, _ in world.rows()).items() if count > 1
        ]

    def finish(self) -> list[str]:
        """Let an owner do all that is left; what is wrong then."""
        last = self.owner()
        assert last.end(120, keep=True) == 0, last.rest()
        wanted = Counter(
            (skill, f"{n}{lane}.{i}")
            for n in range(1, ledger_worker.CELLS + 1)
            for lane, skills in ledger_worker._calls(n)
            for i, skill in enumerate(skills.split(), 1)
            if skill != "price"
        )
        had = Counter((skill, item) for _, skill, item in world.rows())
        self.effects += had.total()
        shutil.rmtree(self.home)
        return [f"{what}: {count}" for what, count in ((had - wanted) + (wanted - had)).items()]


@pytest.fixture
def sweep(
    host: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Sweep]:
    """Begins sweeps."""
    monkeypatch.setenv("WORLD", "")
    return lambda mutant="": Sweep(host, tmp_path, mutant)


def kill(sweep: Sweep, chance: random.Random) -> bool:
    """One owner is killed, at a failpoint or at any moment; whether it was before its end."""
    if chance.random() < 0.7:
        point, after = chance.choice(POINTS), chance.randrange(1, 9)
        owner = sweep.owner(arm=f"{point!r}, 'kill', after={after}")
        return owner.end(120) == -signal.SIGKILL
    owner = sweep.owner()
    owner.wait_for("go")
    time.sleep(chance.uniform(0, 0.4))
    if owner.ended:
        return False
    owner.kill()
    return True


@pytest.mark.timeout(300 + 5 * KILLS // PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_owners_do_everything_once(sweep: Callable[..., Sweep], part: int) -> None:
    """Owners killed at random: no effect twice, none lost, and each recorded as it was."""
    chance, kills, killed = random.Random(SEED + part), KILLS // PARTS, 0
    print(f"seed {SEED}, part {part}")
    at = sweep()
    while killed < kills:
        if kill(at, chance):
            killed += 1
        if chance.random() < 0.2:
            assert at.finish() == []
            at.begin()
    assert at.finish() == []
    print(f"{killed} owners killed in {at.made} sessions: {at.effects} effects, each done once")


def paused(sweep: Sweep) -> list[str]:
    """An owner stands still right before a call; another one takes over; it goes on."""
    # in the second cell, whose calls come one after the other: nothing else is under way
    first = sweep.owner(pause=2)
    wait_until(lambda: first.ended or stopped(first.pid))
    second = sweep.owner()
    second.end(120)
    first.send(signal.SIGCONT)
    first.end(120)
    return sweep.doubled() or sweep.finish()


def too_slow(sweep: Sweep) -> list[str]:
    """An owner is in a call when its lease ends, and another one takes over."""
    first = sweep.owner(slow=1.0)
    first.wait_for("go")
    second = sweep.owner(slow=1.0)
    second.end(120)
    first.end(120)
    return sweep.doubled() or sweep.finish()


def test_a_paused_owner_doubles_nothing(sweep: Callable[..., Sweep]) -> None:
    """It finds out that it was relieved before it calls."""
    assert paused(sweep()) == []


def test_an_owner_that_is_too_slow_is_waited_for(sweep: Callable[..., Sweep]) -> None:
    """A new owner settles nothing while the old one may still be at it."""
    assert too_slow(sweep()) == []


@pytest.mark.parametrize("mutant", ["no intent", "result before call", "no fence", "no quiescence"])
def test_the_same_rounds_catch_each_mutant(sweep: Callable[..., Sweep], mutant: str) -> None:
    """Without any one of the protections the same rounds find effects doubled or lost."""
    at = sweep(mutant)
    if mutant == "no fence":
        assert paused(at)
    elif mutant == "no quiescence":
        # the second owner has half a second to come in: on a busy machine it may be late
        assert any(at.begin() or too_slow(at) for _ in range(5))
    else:
        for after in range(1, 6):
            owner = at.owner(arm=f"'effect.after_call', 'kill', after={after}")
            owner.end(120)
            early = at.owner(arm=f"'effect.before_call', 'kill', after={after}")
            early.end(120)
        assert at.doubled() or at.finish()
