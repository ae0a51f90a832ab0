"""Answers and budgets between processes; a database of before they were there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config

from cave.facts import Amount
from cave.store import SQLStore, migrate, this_process
from cave.testing.store import cells, journal
from tests._hosts import Program

T = TypeVar("T")
Start = Callable[..., Program]


def run(database: Path, scenario: Callable[[SQLStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = SQLStore(database)
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(main())


def together(start: Start, verb: str, *arguments: object, kill: bool = False) -> list[str]:
    """What two workers say that begin at once; `kill` ends the first while it works."""
    workers = [start(verb, *arguments) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    if kill:
        first = workers[0]
        first.stdout.readline()
        first.kill()
    return [worker.communicate(timeout=120)[0] for worker in workers]


def test_two_processes_answer_and_one_counts(database: Path, start: Start) -> None:
    """Each of 40 approvals has one answer, both were told the same, and both have won some."""
    run(database, lambda store: store.create("q3"))
    one, other = together(start, "answers", "q3", 40)
    assert one == other
    kept = run(database, lambda store: store.answers("q3"))
    assert one.split() == [w for n in range(1, 41) for w in (str(n), kept[f"a{n}"].decode())]


def test_two_processes_never_pass_a_budget(database: Path, start: Start) -> None:
    """Two processes spend from one budget until it is spent, one is killed amid it: what is
    spent and what a dead one holds never passes the limit."""

    async def begin(store: SQLStore) -> None:
        await store.limit("b", Amount(1_600, -1, -1, -1))

    run(database, begin)
    together(start, "spend", "b", 20, kill=True)
    (account,) = run(database, lambda store: store.accounts("b"))
    used = account.spent.tokens + account.reserved.tokens
    assert 1_600 - 20 < used <= 1_600
    assert account.reserved.tokens in {0, 20}


def test_a_database_without_them_is_led_on(database: Path) -> None:
    """What the first schema holds is there after the migration, and answers can be given."""
    database.parent.mkdir()
    config = Config()
    config.set_main_option("script_location", str(migrate.SCRIPTS))
    config.set_main_option("path_separator", "os")
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    with closing(sqlite3.connect(database)) as old, old:
        old.executemany("INSERT INTO meta VALUES (?, ?)", [("format", "1"), ("version", "0.1.0")])

    async def scenario(store: SQLStore) -> None:
        await store.create("q3")
        await store.append(await store.acquire("q3", this_process()), cells(1))
        assert await store.answer("q3", "a1", b"yes") == b"yes"
        assert len(await journal(store, "q3")) == 1

    run(database, scenario)
