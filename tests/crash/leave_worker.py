"""A call that waits for leave, without a kernel: its owner, and people who answer.

`own(home)` goes on from the journal until the cell of the call has ended; `answer(home, yes)` is
one person. Each may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import cave
from cave import SkillContext
from cave.broker import Asking, Broker, Codec, Rules, quiescence
from cave.broker.pen import Pen
from cave.errors import LeaseLost, SessionBusy
from cave.events import ApprovalRequested, CellFinished, CellStarted, SessionOpened
from cave.history import History
from cave.journal import Journal
from cave.policy.answering import Answer, decoded
from cave.ports import Encoded, SkillCall, SystemClock
from cave.skills import Skill
from cave.store import SQLStore, this_process
from cave.store.blobs import FolderBlobs
from tests.crash import world

LEASE = 0.4
"""Seconds that a lease holds."""
POLL = 0.003
"""Seconds between looks at what others have done."""
ARGUMENTS = {"item": "rent"}


def _found(call: Any) -> str | None:
    return "mailed" if world.was_done(call.idempotency_key) else None


@cave.skill(effect="write", runs="host", approval="always", in_doubt=_found)
def letter(item: str, ctx: SkillContext) -> str:
    """A letter, which somebody has to approve."""
    return world.do(ctx.idempotency_key, "letter", item)


class _Cell:
    def note(self, text: str) -> None: ...

    async def get(self, name: str) -> Any: ...

    async def put(self, values: Any) -> None: ...


class _Offer:
    def find(self, name: str, hash: str) -> Skill | None:
        return letter


def _encode(value: Any) -> Encoded:
    return Encoded("safe", json.dumps(value).encode())


def _digest(value: Encoded) -> str:
    return hashlib.sha256(value.header).hexdigest()


def own(home: str) -> None:
    """Make the call as the owner of the session, until its cell has ended."""
    quiescence.LAG, quiescence.DRIFT = LEASE / 2, 0.05
    asyncio.run(_own(Path(home)))


async def _own(home: Path) -> None:
    clock, owner = SystemClock(), this_process()
    store = SQLStore(home / "cave.db", lease_ttl=LEASE, clock=clock)
    journal = Journal(store, "q3", owner, History(), clock)
    blobs = FolderBlobs(home / "blobs")
    pen = Pen(journal, blobs, owner=owner, kernel=lambda: owner.pid, encode=_encode)
    codec = Codec(_encode, lambda value: json.loads(value.header), _digest)
    broker = Broker(pen, _Offer(), Asking(pen, Rules, codec, lambda _: letter))
    await store.create("q3")
    try:
        async with journal.operation(wait=20.0):
            await _work(journal, broker)
            print("finished", flush=True)
    except (LeaseLost, SessionBusy) as error:
        print(f"lost: {error}", flush=True)
    await store.close()


async def _work(journal: Journal, broker: Broker) -> None:
    if journal.history.opened is None:
        await journal.append(SessionOpened(version="0", uid="race"))
    if not journal.history._started:
        await journal.append(CellStarted(cell=1, source="letter('rent')"))
    digest = _digest(_encode(ARGUMENTS))
    call = SkillCall("c1", "letter", letter.hash, 1, "", 1, "call", ARGUMENTS, digest)
    while 1 not in journal.history.cells:
        broker.began(1)
        answer = await broker.answer(call, _Cell())
        if answer.fault is not None and answer.fault.name == "ApprovalRequired":
            await asyncio.sleep(POLL)
            continue
        ok = answer.fault is None
        ended = CellFinished(cell=1, status="ok" if ok else "error", error=answer.fault)
        await journal.append(ended)


def answer(home: str, yes: bool) -> None:
    """Say yes or no as soon as one is asked, and say whose answer counts."""
    asyncio.run(_answer(Path(home), yes))


async def _answer(home: Path, yes: bool) -> None:
    store = SQLStore(home / "cave.db")
    await store.create("q3")
    while True:
        asked = [e async for e in store.read("q3") if isinstance(e, ApprovalRequested)]
        if asked:
            break
        await asyncio.sleep(POLL)
    mine = Answer(
        state="approved" if yes else "denied", digest=asked[0].digest, actor=str(os.getpid())
    )
    counts = await store.answer("q3", asked[0].approval, mine.encoded())
    assert counts is not None
    said = decoded(counts)
    print("counts", said.actor, said.state, flush=True)
    await store.close()
