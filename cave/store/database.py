"""One open database file of this process: its writer thread, its readers, how many use it.

Stores on the same file share one `Database`, so that a file has one writing thread in a
process. A forked child inherits connections that it must neither use nor close (SQLite's
rule 2.6 in https://www.sqlite.org/howtocorrupt.html): they are put aside for ever, and the
child's stores open the file anew.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from cave.errors import CaveError
from cave.store import migrate, sqlite
from cave.store.statements import texts
from cave.store.writer import FAULTS, Writer

T = TypeVar("T")

READERS = 4
"""Threads that read at once. Not the loop's own: those may all be waiting for something."""


class Database:
    """Writer and readers of one file. Use `opened`, which shares it."""

    def __init__(self, path: Path, *, busy_timeout: float) -> None:
        self.path = path
        self.pid = os.getpid()
        self.users = 0
        self.explain = partial(sqlite.explain, path=path)
        self._write = sqlite.engine(path, role="write", busy_timeout=0.0)
        self._read = sqlite.engine(path, role="read", busy_timeout=busy_timeout)
        with self._explained():
            sqlite.folder_of(path)
            migrate.prepare(self._write, path, patience=max(busy_timeout, migrate.PATIENCE))
        self.sql = texts(self._write.dialect)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="cave-read")
        self.writer = Writer(self._write, patience=busy_timeout, explain=self.explain)

    async def read(self, query: Callable[[sqlite3.Cursor], T]) -> T:
        """Give what `query` reads, in a thread and on a connection of its own."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._read_here, query
        )

    def _read_here(self, query: Callable[[sqlite3.Cursor], T]) -> T:
        with self._explained():
            connection = self._read.raw_connection()
            try:
                with closing(connection.cursor()) as cursor:
                    return query(cursor)  # type: ignore[arg-type]
            except FAULTS:
                connection.invalidate()
                raise
            finally:
                connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FAULTS as fault:
            if isinstance(fault, CaveError):
                raise
            raise self.explain(fault) from fault

    def close(self) -> None:
        """Finish what is queued and let go of the file."""
        self.writer.stop()
        self._readers.shutdown()
        self._read.dispose()
        self._write.dispose()


_open: dict[Path, Database] = {}
_inherited: list[Database] = []
"""What a forked child must keep untouched until it ends."""
_lock = threading.Lock()


def opened(path: Path, *, busy_timeout: float) -> Database:
    """The file's `Database` in this process, made and migrated if need be. Blocks."""
    path = Path(os.path.realpath(path))
    with _lock:
        database = _open.get(path)
        if database is None:
            database = _open[path] = Database(path, busy_timeout=busy_timeout)
        database.users += 1
        return database


def leave(database: Database) -> None:
    """Use it no more; the last one to leave closes it. Blocks."""
    with _lock:
        if _open.get(database.path) is not database:
            return  # of the parent process, or closed at exit
        database.users -= 1
        if database.users:
            return
        del _open[database.path]
    database.close()


@atexit.register
def _close_all() -> None:
    with _lock:
        left = [database for database in _open.values() if database.pid == os.getpid()]
        _open.clear()
    for database in left:
        database.close()


def _forked() -> None:
    global _lock  # noqa: PLW0603  a thread of the parent may hold the old one
    _lock = threading.Lock()
    _inherited.extend(_open.values())
    _open.clear()


os.register_at_fork(after_in_child=_forked)
