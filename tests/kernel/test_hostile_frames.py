"""A kernel that sends whatever it likes: its host neither dies nor hangs nor believes it.

20,000 frames; a million with `scripts/crash`. `CAVE_CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from cave import records
from cave.errors import CaveError, SnapshotError
from cave.events import CellFinished, CellStarted, Event, OutputLate, ValuesPut, clean
from cave.kernel import Kernel, images
from cave.kernel.cells import Tape
from cave.kernel.kernel import left
from cave.kernel.pending import pending, progress
from cave.kernel.wire import Codec
from cave.ports import Death, Executed, SpooledCell, SpooledOutput
from tests.kernel import _hostile
from tests.kernel._hostile import IMAGE, KEY, Corpus, Forger, Sample, Victim

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
FRAMES = 1_000_000 if os.environ.get("CAVE_CRASH_ROUNDS") else 20_000
EACH = 400
"""Frames that one host sees."""
BEYOND = 1 << 53
LONG = f"cave:{'9' * 5000}:x"
PATIENCE = 60.0
"""Seconds in which a host that has its answer goes on."""

Ask = Callable[[Kernel], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def corpus() -> Iterator[Corpus]:
    """What a real kernel sends."""
    with _hostile.recorded() as found:
        yield found


async def _image(kernel: Kernel) -> Any:
    return await (await kernel.snapshot(id=IMAGE, base=None, lease=1)).image()


ASKS: dict[str, list[Ask]] = {
    "execute_request": [lambda k: k.execute("x", cell=7, lease=1, on_output=lambda _: None)],
    "cave_get_request": [lambda k: k.get("x", lease=1)],
    "cave_put_request": [lambda k: k.put({"x": 1}, lease=1)],
    "cave_delete_request": [lambda k: k.delete(["x"], lease=1)],
    "cave_variables_request": [lambda k: k.variables(lease=1)],
    "cave_dill_request": [lambda k: k.dill(lease=1)],
    "cave_snapshot_request": [_image],
    "cave_restore_request": [lambda k: k.restore(_hostile.load(), lease=1)],
    "cave_status_request": [lambda k: k.status(), lambda k: k._running()],
    "cave_hello_request": [
        lambda k: k.versions(["numpy"]),
        lambda k: k.catch_up(lease=1, after=0, running=None),
    ],
    "cave_skills_request": [lambda k: k.define([], lease=1)],
    "cave_admit_request": [lambda k: k.admit_foreign(lease=1)],
}


def journaled(event: Event) -> None:
    """An event can be kept and read again."""
    again = records.decode(
        event.type, records.encode(event), seq=event.seq, at=event.at, session=event.session
    )
    assert type(again) is type(event)


def finished(cell: int, found: Executed) -> CellFinished:
    if found.full_text is not None:
        b"".join(found.full_text())
    return CellFinished(
        cell=cell, status=found.status, outputs=found.outputs, error=found.error,
        seconds=found.seconds, delta=found.delta, full_size=found.full_size, bound=found.bound,
        spool=found.spool, observed=found.observed,
    )  # fmt: skip


def kept(kind: str, value: Any) -> None:
    """What a host would write down of this answer."""
    match value:
        case Executed():
            journaled(finished(7, value))
        case SpooledCell(executed=Executed() as executed):
            journaled(CellStarted(cell=1, source=clean(value.source)))
            journaled(finished(1, executed))
        case SpooledOutput():
            journaled(OutputLate(cell=value.cell, outputs=value.outputs, spool=value.spool))
        case tuple() | list() if kind in {"cave_put_request", "cave_variables_request"}:
            journaled(ValuesPut(variables=tuple(value)))
        case tuple() | list() if kind == "cave_hello_request":
            for entry in value:
                kept("", entry)


class Round:
    """One host, what is asked of it, and a cell of its that no forged message may touch."""

    def __init__(self, corpus: Corpus, draw: random.Random, folder: Path) -> None:
        self.corpus = corpus
        self.draw = draw
        self.forger = Forger(corpus, draw)
        self.victim = Victim(folder)
        self.fed = 0

    async def run(self, frames: int) -> None:
        kernel = self.victim.kernel
        watched = asyncio.ensure_future(kernel.execute("watched", cell=6, lease=1))
        await asyncio.sleep(0)
        own = self.victim.asked("execute_request")
        while self.fed < frames:
            await self.ask(own)
        assert not watched.done()
        mine = kernel.client.cells[own]
        assert (mine.outputs.result(), mine.noted, mine.idle, mine.replied) == (
            (),
            {},
            False,
            False,
        )
        kernel._newest = self.forger.number
        kernel._release()  # what a takeover that was given up has kept
        await self.answer_well("execute_request", own)
        done = await asyncio.wait_for(watched, PATIENCE)
        assert done.outputs
        assert not self.victim.faults, self.victim.faults
        for late in self.victim.late:
            kept("", late)
        await self.victim.close()

    async def ask(self, own: str) -> None:
        """Ask for something, and have it answered by forged messages, then perhaps a good one."""
        kind = self.draw.choice(list(ASKS))
        self.victim.sent.clear()
        task = asyncio.ensure_future(self.draw.choice(ASKS[kind])(self.victim.kernel))
        while not (asked := self.victim.asked(kind)) and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        parents = [*[asked] * 12, "", "cave:6:forged", own[:-1], "foreign", LONG]
        for _ in range(self.draw.randrange(5, 40)):
            self.feed(kind, parents, own)
        await asyncio.sleep(0)
        if self.draw.random() < 0.5:
            await self.answer_well(kind, asked)
        await self.settle(kind, asked, task)
        for call in self.victim.calls:
            assert call.id.isascii()
            assert all(-BEYOND < n < BEYOND for n in (call.ordinal, call.attempt, call.cell or 0))
        self.victim.calls.clear()

    def feed(self, kind: str, parents: list[str], own: str) -> None:
        sample = self.sample(kind)
        if self.draw.random() < 0.03:
            frames = self.forger.strange(sample, own)
        else:
            visit = self.visit(sample)
            frames = self.forger.forged(sample, parents, visit)
        for _ in range(50 if self.draw.random() < 0.002 else 1):
            self.victim.wire.take_in(sample.channel, frames)
            self.fed += 1

    def sample(self, kind: str) -> Sample:
        chance = self.draw.random()
        if chance < 0.6:
            return self.draw.choice(self.corpus[kind])
        return self.draw.choice(self.corpus[""]) if chance < 0.8 else self.forger.any()

    def visit(self, sample: Sample) -> dict[str, Any]:
        """Calls get ids of their own; answers to visits those of visits that wait."""
        if sample.channel != "stdin":
            return {}
        told: dict[str, Any] = {"call": f"call{self.draw.randrange(50)}"}
        if self.victim.visits and self.draw.random() < 0.5:
            told["visit"] = self.victim.visits.pop()
        return told

    async def answer_well(self, kind: str, asked: str) -> None:
        """As a kernel would that means no harm: one whole answer."""
        for sample in self.corpus[kind]:
            self.victim.wire.take_in(sample.channel, self.forger.good(sample, asked))
            self.fed += 1

    async def settle(self, kind: str, asked: str, task: asyncio.Future[Any]) -> None:
        """An answer or a typed error, if all has come; else nobody waits any longer."""
        client = self.victim.kernel.client
        run = client.cells.get(asked)
        unanswered = asked in client._waiting and not client._waiting[asked].done()
        if unanswered or (run is not None and not run.done.is_set()):
            task.cancel()
        with contextlib.suppress(CaveError, asyncio.CancelledError):
            kept(kind, await asyncio.wait_for(task, PATIENCE))


@pytest.mark.timeout(3600)
def test_a_kernel_that_forges_every_message_harms_nobody(corpus: Corpus) -> None:
    """Answers, outputs and calls of every kind, forged in structure and bytes: each request ends
    with an answer or a typed error that can be journaled, no receiver raises, and a cell that
    none of these messages belongs to is as it was, and ends well."""
    assert set(ASKS) <= set(corpus)
    print(f"seed {SEED}, {FRAMES} frames")
    began, fed = time.process_time(), 0

    async def one(number: int, folder: Path) -> int:
        round_ = Round(corpus, random.Random(f"{SEED}-{number}"), folder)
        try:
            await round_.run(min(EACH, FRAMES - fed))
        except BaseException as error:
            error.add_note(f"seed {SEED}, host {number}")
            raise
        return round_.fed

    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        number = 0
        while fed < FRAMES:
            fed += asyncio.run(one(number, Path(folder)))
            number += 1
    print(f"{fed} frames, {fed / (time.process_time() - began):.0f} a second of the processor")


# -- what lies in files ----------------------------------------------------------------------

_HEADER = struct.Struct("<4sIIQ")


def record(draw: random.Random, number: int, frames: list[bytes]) -> bytes:
    """A record of the spool; now and then one with a wrong checksum, length or number."""
    body = b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)
    length, check = len(body), zlib.crc32(body)
    match draw.randrange(60):
        case 0:
            check ^= 1
        case 1:
            length = draw.choice((0, length + 1, 1 << 29, (1 << 32) - 1))
        case 2:
            number = draw.choice((0, 1 << 53, (1 << 64) - 1))
        case 3:
            body = body[: draw.randrange(len(body) + 1)]
    return _HEADER.pack(b"cave", length, check, number) + body


def spooled(corpus: Corpus, draw: random.Random, folder: Path) -> int:
    """Read a spool of forged messages, as the host does that finds the kernel dead."""
    forger, count = Forger(corpus, draw), draw.randrange(1, 120)
    parents = [f"cave:{n}:{'0' * 16}" for n in range(4)] + ["foreign", "", "cave:²:x"]
    samples = [s for group in corpus.values() for s in group if s.channel == "iopub"]
    file = folder / f"{draw.choice(('1', '00001', '7'))}.spool"
    with file.open("wb") as out:
        for number in range(1, count + 1):
            sample, parent = draw.choice(samples), draw.choice(parents)
            good = draw.random() < 0.3
            frames = forger.good(sample, parent) if good else forger.forged(sample, parents, {})
            out.write(record(draw, number, frames))
    for entry in left(Tape(folder, Codec(KEY)), after=0, death=Death(1, "died")):
        kept("", entry)
    file.unlink()
    return count


def imaged(corpus: Corpus, draw: random.Random, folder: Path) -> int:
    """Take forged images, by message and by the file that a kernel leaves."""
    (good,) = (s for s in corpus["cave_snapshot_request"] if s.channel == "shell")
    forger = Forger(corpus, draw)
    frames = forger.forged(dataclasses.replace(good, channel="shell"), [""], {})
    blob = b"".join(good.buffers)
    text = frames[5] if len(frames) > 5 else b"{}"
    with contextlib.suppress(ValueError):
        told = Codec(KEY).decode(frames, signed=False).content
        with contextlib.suppress(SnapshotError):
            images.decode(told, memoryview(blob), id=IMAGE, base=draw.choice((None, "before")))
    head = b"CAVEIMG2" + len(text).to_bytes(8, "little")
    told_and_blob = text + bytes(-(len(head) + 4 + len(text)) % 4096) + blob
    data = head + zlib.crc32(told_and_blob).to_bytes(4, "little") + told_and_blob
    if draw.random() < 0.3:
        data = forger.scrambled(data)
    for name in ("image", "progress"):
        (folder / name).write_bytes(data)
    with contextlib.suppress(SnapshotError):
        pending(folder.parents[2], 1)
    with contextlib.suppress(SnapshotError):
        progress(folder.parents[2], 1, 7)
    return 2


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("work", [spooled, imaged])
def test_forged_files_harm_nobody(
    corpus: Corpus, tmp_path: Path, work: Callable[[Corpus, random.Random, Path], int]
) -> None:
    """Spools and images, forged in structure and bytes, are read to an end: what comes of them
    can be journaled, or is a typed error."""
    print(f"seed {SEED}")
    folder = tmp_path / "kernels" / "1" / "pending"
    folder.mkdir(parents=True)
    read = number = 0
    while read < FRAMES // 20:
        try:
            read += work(corpus, random.Random(f"{SEED}-{number}"), folder)
        except BaseException as error:
            error.add_note(f"seed {SEED}, {work.__name__} {number}")
            raise
        number += 1
