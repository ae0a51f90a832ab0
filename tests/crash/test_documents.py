"""One loop over thousands of real records, killed again and again: each is filed once.

`CAVE_CRASH_ROUNDS` makes it 5,000 records and ten kills (scripts/crash), `CAVE_CRASH_SEED`
repeats the moments: they are counted in records filed, so that they do not depend on speed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import cave
from cave.events import CellResumed, EffectIntent, EffectResult, Event, SnapshotCommitted
from cave.history import History
from cave.ledger import Entry, Ledger

from . import documents
from .conftest import Host, wait_until
from .test_effects import kernel_pid

FULL = bool(os.environ.get("CAVE_CRASH_ROUNDS"))
RECORDS, WAIT = (5000, 0.0) if FULL else (500, 0.004)
VICTIMS = ["host", "kernel", "both", "recovery"] * (3 if FULL else 1)
"""What dies; `recovery`: the kernel, and its host as it commits how far that had come."""
FIRST = 400
"""Records before the first kill: progress is kept from one second on."""
REDONE = 2.0
"""Seconds of work that a restart may do again."""
SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))

WORK = f"""
import signal
from cave import failpoints
from tests.crash import documents
def arm(*_):
    failpoints.arm("progress.after_commit", "kill")
    print("armed", flush=True)
signal.signal(signal.SIGUSR1, arm)
s = cave.open('documents', skills=documents.SKILLS)
if not len(s.history):
    s.put(records=documents.records({RECORDS}), wait={WAIT})
    s.run('import cave').raise_for_error()
    cell = s.run(documents.LOOP)
else:
    cell = s.resume() or s.history[-1]  # None: it went on by itself
while cell.status == 'died':
    cell = s.resume() or s.history[-1]  # None: it went on by itself
print('ended', cell.status, cell.error)
"""


@pytest.mark.timeout(1800 if FULL else 300)
def test_a_loop_that_is_killed_files_each_record_once(
    host: Callable[..., Host], unconfined: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts and kernels die by SIGKILL inside one loop: each record is filed once, what adds up
    is what an uninterrupted loop makes, and each restart goes on near where it was cut."""
    print(f"seed {SEED}, {RECORDS} records")
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))
    worker = killed(host, random.Random(SEED))
    assert worker.end(600, keep=True) == 0, worker.rest()
    assert "ended ok None" in (said := worker.rest()), said

    filed = documents.rows()
    assert sorted(number for number, _ in filed) == list(range(RECORDS))
    assert {place for _, place in filed} == {"host", "kernel"}
    wanted = documents.alone(documents.records(RECORDS))
    with cave.open("documents", skills=documents.SKILLS) as s:
        assert len(s.history) == 2
        for name in documents.NAMES:
            assert s.get(name, allow_pickle=True) == wanted[name], name
        check_restarts(s.events())
        check_fold(s.events(), monkeypatch)


def killed(host: Callable[..., Host], chance: random.Random) -> Host:
    """The last of the hosts that work; what is to die dies when so many records are filed."""
    moments = sorted(chance.sample(range(FIRST, RECORDS - 10 * len(VICTIMS)), len(VICTIMS)))
    victims = chance.sample(VICTIMS, len(VICTIMS))
    worker, last = host(WORK), 0
    for moment, victim in zip(moments, victims, strict=True):
        wait_for(last + 5, worker)  # not twice under one item: that stops the loop
        pid = kernel_pid("documents")
        wait_for(moment, worker)
        if victim == "recovery":
            worker.send(signal.SIGUSR1)
            worker.wait_for("armed")
        if victim != "host":
            os.kill(pid, signal.SIGKILL)
        last = documents.count()
        print(f"{victim} at {last}")
        if victim == "recovery":
            assert worker.end() == -signal.SIGKILL
        elif victim != "kernel":
            worker.kill()
        worker = host(WORK) if victim != "kernel" else worker
    return worker


def wait_for(moment: int, worker: Host) -> None:
    """Wait until so many records are filed by it."""
    wait_until(lambda: documents.count() >= moment or worker.ended, 600)
    assert not worker.ended, worker.rest()


def check_restarts(events: Sequence[Event]) -> None:
    """Each cell that was sent again began in its midst, with little to be done again."""
    restarts = list(redone(events))
    for item, calls, seconds in restarts:
        print(f"went on at item {item}: {calls} calls answered from the ledger, {seconds:.2f} s")
    assert len(restarts) >= len([victim for victim in VICTIMS if victim != "host"])
    assert all(item > 0 for item, _, _ in restarts)
    if FULL:
        assert all(seconds <= REDONE for _, _, seconds in restarts)


def check_fold(events: Sequence[Event], patch: pytest.MonkeyPatch) -> None:
    """A host that opens the session looks at each effect a few times, however many there are."""
    looked = 0
    effect = Ledger.effect

    def counted(self: Ledger, entry: Entry) -> Any:
        nonlocal looked
        looked += 1
        return effect(self, entry)

    patch.setattr(Ledger, "effect", counted)
    History().feed(events)
    deaths = sum(isinstance(event, CellResumed) for event in events)
    assert looked <= RECORDS * (2 + 2 * deaths)


def redone(events: Sequence[Event]) -> Iterator[tuple[int, int, float]]:
    """Of each restart: the item that it went on with, and the calls that were done before it
    and are made again, with the seconds that these took."""
    items = calls = 0
    begun: dict[str, EffectIntent] = {}
    took: dict[int, float] = {}
    last: float | None = None
    for event in events:
        match event:
            case EffectIntent():
                begun[event.effect] = event
            case EffectResult():
                intent = begun[event.effect]
                took.setdefault(intent.ordinal, event.at - (last or intent.at))
                last = event.at
            case SnapshotCommitted() if event.inside is not None:
                items, calls = event.inside.items or 0, event.inside.calls
            case CellResumed():
                again = [seconds for ordinal, seconds in took.items() if ordinal > calls]
                yield items, len(again), sum(again)
                last = None
            case _:
                pass
