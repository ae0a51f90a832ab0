from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cave.events import CellStarted
from cave.store import SQLStore, this_process, writer
from cave.testing.store import cells, journal

Threads = Callable[[], list[threading.Thread]]


@pytest.fixture
def threads() -> Threads:
    """The writers' threads that began in the test; those of others end when they are idle."""
    before = set(threading.enumerate())

    def begun() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "cave-journal" and t not in before]

    return begun


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each transaction of the writer, by whether it waits for the disk."""
    seen: list[bool] = []
    begin = writer.begin

    def spy(cursor: sqlite3.Cursor, *, sync: bool, patience: float) -> None:
        seen.append(sync)
        begin(cursor, sync=sync, patience=patience)
        level = cursor.execute("PRAGMA synchronous").fetchone()[0]
        assert level == (2 if sync else 1)

    monkeypatch.setattr(writer, "begin", spy)
    return seen


def test_only_what_asks_waits_for_the_disk(database: Path, begun: list[bool]) -> None:
    """A commit is FULL when one of its appends asks for it, NORMAL otherwise."""

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        begun.clear()
        await store.append(lease, cells(1))
        await store.append(lease, cells(2), sync=True)
        await store.append(lease, cells(3))
        assert begun == [False, True, False]
        await store.close()

    asyncio.run(main())


def test_appends_made_at_once_share_a_commit(database: Path, begun: list[bool]) -> None:
    """What gathers while one commit is under way is committed together."""

    async def main() -> None:
        store = SQLStore(database)
        leases = []
        for n in range(8):
            await store.create(f"s{n}")
            leases.append(await store.acquire(f"s{n}", this_process()))
        begun.clear()
        await asyncio.gather(
            *(store.append(lease, cells(n), sync=True) for lease in leases for n in range(10))
        )
        assert len(begun) < 20
        for n in range(8):
            assert len(await journal(store, f"s{n}")) == 10
        await store.close()

    asyncio.run(main())


def test_a_caller_that_cannot_be_told_harms_nobody(database: Path) -> None:
    """A loop closed before its append was committed leaves the writer working for others."""
    held = threading.Event()
    store = SQLStore(database)

    async def abandon() -> None:
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        db: Any = store._database
        db.writer.submit(writer.Job(lambda _cursor: held.wait(10)))
        asyncio.ensure_future(store.append(lease, cells(1)))  # noqa: RUF006  abandoned on purpose
        await asyncio.sleep(0)

    runner = asyncio.Runner()
    runner.run(abandon())
    runner.get_loop().call_soon(held.set)
    runner.close()
    held.set()

    async def go_on() -> None:
        await store.create("q4")
        lease = await store.acquire("q4", this_process())
        assert (await store.append(lease, cells(1)))[0].seq == 1
        await store.close()

    asyncio.run(go_on())


def test_the_thread_ends_when_idle_and_comes_back(
    database: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle store has no thread; the next append starts one."""
    monkeypatch.setattr(writer, "IDLE", 0.05)

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        for n in range(3):
            await store.append(lease, cells(n))
            for thread in threads():
                await asyncio.to_thread(thread.join, 10)
            assert not threads()
        await store.close()

    asyncio.run(main())


def test_stores_on_one_file_share_one_thread(database: Path, threads: Threads) -> None:
    """Two stores on a file have one writer, which ends when both are closed."""

    async def main() -> None:
        stores = [SQLStore(database), SQLStore(database.parent / ".." / "home" / database.name)]
        for n, store in enumerate(stores):
            await store.create(f"s{n}")
        assert len(threads()) == 1
        await stores[0].close()
        await stores[1].create("s2")
        assert len(threads()) == 1
        await stores[1].close()
        assert not threads()

    asyncio.run(main())


def test_a_fault_in_a_transaction_reaches_its_caller_alone(database: Path) -> None:
    """Whatever a transaction raises comes to the one who waits; the thread goes on."""

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        db: Any = store._database
        jobs = [writer.Job(lambda _cursor: 1 / 0), writer.Job(lambda _cursor: 7)]
        for job in jobs:
            db.writer.submit(job)
        with pytest.raises(ZeroDivisionError):
            await jobs[0].outcome()
        assert await jobs[1].outcome() == 7
        await store.close()

    asyncio.run(main())


def test_a_broken_writer_lets_nobody_wait(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong around a transaction, its caller is told, and the next one runs."""
    begin = writer.begin

    def broken(*_: object, **__: object) -> None:
        monkeypatch.setattr(writer, "begin", begin)
        raise ArithmeticError

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        monkeypatch.setattr(writer, "begin", broken)
        with pytest.raises(ArithmeticError):
            await asyncio.wait_for(store.create("q4"), 10)
        assert await store.create("q4")
        await store.close()

    asyncio.run(main())


def test_a_refused_transaction_is_undone_within_its_group(database: Path) -> None:
    """What a transaction wrote before it was refused goes; what its group wrote stays."""
    held = threading.Event()

    def refused(cursor: sqlite3.Cursor) -> None:
        cursor.execute("UPDATE sessions SET name = 'wrong'")
        raise LookupError

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        db: Any = store._database
        blocker = writer.Job(lambda _cursor: held.wait(10))
        jobs = [
            writer.Job(lambda cursor: cursor.execute("UPDATE sessions SET created = 1.0")),
            writer.Job(refused),
            writer.Job(lambda cursor: cursor.execute("UPDATE sessions SET changed = 2.0")),
        ]
        for job in [blocker, *jobs]:
            db.writer.submit(job)
        held.set()
        results = await asyncio.gather(*(job.outcome() for job in jobs), return_exceptions=True)
        assert [isinstance(r, LookupError) for r in results] == [False, True, False]
        info = await store.info("q3")
        assert (info.created, info.changed) == (1.0, 2.0)
        await store.close()

    asyncio.run(main())


def test_large_events_are_read_in_small_pages(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of the journal ends after some megabytes, whatever the number of its events."""
    from cave.store import journal as transactions

    monkeypatch.setattr(transactions, "PAGE_BYTES", 10_000)
    sizes: list[int] = []
    page = transactions.page

    def spy(*args: Any, **options: Any) -> Any:
        found = page(*args, **options)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(transactions, "page", spy)

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        await store.append(lease, [CellStarted(cell=n, source="x" * 4000) for n in range(10)])
        assert len(await journal(store, "q3")) == 10
        assert max(sizes) == 3
        await store.close()

    asyncio.run(main())


def test_a_query_of_the_journal_sorts_nothing(database: Path) -> None:
    """Reading on from any place uses the index alone."""

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        db: Any = store._database
        plan = await db.read(
            lambda cursor: cursor.execute(
                f"EXPLAIN QUERY PLAN {db.sql['page']}", {"name": "q3", "after": 5}
            ).fetchall()
        )
        text = " ".join(str(row[3]) for row in plan)
        assert "SCAN" not in text
        assert "TEMP B-TREE" not in text
        await store.close()

    asyncio.run(main())
