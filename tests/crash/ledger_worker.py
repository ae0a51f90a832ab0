"""One owner of a session without a kernel: it makes the calls of cells and journals their ends.

`run(home, mutant)` goes on from the journal until all cells are done. Mutants take a protection
away, to show that the tests would notice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from cave import failpoints
from cave.broker import Asking, Broker, Codec, Rules, host, quiescence
from cave.broker.pen import Pen
from cave.errors import LeaseLost, SessionBusy
from cave.events import CellFinished, CellStarted, EffectSettled, SessionOpened
from cave.history import History
from cave.journal import Journal
from cave.ports import Encoded, SkillAnswer, SkillCall, SystemClock
from cave.skills import Skill
from cave.store import SQLStore, this_process
from cave.store.blobs import FolderBlobs
from tests.crash import world

CELLS = 4
LEASE = 0.4
"""Seconds that a lease holds."""


class _Cell:
    def note(self, text: str) -> None: ...

    async def get(self, name: str) -> Any: ...

    async def put(self, values: Any) -> None: ...


class _Offer:
    def find(self, name: str, hash: str) -> Skill | None:
        return next((s for s in world.SKILLS if s.name == name), None)


PAUSE = 0
"""The cell in which the owner stands still right before its first call."""


def run(home: str, mutant: str = "", slow: float = 0.0, pause: int = 0) -> None:
    """Make all calls that are left, as the owner of the session."""
    global PAUSE  # noqa: PLW0603  one owner a process
    PAUSE = pause
    quiescence.LAG, quiescence.DRIFT = LEASE / 2, 0.05
    world.SLOW = slow
    for skill in world.SKILLS:
        skill.timeout = 0.5 + slow
    _mutate(mutant)
    asyncio.run(_own(Path(home), mutant))


def _encode(value: Any) -> Encoded:
    return Encoded("safe", json.dumps(value).encode())


async def _own(home: Path, mutant: str) -> None:
    clock = SystemClock()
    store = SQLStore(home / "cave.db", lease_ttl=LEASE, clock=clock)
    owner = this_process()
    journal = Journal(store, "q3", owner, History(), clock)
    pen = Pen(
        journal,
        FolderBlobs(home / "blobs"),
        owner=owner,
        kernel=lambda: owner.pid,
        encode=_encode,
    )
    offer = _Offer()
    codec = Codec(
        _encode,
        lambda value: json.loads(value.header),
        lambda value: hashlib.sha256(value.header).hexdigest(),
    )
    asking = Asking(pen, Rules, codec, lambda name: offer.find(name, ""))
    broker = Broker(pen, offer, asking)
    await store.create("q3")
    while True:
        try:
            async with journal.operation(wait=20.0):
                await _work(journal, broker, mutant)
                print("finished", flush=True)
                return
        except (LeaseLost, SessionBusy) as error:
            print(f"lost: {error}", flush=True)
            return


async def _work(journal: Journal, broker: Broker, mutant: str) -> None:
    if journal.history.opened is None:
        await journal.append(SessionOpened(version="0", uid="sweep"))
    for n in range(1, CELLS + 1):
        if n in journal.history.cells:
            continue
        if n not in journal.history._started:
            await journal.append(CellStarted(cell=n, source="calls"))
        broker.began(n)
        if n == PAUSE:
            failpoints.arm("effect.before_call", "stop")
        calls = [_called(journal, broker, n, lane, skill) for lane, skill in _calls(n)]
        await asyncio.gather(*calls)
        await journal.append(CellFinished(cell=n, status="ok"))


def _calls(n: int) -> list[tuple[str, str]]:
    """Two lanes side by side, each with calls of every kind one after the other."""
    return [("", "mail pay text price"), ("/1", "text pay mail")][: 1 + n % 2]


async def _called(journal: Journal, broker: Broker, n: int, lane: str, skills: str) -> None:
    for ordinal, skill in enumerate(skills.split(), 1):
        for _ in range(5):
            answer = await _once(broker, n, lane, ordinal, skill)
            if answer.status == "ok":
                break
            assert answer.fault is not None
            assert answer.fault.name == "EffectInDoubt", answer.fault
            await _settle(journal, (n, lane, ordinal))
        else:
            raise AssertionError(f"{skill} in cell {n} came to no end")


async def _once(broker: Broker, n: int, lane: str, ordinal: int, skill: str) -> SkillAnswer:
    arguments = {"item": f"{n}{lane}.{ordinal}"}
    digest = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()
    call = SkillCall(f"{n}{lane}.{ordinal}", skill, "", n, lane, ordinal, "call", arguments, digest)
    return await broker.answer(call, _Cell())


async def _settle(journal: Journal, place: tuple[int, str, int]) -> None:
    """A person who looks at the outside once nothing can happen there any more."""
    entry = journal.history.ledger.at(place)
    assert entry is not None
    await asyncio.sleep(2 * world.SLOW)
    done = world.was_done(entry.intent.key)
    await journal.append(
        EffectSettled(effect=entry.id, decision="done" if done else "not_done"), sync=True
    )


def _mutate(mutant: str) -> None:
    match mutant:
        case "no intent":

            async def unwritten(self: Pen, work: Any, attempt: int) -> Any:
                self._looked = self.journal.clock.monotonic()
                return self.intent(work, attempt)

            Pen.begin = unwritten  # type: ignore[method-assign]
        case "result before call":
            guarded = host.HostCalls._guarded

            async def early(self: Any, work: Any, attempt: int, transient: Any) -> Any:
                if work.entry is not None:
                    await self._pen.done(work, work.entry.intent, "early")
                return await guarded(self, work, attempt, transient)

            host.HostCalls._guarded = early  # type: ignore[method-assign]
        case "no fence":
            Pen.lagging = lambda _: False  # type: ignore[method-assign]
        case "no quiescence":
            quiescence.seconds_until = lambda *_: 0.0  # type: ignore[assignment]
        case _:
            assert not mutant, mutant
