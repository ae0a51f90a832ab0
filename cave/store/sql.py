"""The `Store` on SQL: SQLite now, in one file for all sessions of a home.

Async methods run on an asyncio loop. What writes goes to the file's writer thread; what
reads runs in worker threads on connections of its own, also while something is written.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from cave import failpoints
from cave.errors import SessionBusy, StoreError
from cave.events import Event
from cave.facts import Amount
from cave.ports import Clock, Holder, JournalFault, Lease, SessionInfo, SystemClock
from cave.shared import NOTHING, Account, Shortfall
from cave.store import journal, leases, shared
from cave.store.database import Database, leave, opened
from cave.store.writer import Job

T = TypeVar("T")

POLL = (0.005, 0.25)
"""Seconds between two tries to acquire: the first, and the longest."""


class SQLStore:
    """Journals in one SQLite file (`Store`). The file is opened, and made, at first use.

    `lease_ttl`: seconds that a lease holds without being renewed. `busy_timeout`: seconds
    to wait while another program holds the file's lock. Every method may raise
    `StoreError`; faults of SQLite and SQLAlchemy never come through.
    """

    def __init__(
        self,
        url_or_path: str | Path,
        *,
        lease_ttl: float = 30.0,
        clock: Clock | None = None,
        busy_timeout: float = 10.0,
    ) -> None:
        self.path = _path(url_or_path)
        self.lease_ttl = lease_ttl
        self._clock: Clock = SystemClock() if clock is None else clock
        self._busy_timeout = busy_timeout
        self._database: Database | None = None
        self._opening = threading.Lock()
        self._closed = False

    async def create(self, session: str) -> bool:
        return await self._write(
            lambda cursor, sql: journal.create(cursor, sql, session, self._clock)
        )

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._read(
            lambda cursor, sql: [
                leases.Row(*row).info(self._clock) for row in cursor.execute(sql["sessions"])
            ]
        )

    async def info(self, session: str) -> SessionInfo:
        return await self._read(
            lambda cursor, sql: leases.find(cursor, sql, session).info(self._clock)
        )

    async def delete(self, session: str) -> None:
        await self._write(lambda cursor, sql: journal.delete(cursor, sql, session, self._clock))

    async def acquire(self, session: str, holder: Holder, *, wait: float = 0) -> Lease:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + wait, POLL[0]
        taken: list[Lease] = []

        def take(cursor: sqlite3.Cursor, sql: leases.SQL) -> Lease:
            clock, ttl = self._clock, self.lease_ttl
            taken.append(leases.acquire(cursor, sql, session, holder, clock=clock, ttl=ttl))
            return taken[-1]

        while True:
            try:
                return await self._write(take)
            except asyncio.CancelledError:
                if taken:  # nobody would know of it
                    await self.release(taken[-1])
                raise
            except SessionBusy:
                left = until - loop.time()
                if left <= 0:
                    raise
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL[1])

    async def renew(self, lease: Lease) -> None:
        await self._write(
            lambda cursor, sql: leases.renew(cursor, sql, lease, self._clock, self.lease_ttl)
        )

    async def release(self, lease: Lease) -> None:
        await self._write(lambda cursor, sql: leases.release(cursor, sql, lease))

    async def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        *,
        sync: bool = False,
        release: bool = False,
    ) -> Sequence[Event]:
        """Commit `events` (see `Store.append`).

        An append renews the lease. Under a lease that is idle, and that nobody took in
        between, it makes the session busy again: end with `release=True`. When the calling
        task is cancelled, either nothing is written or all is committed before
        `CancelledError` comes through; read the journal to know which.
        """
        drafts = journal.draft(events)

        def run(cursor: sqlite3.Cursor, sql: leases.SQL) -> list[Event]:
            return journal.append(
                cursor,
                sql,
                lease,
                drafts,
                release=release,
                clock=self._clock,
                ttl=self.lease_ttl,
            )

        return await self._write(run, sync=sync, appends=True)

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncIterator[Event]:
        left = limit
        while left is None or left > 0:
            page = await self._read(partial(journal.page, session=session, after=after, limit=left))
            if not page:
                return
            for event in page:
                yield event
            after = page[-1].seq
            left = None if left is None else left - len(page)

    async def verify(self, session: str) -> Sequence[JournalFault]:
        return await self._read(lambda cursor, sql: journal.verify(cursor, sql, session))

    async def seals(self, session: str) -> Mapping[int, str]:
        return await self._read(lambda cursor, sql: journal.seals(cursor, sql, session))

    # -- answers and budgets, which need no lease --------------------------------------------

    async def answer(
        self, session: str, approval: str, body: bytes, *, until: float | None = None
    ) -> bytes | None:
        def run(cursor: sqlite3.Cursor, sql: leases.SQL) -> bytes | None:
            counts = shared.answer(
                cursor, sql, session, approval, body, until=until, clock=self._clock
            )
            failpoints.hit("approval.before_answer")
            return counts

        counts = await self._write(run, sync=True)
        failpoints.hit("approval.after_answer")
        return counts

    async def answers(self, session: str) -> Mapping[str, bytes]:
        return await self._read(lambda cursor, sql: shared.answers(cursor, sql, session))

    async def limit(
        self, budget: str, limits: Amount, *, parent: str | None = None, spent: Amount = NOTHING
    ) -> None:
        def run(cursor: sqlite3.Cursor, sql: leases.SQL) -> None:
            shared.limit(cursor, sql, budget, limits, parent=parent, spent=spent)

        await self._write(run, sync=True)

    async def accounts(self, budget: str) -> Sequence[Account]:
        return await self._read(lambda cursor, sql: shared.accounts(cursor, sql, budget))

    async def reserve(self, id: str, budget: str, amount: Amount) -> Shortfall | None:
        return await self._write(
            lambda cursor, sql: shared.reserve(cursor, sql, id, budget, amount)
        )

    async def settle(self, id: str, amount: Amount) -> None:
        await self._write(lambda cursor, sql: shared.settle(cursor, sql, id, amount))

    async def reserved(self, budget: str) -> Mapping[str, Amount]:
        return await self._read(lambda cursor, sql: shared.reserved(cursor, sql, budget))

    async def close(self) -> None:
        self._closed = True
        database, self._database = self._database, None
        if database is not None:
            await asyncio.to_thread(leave, database)

    # -- threads -----------------------------------------------------------------------------

    async def _write(
        self,
        run: Callable[[sqlite3.Cursor, leases.SQL], T],
        *,
        sync: bool = False,
        appends: bool = False,
    ) -> T:
        database = await self._use()
        sql = database.sql
        job = Job(lambda cursor: run(cursor, sql), sync=sync, appends=appends)
        database.writer.submit(job)
        result: T = await job.outcome()
        return result

    async def _read(self, query: Callable[[sqlite3.Cursor, leases.SQL], T]) -> T:
        database = await self._use()
        sql = database.sql
        return await database.read(lambda cursor: query(cursor, sql))

    async def _use(self) -> Database:
        database = self._opened
        return database if database is not None else await asyncio.to_thread(self._open)

    @property
    def _opened(self) -> Database | None:
        """The open file; None when it is to be opened, as in a forked child."""
        database = self._database
        return database if database is not None and database.pid == os.getpid() else None

    def _open(self) -> Database:
        if self._closed:
            raise StoreError(f"the store on {str(self.path)!r} is closed")
        with self._opening:
            if self._opened is None:
                self._database = opened(self.path, busy_timeout=self._busy_timeout)
            database = self._database
        assert database is not None
        return database


def _path(url_or_path: str | Path) -> Path:
    text = str(url_or_path)
    if "://" not in text:
        return Path(text).absolute()
    kind, _, rest = text.partition("://")
    if kind != "sqlite" or not rest.startswith("/") or rest == "/":
        raise StoreError(f"no store for {text!r}: give the path of a file, or sqlite:///PATH")
    return Path(rest[1:]).absolute()
