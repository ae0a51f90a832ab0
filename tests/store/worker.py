"""Processes that the tests of the store start, stop and kill: `worker.py VERB DATABASE ...`."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from cave.errors import CaveError, LeaseLost
from cave.events import CellStarted, ValuesDeleted
from cave.facts import Amount
from cave.store import SQLStore, this_process


def say(*words: object) -> None:
    print(*words, flush=True)


def cell(n: int) -> CellStarted:
    return CellStarted(cell=n, source="x = 1\n" * 20)


async def append(store: SQLStore, session: str) -> None:
    """Append for ever; say each number once it is acknowledged."""
    await store.create(session)
    lease = await store.acquire(session, this_process())
    for n in itertools.count(1):
        events = await store.append(lease, [cell(n)] * (1 + n % 3), sync=n % 7 == 0)
        say(events[-1].seq)


async def several(store: SQLStore, count: str) -> None:
    """As `append`, in several sessions at once; say session and number."""

    async def one(name: str) -> None:
        await store.create(name)
        lease = await store.acquire(name, this_process())
        for n in itertools.count(1):
            say(name, (await store.append(lease, [cell(n)], sync=n % 3 == 0))[-1].seq)

    await asyncio.gather(*(one(f"s{n}") for n in range(int(count))))


async def hold(store: SQLStore, session: str) -> None:
    """Append until the lease is lost, then say so."""
    await store.create(session)
    lease = await store.acquire(session, this_process())
    try:
        for n in itertools.count(1):
            await store.append(lease, [cell(n)])
            say("held", lease.number)
            await asyncio.sleep(0.01)
    except LeaseLost:
        say("lost", lease.number)


async def alternate(store: SQLStore, session: str, rounds: str, acquire: str) -> None:
    """Enter and leave, `rounds` times; without `acquire` trying the old lease first."""
    holder, lease = this_process(), None
    for _ in range(int(rounds)):
        entered = False
        while not entered:
            if lease is None or acquire == "always":
                lease = await store.acquire(session, holder, wait=30)
            try:
                await store.append(lease, [ValuesDeleted(names=("enter", str(os.getpid())))])
            except LeaseLost:
                lease = None
            else:
                entered = True
        assert lease is not None
        await asyncio.sleep(0)
        await store.append(lease, [ValuesDeleted(names=("leave", str(os.getpid())))], release=True)
        await asyncio.sleep(0.001)
    say("done")


async def answers(store: SQLStore, session: str, count: str) -> None:
    """Answer many approvals with the own pid, and say which answers count."""
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    mine = str(os.getpid()).encode()
    for n in range(1, int(count) + 1):
        counts = await store.answer(session, f"a{n}", mine)
        assert counts is not None
        say(n, counts.decode())


async def spend(store: SQLStore, budget: str, tokens: str) -> None:
    """Reserve and settle calls that cost half of what was reserved, until one is refused."""
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    needed, cost = Amount(tokens=int(tokens)), Amount(tokens=int(tokens) // 2)
    refused = 0
    for n in itertools.count(1):
        id = f"{os.getpid()}/{n}"
        if await store.reserve(id, budget, needed) is not None:
            refused += 1
            if refused == 20:
                break
            continue
        (account,) = await store.accounts(budget)
        assert account.spent.tokens + account.reserved.tokens <= account.limits.tokens
        await store.settle(id, cost)
        say(id)


async def create(store: SQLStore, session: str) -> None:
    """Open the database at the moment that a line comes, and say what came of it."""
    say("ready")
    sys.stdin.readline()
    try:
        say("made" if await store.create(session) else "found")
    except CaveError as fault:
        say(f"failed: {fault}")


async def main(verb: str, database: str, *arguments: str) -> None:
    store = SQLStore(database, lease_ttl=float(os.environ.get("LEASE_TTL", "30")))
    verbs = {f.__name__: f for f in (append, several, hold, alternate, answers, spend, create)}
    try:
        await verbs[verb](store, *arguments)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
