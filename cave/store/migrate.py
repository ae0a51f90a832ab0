"""Leading a database to this version's schema, once, whoever comes first.

All of it happens in one transaction that takes SQLite's write lock at its start: a second
process waits for it and then finds the work done; a process that dies half-way leaves
nothing behind. Alembic, slow to import, is there to lead older databases on: one that is up to
date costs one SELECT, and an empty one gets the tables as they are now.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
)
from sqlalchemy.exc import OperationalError

from cave.errors import StoreError
from cave.events import FORMAT
from cave.store import sqlite
from cave.store.schema import REVISION, metadata
from cave.store.statements import texts

SCRIPTS = Path(__file__).with_name("migrations")

ALEMBIC = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic notes how far a database is, as Alembic makes it."""

PATIENCE = 30.0
"""Seconds to wait for another process that migrates."""


def prepare(engine: Engine, path: Path, *, patience: float) -> None:
    """Make or upgrade the tables. Raises `StoreError` for what a newer version wrote."""
    until = time.monotonic() + patience
    while not _tried(engine, path):
        if time.monotonic() > until:
            raise StoreError(
                f"{str(path)!r} is locked by another program for {patience:.0f} s; close it, or "
                f"try again"
            )
        time.sleep(0.02)


def _tried(engine: Engine, path: Path) -> bool:
    """False when another process was in the way: SQLite does not always wait by itself."""
    try:
        with engine.connect() as connection:
            if path.stat().st_size == 0 or not _is_current(connection, path):
                _upgrade(connection, path)
    except (OperationalError, sqlite3.OperationalError) as fault:
        if not sqlite.is_busy(getattr(fault, "orig", fault)):
            raise
        return False
    return True


def _upgrade(connection: Connection, path: Path) -> None:
    connection.rollback()
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    sqlite.use_wal(raw)
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    if not inspect(connection).get_table_names():
        _create(connection)
    elif not _is_current(connection, path):  # another process may have done it meanwhile
        _migrate(connection)
    connection.commit()


def _is_current(connection: Connection, path: Path) -> bool:
    """Whether the tables are this version's. Raises `StoreError` for a newer version's."""
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if tables:
            raise StoreError(
                f"{str(path)!r} is a database of another program (tables: "
                f"{', '.join(sorted(tables)[:5])}); set CAVE_HOME to another folder"
            )
        return False
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    pairs = connection.exec_driver_sql(texts(connection.dialect)["meta"])
    known: dict[str, str] = {key: value for key, value in pairs}  # noqa: C416  rows are no pairs
    if int(known.get("format", 0)) > FORMAT or not (found == REVISION or _is_older(str(found))):
        raise StoreError(
            f"{str(path)!r} was written by a newer cave ({known.get('version', 'unknown')}: schema "
            f"{found}, records of format {known.get('format')}); this is cave {_version()}: schema "
            f"{REVISION}, format {FORMAT}. Upgrade with: pip install -U cave-runtime"
        )
    return found == REVISION and int(known["format"]) == FORMAT


def _is_older(revision: str) -> bool:
    from alembic.script import ScriptDirectory

    return revision in {
        script.revision for script in ScriptDirectory(str(SCRIPTS)).walk_revisions()
    }


def _create(connection: Connection) -> None:
    """The tables that all migrations would lead to, and Alembic's own with their last."""
    metadata.create_all(connection)
    ALEMBIC.create(connection)
    connection.execute(ALEMBIC.insert(), {"version_num": REVISION})
    _note_version(connection)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "head")
    _note_version(connection)


def _note_version(connection: Connection) -> None:
    sql = texts(connection.dialect)
    for key, value in {"format": str(FORMAT), "version": _version()}.items():
        changed = connection.exec_driver_sql(sql["meta_update"], {"of": key, "value": value})
        if not changed.rowcount:
            connection.exec_driver_sql(sql["meta_insert"], {"key": key, "value": value})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cave-runtime")
    except PackageNotFoundError:
        return "unknown"
