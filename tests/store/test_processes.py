from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cave.errors import StoreError
from cave.events import ValuesDeleted
from cave.store import SQLStore, this_process
from cave.testing.store import cells, journal
from tests._hosts import Program

Start = Callable[..., Program]


@pytest.mark.parametrize("acquire", ["always", "when lost"])
def test_two_processes_never_operate_at_once(database: Path, start: Start, acquire: str) -> None:
    """Operations of two processes follow each other whole, also when appending without acquire."""
    rounds = 40

    async def prepare() -> None:
        store = SQLStore(database)
        await store.create("q3")
        await store.close()

    async def result() -> list[tuple[str, ...]]:
        store = SQLStore(database)
        events = await journal(store, "q3")
        assert await store.verify("q3") == []
        await store.close()
        return [event.names for event in events if isinstance(event, ValuesDeleted)]

    asyncio.run(prepare())
    processes = [start("alternate", "q3", rounds, acquire) for _ in range(2)]
    for process in processes:
        assert process.communicate(timeout=60)[0] == "done\n"
    names = asyncio.run(result())
    assert len(names) == rounds * 4
    for entered, left in zip(names[::2], names[1::2], strict=True):
        assert (entered[0], left[0]) == ("enter", "leave")
        assert entered[1] == left[1]
    assert {pid for _, pid in names} == {str(process.pid) for process in processes}


def test_four_processes_make_one_database(database: Path, start: Start) -> None:
    """Processes opening a new home at once migrate it once, and one of them makes the session."""
    processes = [start("create", "q3") for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    said = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert sorted(said) == ["found", "found", "found", "made"]


def test_a_forked_child_opens_the_file_anew(database: Path) -> None:
    """A child uses neither connections nor thread of its parent, and both go on."""
    script = f"""
import asyncio, os
from cave.store import SQLStore, this_process
from cave.events import CellStarted

async def work(store, name):
    await store.create(name)
    lease = await store.acquire(name, this_process())
    await store.append(lease, [CellStarted(cell=1, source='')])

async def main(store, name):
    await work(store, name)
    await store.info(name)

store = SQLStore({str(database)!r})
asyncio.run(main(store, "parent"))
pid = os.fork()
if pid == 0:
    asyncio.run(main(store, "child"))
    asyncio.run(store.close())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
asyncio.run(main(store, "later"))
asyncio.run(store.close())
"""
    run_script(script)

    async def names() -> set[str]:
        store = SQLStore(database)
        found = {info.name for info in await store.sessions()}
        await store.close()
        return found

    assert asyncio.run(names()) == {"parent", "child", "later"}


def test_a_store_left_open_keeps_no_interpreter_alive(database: Path) -> None:
    """A script that forgets to close its store ends, with its events on disk."""
    script = f"""
import asyncio
from cave.store import SQLStore, this_process
from cave.events import CellStarted

async def main():
    store = SQLStore({str(database)!r})
    await store.create("q3")
    lease = await store.acquire("q3", this_process())
    await store.append(lease, [CellStarted(cell=1, source='')] * 2)

asyncio.run(main())
"""
    run_script(script)
    with_rows = sqlite3.connect(database)
    assert with_rows.execute("SELECT count(*) FROM events").fetchone() == (2,)
    with_rows.close()


def run_script(script: str) -> None:
    root = str(Path(__file__).parents[2])
    # a fork beside threads is what is tried here
    subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script],
        env={**os.environ, "PYTHONPATH": root},
        check=True,
        timeout=30,
    )


def test_a_file_locked_by_another_program_is_told(database: Path) -> None:
    """A lock held longer than the time-out is a StoreError; afterwards the store goes on."""

    async def main() -> None:
        store = SQLStore(database, busy_timeout=0.1)
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        other = sqlite3.connect(database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            await store.append(lease, cells(1))
        other.execute("ROLLBACK")
        other.close()
        (event,) = await store.append(lease, cells(2))
        assert event.seq == 1
        await store.close()

    asyncio.run(main())


def test_a_short_lock_is_waited_for(database: Path) -> None:
    """A lock that ends in time costs only the waiting."""

    async def main() -> None:
        store = SQLStore(database)
        await store.create("q3")
        other = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.acquire("q3", this_process()))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        other.execute("ROLLBACK")
        other.close()
        await asyncio.wait_for(waiting, 5)
        await store.close()

    asyncio.run(main())


def test_a_killed_migration_leaves_nothing(database: Path) -> None:
    """kill -9 in the middle of the first migration: the next process starts from nothing."""
    script = f"""
import asyncio, os, signal
from cave.store import SQLStore, migrate
migrate._version = lambda: os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(SQLStore({str(database)!r}).create("q3"))
"""
    with pytest.raises(subprocess.CalledProcessError) as killed:
        run_script(script)
    assert killed.value.returncode == -signal.SIGKILL

    async def main() -> None:
        store = SQLStore(database)
        assert await store.sessions() == []
        assert await store.create("q3")
        await store.close()

    asyncio.run(main())
