from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cave.store import SQLStore, this_process
from cave.testing.store import cells, journal
from tests._hosts import Program

Start = Callable[..., Program]


def check(database: Path, acknowledged: dict[str, int]) -> dict[str, int]:
    """Each session has what was acknowledged, is whole, and can be operated; gives its length."""

    async def main() -> dict[str, int]:
        store = SQLStore(database)
        found = {}
        for name, least in acknowledged.items():
            events = await journal(store, name)
            assert [e.seq for e in events] == list(range(1, len(events) + 1))
            assert len(events) >= least
            assert await store.verify(name) == []
            lease = await store.acquire(name, this_process())
            (event,) = await store.append(lease, cells(1), release=True)
            assert event.seq == len(events) + 1
            found[name] = len(events)
        await store.close()
        return found

    return asyncio.run(main())


def last_said(process: Program) -> list[str]:
    return process.communicate(timeout=30)[0].splitlines()


@pytest.mark.parametrize(
    ("point", "kept"), [("store.before_commit", False), ("store.after_commit", True)]
)
def test_a_kill_around_the_commit_keeps_what_was_acknowledged(
    database: Path, start: Start, point: str, kept: bool
) -> None:
    """kill -9 before the commit loses only that append; after it not even the unacknowledged."""
    process = start("append", "q3", CAVE_FAILPOINTS=f"{point}=kill@5")
    said = [int(line) for line in last_said(process)]
    assert process.returncode == -signal.SIGKILL
    assert said == [2, 5, 6, 8]
    assert check(database, {"q3": 8})["q3"] == (11 if kept else 8)


def test_random_kills_lose_nothing_acknowledged(database: Path, start: Start) -> None:
    """kill -9 at random moments: each journal is whole and has all that was acknowledged."""
    seed = int(os.environ.get("CAVE_CRASH_SEED", time.time_ns() % 2**32))
    print(f"CAVE_CRASH_SEED={seed}")
    moments = random.Random(seed)
    least = {f"s{n}": 0 for n in range(4)}
    for _ in range(int(os.environ.get("CAVE_CRASH_ROUNDS", "3"))):
        process = start("several", 4)
        first = process.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.4))
        process.kill()
        for line in [first, *last_said(process)]:
            name, _, seq = line.partition(" ")
            if seq.strip():
                least[name] = max(least[name], int(seq))
        begun = {name: n for name, n in least.items() if n}
        least.update({name: n + 1 for name, n in check(database, begun).items()})
    assert max(least.values()) > 10


def test_a_stopped_owner_is_refused_when_it_wakes(database: Path, start: Start) -> None:
    """A process stopped beyond its lease and resumed appends nothing more."""
    process = start("hold", "q3", LEASE_TTL="0.5")
    assert process.stdout.readline() == "held 1\n"
    process.send_signal(signal.SIGSTOP)

    async def take_over() -> int:
        store = SQLStore(database)
        lease = await store.acquire("q3", this_process(), wait=20)
        await store.append(lease, cells(1))
        count = (await store.info("q3")).events
        process.send_signal(signal.SIGCONT)
        out = await asyncio.to_thread(last_said, process)
        assert out[-1] == "lost 1"
        assert lease.number == 2
        assert (await store.info("q3")).events == count
        assert await store.verify("q3") == []
        await store.close()
        return count

    assert asyncio.run(take_over()) > 1
