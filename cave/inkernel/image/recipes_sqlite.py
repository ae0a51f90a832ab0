"""sqlite3: connections to files are opened again, those in memory are carried by content."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

from . import places
from .frozen import frozen
from .lost import Lost
from .places import here
from .recipes_processes import losing
from .remarks import gone, remark
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_PRAGMAS = (
    "busy_timeout", "cache_size", "foreign_keys", "ignore_check_constraints", "mmap_size",
    "query_only", "read_uncommitted", "recursive_triggers", "synchronous", "temp_store",
)  # fmt: skip
_SETTINGS = ("isolation_level", "row_factory", "text_factory")
_COLUMNS, _TYPES = 2, 1  # PARSE_COLNAMES, PARSE_DECLTYPES
_fresh: dict[str, Any] = {}
"""What a connection is like that nobody has set anything on."""


@rule("sqlite3.Connection", derived=True)
def _connection(pickler: Pickler, obj: Any) -> Any:
    import sqlite3

    try:
        bases = _query(obj, "PRAGMA database_list")
    except sqlite3.ProgrammingError as exc:
        if "closed" in str(exc):
            return make_closed_sqlite, (type(obj),)
        return pickler.lose(obj, "it belongs to another thread, which alone may look at it")
    files = {name: path for _, name, path in bases if name != "temp"}
    path = files.pop("main", "")
    in_memory = not path or not os.path.exists(path)
    missing = [name for name, file in files.items() if not file]
    pickler.rebuilt(obj, _told(obj, path, in_memory=in_memory, missing=missing))
    source = pickle.PickleBuffer(_content(obj)) if in_memory else path
    state = {
        "settings": {name: getattr(obj, name) for name in _SETTINGS},
        "pragmas": _changed_pragmas(obj),
        "attached": {name: file for name, file in files.items() if file},
    }
    if hasattr(obj, "autocommit"):
        state["settings"]["autocommit"] = obj.autocommit
    args = (pickler.root, type(obj), source, _detected_types(obj))
    return make_sqlite, args, state, None, None, fill_sqlite


def _content(obj: Any) -> bytes:
    if not _query(obj, "PRAGMA page_count")[0][0]:
        return b""  # SQLite does not serialise a database that has nothing yet
    return bytes(obj.serialize())


def _told(obj: Any, path: str, *, in_memory: bool, missing: list[str]) -> str:
    told = [f"opened again on {places.told(path)!r}"]
    if in_memory:
        told = ["a new database in memory with the same content, shared with no other connection"]
    if obj.in_transaction:
        told.append(
            "what its open transaction wrote counts as committed" if in_memory
            else "its open transaction is gone, with the changes that were not committed"
        )  # fmt: skip
    if missing:
        told.append(f"attached databases in memory are gone: {', '.join(missing)}")
    if tables := _query(obj, "SELECT name FROM sqlite_temp_master WHERE type = 'table'"):
        told.append(f"temporary tables are gone: {', '.join(name for (name,) in tables)}")
    if made := _functions(obj):
        told.append(f"functions and collations must be registered again: {', '.join(made)}")
    return "; ".join(told)


def _query(obj: Any, sql: str) -> list[Any]:
    """Asks without the connection's row and text factories."""
    import sqlite3

    factory = obj.text_factory
    if factory is not str:
        obj.text_factory = str
    try:
        cursor = sqlite3.Cursor(obj)
        cursor.row_factory = None
        return cursor.execute(sql).fetchall()
    finally:
        if factory is not str:
            obj.text_factory = factory


def _names(obj: Any) -> set[str]:
    found = {str(row[0]) for row in _query(obj, "PRAGMA function_list")}
    return found | {f"collation {row[1]}" for row in _query(obj, "PRAGMA collation_list")}


def _functions(obj: Any) -> list[str]:
    """Functions and collations that the user registered: those that no fresh connection has."""
    return sorted(_names(obj) - _of_fresh()["names"])


def _of_fresh() -> dict[str, Any]:
    import sqlite3

    if not _fresh:
        plain = sqlite3.connect(":memory:")
        _fresh["names"] = _names(plain)
        _fresh["pragmas"] = {name: _query(plain, f"PRAGMA {name}") for name in _PRAGMAS}
        plain.close()
    return _fresh


def _changed_pragmas(obj: Any) -> dict[str, Any]:
    usual = _of_fresh()["pragmas"]
    now = {name: _query(obj, f"PRAGMA {name}") for name in _PRAGMAS}
    return {name: rows[0][0] for name, rows in now.items() if rows and rows != usual[name]}


