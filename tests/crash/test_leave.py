"""Two people answer one approval at once, and anybody may be killed: one answer, one effect.

`CAVE_CRASH_SEED` repeats the races; `scripts/crash ROUNDS` runs five times as many.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cave.events import ApprovalSettled, CellFinished, Event
from cave.policy.answering import decoded
from cave.store import SQLStore

from . import world
from .conftest import Host

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
RACES = 5 * int(os.environ.get("CAVE_CRASH_ROUNDS") or 4)
PARTS = max(1, RACES // 250)
"""Series of their own, for the workers of a long run."""

OWNER_POINTS = (
    "approval.before_request", "approval.after_request", "approval.before_settled",
    "approval.after_settled", "effect.before_intent", "effect.after_intent",
    "effect.before_call", "effect.after_call", "effect.before_result", "effect.after_result",
)  # fmt: skip
PERSONS_POINTS = ("approval.before_answer", "approval.after_answer")

SCRIPT = """
from cave import failpoints
{arm}
from tests.crash import leave_worker
leave_worker.{work}
"""

Start = Callable[..., Host]


def started(host: Start, work: str, point: str = "") -> Host:
    """A process that does this, and is killed at the point, if one is named."""
    arm = f"failpoints.arm({point!r}, 'kill')" if point else ""
    return host(SCRIPT.format(arm=arm, work=work))


async def kept(home: Path) -> tuple[dict[str, bytes], list[Event]]:
    """The answers in the store, and the journal."""
    store = SQLStore(home / "cave.db")
    found = dict(await store.answers("q3")), [e async for e in store.read("q3")]
    await store.close()
    return found


def race(host: Start, home: Path, chance: random.Random) -> tuple[str, int]:
    """One approval, a yes and a no at once, kills; the answer that counts, and how many died."""

    def point(points: tuple[str, ...], share: float) -> str:
        return chance.choice(points) if chance.random() < share else ""

    said = [True, False]
    chance.shuffle(said)
    owner = started(host, f"own({str(home)!r})", point(OWNER_POINTS, 0.7))
    people = [
        started(host, f"answer({str(home)!r}, {yes})", point(PERSONS_POINTS, 0.3)) for yes in said
    ]
    if chance.random() < 0.3:
        time.sleep(chance.uniform(0, 0.1))
        chance.choice([owner, *people]).kill()
    killed, told = 0, []
    deadline = time.monotonic() + 240
    while not owner.ended or owner.end(keep=True) != 0:
        assert time.monotonic() < deadline, "the race does not end"
        if owner.ended:  # the next owner goes on
            killed += 1
            owner = started(host, f"own({str(home)!r})", point(OWNER_POINTS, 0.3))
        elif all(one.ended for one in people) and not asyncio.run(kept(home))[0]:
            people.append(started(host, f"answer({str(home)!r}, {chance.random() < 0.5})"))
        else:
            time.sleep(0.01)
    for one in people:
        if one.end(120, keep=True) == 0:
            told.append(one.rest().split()[-2:])
        else:
            killed += 1
    answers, events = asyncio.run(kept(home))
    assert list(answers) == ["a1"]
    counts = decoded(answers["a1"])
    assert all(line == [counts.actor, counts.state] for line in told), (told, counts)
    settled = [e for e in events if isinstance(e, ApprovalSettled)]
    assert {(e.state, e.actor) for e in settled} == {(counts.state, counts.actor)}
    (ended,) = [e for e in events if isinstance(e, CellFinished)]
    done = len(world.rows())
    assert (ended.status, done) == (("ok", 1) if counts.state == "approved" else ("error", 0))
    return counts.state, killed


@pytest.mark.timeout(300 + 10 * RACES // PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_of_two_who_answer_one_counts(
    host: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Whoever is killed and whenever: both are told the same, the journal has that answer, and
    the outside has the effect once after a yes, and never after a no."""
    chance = random.Random(SEED + part)
    print(f"seed {SEED}, part {part}")
    states: Counter[str] = Counter()
    killed = 0
    for n in range(RACES // PARTS):
        home = tmp_path / f"race{n}"
        home.mkdir()
        monkeypatch.setenv("WORLD", str(home / "world.db"))
        state, died = race(host, home, chance)
        states[state] += 1
        killed += died
        shutil.rmtree(home)
    print(
        f"{RACES // PARTS} races, {killed} killed: {dict(states)}, one answer and one effect each"
    )
    assert killed
