"""What the journal costs, beside raw sqlite3 doing the least that could be called the same.

    python benchmarks/journal.py [--seconds 1.0] [--folder DIR]

Raw: one INSERT of the same bytes a transaction, on one connection, in the calling thread: no
fence, no hash, no event loop. Ours: `SQLStore.append`, awaited. Each pair runs side by side
in this process; read ratios and minima, the machine is rarely quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from cave.events import (
    CellFinished,
    CellStarted,
    Delta,
    Event,
    Output,
    StepReplied,
    StepStarted,
    Usage,
    Variable,
    decode,
    encode,
)
from cave.store import SQLStore, this_process

EVENT = CellFinished(
    cell=12,
    status="ok",
    outputs=(Output("stream", "north  1204.50\nsouth   998.25\n" * 6, "stdout"),),
    seconds=0.25,
    delta=Delta(added=(Variable("top", "DataFrame", (4, 2), 1024, 12),)),
)
"""A record of about 650 bytes."""


@dataclass
class Measured:
    """Latencies of one kind of append, in seconds, and the CPU that all of them took."""

    wall: list[float] = field(default_factory=list)
    cpu: float = 0.0
    elapsed: float = 0.0

    def row(self, name: str) -> str:
        """One line of the table."""
        wall = sorted(self.wall)
        count = len(wall)
        return (
            f"{name:<34}{count / self.elapsed:>9.0f}{wall[0] * 1e3:>9.3f}"
            f"{wall[count // 2] * 1e3:>9.3f}{wall[int(count * 0.99)] * 1e3:>9.3f}"
            f"{self.cpu / count * 1e3:>9.3f}"
        )


def raw(folder: Path, *, sync: bool, seconds: float) -> Measured:
    """Appends by sqlite3 alone."""
    connection = sqlite3.connect(folder / f"raw-{sync}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
    connection.execute("CREATE TABLE e (s INTEGER, q INTEGER, b BLOB, PRIMARY KEY (s, q))")
    body, measured, seq = encode(EVENT), Measured(), 0
    began, cpu = time.perf_counter(), time.process_time()
    while (start := time.perf_counter()) - began < seconds:
        seq += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO e VALUES (1, ?, ?)", (seq, body))
        connection.execute("COMMIT")
        measured.wall.append(time.perf_counter() - start)
    measured.cpu = time.process_time() - cpu
    measured.elapsed = time.perf_counter() - began
    connection.close()
    return measured


async def ours(
    store: SQLStore, *, sessions: int, sync: bool, seconds: float, batch: int = 1
) -> Measured:
    """Appends by `sessions` tasks at once; with `batch` events each."""
    measured = Measured()
    leases = []
    for n in range(sessions):
        name = f"{sessions}-{sync}-{batch}-{n}"
        await store.create(name)
        leases.append(await store.acquire(name, this_process()))
    events = [EVENT] * batch

    async def work(n: int) -> None:
        while (start := time.perf_counter()) - began < seconds:
            await store.append(leases[n], events, sync=sync)
            taken = time.perf_counter() - start
            measured.wall.extend([taken / batch] * batch)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(n) for n in range(sessions)))
    measured.cpu = time.process_time() - cpu
    measured.elapsed = time.perf_counter() - began
    return measured


async def load(store: SQLStore) -> None:
    """Read and check 10,000 events of a usual mixture."""
    await store.create("load")
    lease = await store.acquire("load", this_process())
    events: list[Event] = []
    for n in range(2500):
        events += [
            StepStarted(turn=1, step=n),
            StepReplied(
                turn=1, step=n, kind="cell", source="df.head()", usage=Usage(output_tokens=9)
            ),
            CellStarted(cell=n, source="df.head()\nprint(len(df))"),
            EVENT,
        ]
    await store.append(lease, events, release=True)
    bodies = [(event.type, encode(event)) for event in events]

    async def read() -> None:
        assert len([event async for event in store.read("load")]) == 10_000

    async def decoded() -> None:
        for type, body in bodies:
            decode(type, body, seq=1, at=1.0, session="load")

    async def verified() -> None:
        assert await store.verify("load") == []

    print(f"\n{'10,000 events':<34}{'wall s':>9}{'cpu s':>9}   (best of 3)")
    for name, call in {"read": read, "decode alone": decoded, "verify": verified}.items():
        wall, cpu = await best(call)
        print(f"{name:<34}{wall:>9.3f}{cpu:>9.3f}")


async def best(call: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Least wall and CPU seconds of three calls."""
    walls, cpus = [], []
    for _ in range(3):
        wall, cpu = time.perf_counter(), time.process_time()
        await call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


async def main(folder: Path, seconds: float) -> None:
    """Print the tables."""
    store = SQLStore(folder / "cave.db")
    head = ("appends/s", "min ms", "p50 ms", "p99 ms", "cpu ms")
    print(f"{f'append of {len(encode(EVENT))} bytes':<34}" + "".join(f"{h:>9}" for h in head))
    for sync in (False, True):
        kind = "FULL" if sync else "NORMAL"
        print(raw(folder, sync=sync, seconds=seconds).row(f"raw sqlite3, {kind}"))
        for sessions in (1, 8):
            measured = await ours(store, sessions=sessions, sync=sync, seconds=seconds)
            print(measured.row(f"cave, {kind}, sessions: {sessions}"))
        measured = await ours(store, sessions=1, sync=sync, seconds=seconds, batch=8)
        print(measured.row(f"cave, {kind}, 8 events an append"))
    await load(store)
    await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--folder", help="where to write (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        asyncio.run(main(Path(made), arguments.seconds))