def _detected_types(obj: Any) -> int:
    """`detect_types`, which no attribute tells: found out with converters of our own."""
    import sqlite3

    known: dict[str, Any] = sqlite3.converters
    kept = dict(known)
    asked: list[bytes] = []
    wait = _query(obj, "PRAGMA busy_timeout")[0][0]
    try:
        known["TEXT"] = known["CAVE"] = asked.append
        _query(obj, "PRAGMA busy_timeout = 0")
        _query(obj, "SELECT 'a' AS \"c [cave]\"")
        columns = _COLUMNS if asked else 0
        asked.clear()
        _query(obj, "SELECT name FROM sqlite_master WHERE name NOT NULL LIMIT 1")
    except sqlite3.OperationalError:  # locked by somebody else
        return 0
    finally:
        known.clear()
        known.update(kept)
        _query(obj, f"PRAGMA busy_timeout = {wait:d}")
    return columns | (_TYPES if asked else 0)


@frozen
def make_sqlite(root: str, kind: Any, source: Any, detect: int) -> Any:
    """A connection to the file of that path, or to a new database with that content."""
    import sqlite3

    path = here(source) if isinstance(source, str) else ":memory:"
    if path != ":memory:" and not os.path.exists(path):
        return gone(root, "sqlite3.Connection", f"the database {path!r} is gone")
    # it may have been used in several threads: that cannot be told, and must go on working
    made = sqlite3.connect(path, detect_types=detect, check_same_thread=False, factory=kind)
    if path == ":memory:" and len(source):
        made.deserialize(source)
    return made


@frozen
def fill_sqlite(made: Any, state: dict[str, Any]) -> None:
    """Its settings."""
    if isinstance(made, Lost):
        return
    import sqlite3

    for name, value in state["pragmas"].items():
        made.execute(f"PRAGMA {name} = {value}")
    for name, path in state["attached"].items():
        quoted = name.replace('"', '""')
        try:
            made.execute(f'ATTACH ? AS "{quoted}"', (here(path),))
        except sqlite3.Error as exc:
            remark("lost", "", "sqlite3.Connection", f"{path!r} cannot be attached again: {exc}")
    for name, value in state["settings"].items():
        if name == "autocommit" and not hasattr(made, name):
            continue
        setattr(made, name, value)


@frozen
def make_closed_sqlite(kind: Any) -> Any:
    """A connection that is closed."""
    import sqlite3

    made = sqlite3.connect(":memory:", factory=kind)
    made.close()
    return made


# -- cursors and rows ------------------------------------------------------------------------


@rule("sqlite3.Cursor", derived=True)
def _cursor(pickler: Pickler, obj: Any) -> Any:
    import gc

    if any(type(part).__name__ == "Statement" for part in gc.get_referents(obj)):
        return pickler.lose(obj, "rows of its query were not fetched yet; run the query again")
    pickler.rebuilt(obj, "a new cursor; lastrowid, rowcount and description start anew")
    state = {"arraysize": obj.arraysize, "row_factory": obj.row_factory}
    return make_sqlite_cursor, (obj.connection, type(obj)), state, None, None, fill_sqlite_cursor


@frozen
def make_sqlite_cursor(connection: Any, kind: Any) -> Any:
    """A cursor that has run nothing."""
    if isinstance(connection, Lost):
        return connection
    try:
        return connection.cursor(kind)
    except Exception:  # of a connection that is closed
        return Lost("", "sqlite3.Cursor", "its connection is closed")


@frozen
def fill_sqlite_cursor(made: Any, state: dict[str, Any]) -> None:
    """Its settings."""
    if not isinstance(made, Lost):
        for name, value in state.items():
            setattr(made, name, value)


@rule("sqlite3.Row", derived=True)
def _row(_: Pickler, obj: Any) -> Any:
    return make_sqlite_row, (type(obj), tuple(obj.keys()), tuple(obj))


@frozen
def make_sqlite_row(kind: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """A row, which is made from a cursor that knows the names."""
    import sqlite3

    columns = ", ".join('1 AS "{}"'.format(name.replace('"', '""')) for name in names)
    connection = sqlite3.connect(":memory:")
    try:
        cursor = connection.execute(f"SELECT {columns}") if names else connection.cursor()
        return kind(cursor, values)
    finally:
        connection.close()


losing("a part of a database that is open for reading or writing; open it again", "sqlite3.Blob")
