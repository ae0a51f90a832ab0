"""Sessions in processes of their own spend from one budget and are killed: it is never passed.

`CAVE_CRASH_SEED` repeats the sweep; `scripts/crash ROUNDS` makes as many of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cave.facts import Amount
from cave.shared import Account
from cave.spending import uid_of
from cave.store import SQLStore

from . import budget_worker
from .conftest import Host

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
SWEEPS = int(os.environ.get("CAVE_CRASH_ROUNDS") or 2)
LIMIT = 30_000
SESSIONS = ("left", "right")
POINTS = (
    "step.before_row", "step.before_settle", "store.before_commit", "store.after_commit",
)  # fmt: skip

SCRIPT = """
from cave import failpoints
{arm}
from tests.crash import budget_worker
budget_worker.spend({home!r}, {session!r})
"""


def sweep(host: Callable[..., Host], home: Path, chance: random.Random) -> int:
    """Two sessions until the budget is spent; how often one was killed."""

    def started(session: str) -> Host:
        point = chance.choice(POINTS) if chance.random() < 0.7 else ""
        skip = chance.randrange(1, 12)
        arm = f"failpoints.arm({point!r}, 'kill', after={skip})" if point else ""
        return host(SCRIPT.format(arm=arm, home=str(home), session=session))

    asyncio.run(budget_worker.begin(home, LIMIT))
    running = {session: started(session) for session in SESSIONS}
    killed, deadline = 0, time.monotonic() + 240
    while running:
        assert time.monotonic() < deadline, "the budget is not spent"
        for session, one in list(running.items()):
            if not one.ended:
                if chance.random() < 0.01:
                    one.kill()
            elif one.end(keep=True) == 0:
                del running[session]
            else:
                killed += 1
                running[session] = started(session)
        time.sleep(0.01)
    return killed


async def accounts(home: Path) -> list[Account]:
    store = SQLStore(home / "cave.db")
    try:
        uids = [await uid_of(store, session) for session in SESSIONS]
        return [(await store.accounts(uid))[0] for uid in (budget_worker.ROOT, *uids)]
    finally:
        await store.close()


@pytest.mark.timeout(300 + 30 * SWEEPS)
def test_sessions_that_are_killed_never_pass_their_budget(
    host: Callable[..., Host], tmp_path: Path
) -> None:
    """What was asked of the model, by its own count, is never above the limit; the store counts
    at least that, and stops only when no further call fits."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    killed = calls = 0
    for number in range(SWEEPS):
        home = tmp_path / str(number)
        home.mkdir()
        killed += sweep(host, home, chance)
        costs = budget_worker.made(home / "calls")
        root, *sessions = asyncio.run(accounts(home))
        told = f"seed {SEED}, sweep {number}"
        assert sum(costs) <= root.spent.tokens + root.reserved.tokens <= LIMIT, told
        assert root.spent.tokens > LIMIT - budget_worker.LEAST, told
        assert root.reserved == Amount(), told
        assert sum(one.spent.tokens for one in sessions) == root.spent.tokens, told
        calls += len(costs)
    print(f"{SWEEPS} budgets, {calls} calls, {killed} kills: never passed")
    assert killed
