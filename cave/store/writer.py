"""The one thread of a process that writes to a database file, committing in groups.

Callers submit transactions. The thread takes all that wait, runs each in a savepoint of one
transaction (so that one caller's `LeaseLost` undoes nothing of another's), commits once and
wakes them all. While it waits for the disk the next group gathers by itself, so eight
sessions share a wait as one would use it alone.

It starts with the first transaction and ends after some idle seconds; a daemon, it never
keeps an interpreter alive. What it had not committed then, nobody was told of.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from cave import failpoints
from cave.errors import StoreError
from cave.store.sqlite import begin

if TYPE_CHECKING:
    from sqlalchemy import Engine, PoolProxiedConnection

IDLE = 10.0
"""Seconds without work after which the thread ends and its connection is closed."""

GROUP = 256
"""Transactions in one commit at most."""

FAULTS = (sqlite3.Error, SQLAlchemyError, OSError)
"""What a failing database or disk raises: such a fault ends the whole group."""


class Job:
    """One caller's transaction, made on the caller's event loop.

    `sync`: its commit waits for the disk. `appends`: it writes events; only then the
    failpoints of the journal are passed.
    """

    __slots__ = ("_claim", "_told", "appends", "fault", "loop", "run", "sync", "value", "waiter")

    def __init__(
        self, run: Callable[[sqlite3.Cursor], Any], *, sync: bool = False, appends: bool = False
    ) -> None:
        self.run = run
        self.sync = sync
        self.appends = appends
        self.value: Any = None
        self.fault: BaseException | None = None
        self.loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[Any] = self.loop.create_future()
        self._claim = [None]
        self._told = False

    def claim(self) -> bool:
        """True for the first who asks: the thread that runs it, or the caller who gives up."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True

    async def outcome(self) -> Any:
        """What `run` gave, once it is committed; raises what it raised.

        Cancelled, it waits until it is known whether the transaction is written.
        """
        try:
            return await self.waiter
        except asyncio.CancelledError:
            if not self.claim() and not self._told:
                self.waiter = self.loop.create_future()
                await asyncio.wait([self.waiter])
                self.waiter.exception()
            raise

    def tell(self) -> None:
        """Wake the caller; runs on its loop."""
        self._told = True
        if self.waiter.done():
            return
        if self.fault is None:
            self.waiter.set_result(self.value)
        else:
            self.waiter.set_exception(self.fault)


class Writer:
    """Commits the transactions of one process to one database file, in order."""

    def __init__(
        self,
        engine: Engine,
        *,
        patience: float,
        explain: Callable[[BaseException], StoreError],
    ) -> None:
        self._engine = engine
        self._patience = patience
        self._explain = explain
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: PoolProxiedConnection | None = None

    def submit(self, job: Job) -> None:
        """Queue a transaction; `job.outcome()` gives what came of it."""
        with self._lock:
            self._queue.put(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="cave-journal", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Commit what is queued, end the thread and close the connection. Blocks."""
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    # -- in the thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        while group := self._next():
            if claimed := [job for job in group if job.claim()]:
                self._commit(claimed)
                _tell(claimed)

    def _next(self) -> list[Job]:
        """What waits now, in order; empty when the thread has to end."""
        while True:
            try:
                first = self._queue.get(timeout=IDLE)
            except queue.Empty:
                first = None
            if first is not None:
                return self._gather(first)
            with self._lock:
                if self._queue.empty():
                    self._disconnect()
                    self._thread = None
                    return []

    def _gather(self, first: Job) -> list[Job]:
        group = [first]
        while len(group) < GROUP and not self._queue.empty():
            job = self._queue.get()
            if job is None:
                self._queue.put(None)  # asks to end: after this group
                break
            group.append(job)
        return group

    def _commit(self, group: Sequence[Job]) -> None:
        try:
            self._transact(group)
        except Exception as fault:  # noqa: BLE001  carried to those who wait: none may hang
            self._disconnect()
            for job in group:
                job.fault = self._explain(fault) if isinstance(fault, FAULTS) else fault

    def _transact(self, group: Sequence[Job]) -> None:
        cursor = self._cursor()
        begin(cursor, sync=any(job.sync for job in group), patience=self._patience)
        for job in group:
            _attempt(cursor, job, savepoint=len(group) > 1)
        if all(job.fault is not None for job in group):
            cursor.execute("ROLLBACK")
            return
        appends = any(job.appends for job in group)
        if appends:
            failpoints.hit("store.before_commit")
        cursor.execute("COMMIT")
        if appends:
            failpoints.hit("store.after_commit")

    def _cursor(self) -> sqlite3.Cursor:
        if self._connection is None:
            self._connection = self._engine.raw_connection()
        driver: Any = self._connection.driver_connection
        cursor: sqlite3.Cursor = driver.cursor()
        return cursor

    def _disconnect(self) -> None:
        """Close the connection, which undoes what it has not committed."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection = None


def _attempt(cursor: sqlite3.Cursor, job: Job, *, savepoint: bool) -> None:
    """Run one transaction of the group; a refusal undoes this one only."""
    if savepoint:
        cursor.execute("SAVEPOINT job")
    try:
        job.value = job.run(cursor)
    except StoreError as fault:
        job.fault = fault
    except FAULTS:
        raise
    except Exception as fault:  # noqa: BLE001  carried to the one who waits, as futures do
        job.fault = fault
    if savepoint:
        if job.fault is not None:
            cursor.execute("ROLLBACK TO job")
        cursor.execute("RELEASE job")


def _tell(group: Sequence[Job]) -> None:
    """Wake the callers of a group, each loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in group:
        loops.setdefault(job.loop, []).append(job)
    for loop, jobs in loops.items():
        try:
            loop.call_soon_threadsafe(_tell_all, jobs)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            continue


def _tell_all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.tell()
