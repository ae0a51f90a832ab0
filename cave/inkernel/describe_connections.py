"""Facts of connections: tables, columns, how many rows where that is known at a glance.

A connection is left as it was: no transaction begins or ends, no cursor moves, no function
of the user is called (row factories, text factories, trace callbacks). A database in a file is
looked at through a connection of our own, which reads only and never waits for a lock.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import describe, discreet, glance, kinds

Told = tuple[list[int] | None, str]
Schema = dict[str, list[str]]
TABLES = 12
"""Tables that are told of."""
COLUMNS = 12
"""Columns of one table that are named."""
COUNTED = 1_000
"""Rows up to which the rows of a table are counted."""
_STEPS = 1_000
"""Instructions of SQLite between two looks at the clock."""


def facts(obj: Any, base: type, *, exact: bool) -> Told | None:
    """Shape and summary; None of what is not known."""
    name = f"{kinds.library(base).lstrip('_')}.{kinds.name(base)}"
    rule = _RULES.get(name)
    if rule is None or (not exact and name not in _FAMILY):
        return None
    return None, rule(obj)


def schema(obj: Any) -> Schema:
    """Tables with their columns, as far as a glance tells; empty where it does not."""
    for base in kinds.mro(type(obj)):
        read = _SCHEMAS.get(f"{kinds.library(base).lstrip('_')}.{kinds.name(base)}")
        if read is not None:
            try:
                return read(obj)
            except Exception:
                return {}
    return {}


# -- sqlite ----------------------------------------------------------------------------------


def _sqlite(conn: Any) -> str:
    import sqlite3

    try:
        place = _place(conn)
        if place is None:
            return "SQLite connection; not asked: it calls functions for each query"
        busy = ", in a transaction" if _in_transaction(conn) else ""
        told = f"SQLite {_quoted(place) if place else 'in memory'}{busy}"
        with _reader(conn, place) as ask:
            return f"{told}; {_tables(ask)}"
    except sqlite3.ProgrammingError as error:
        text = str(error)
        return (
            "SQLite connection, closed" if "closed" in text else f"SQLite connection; {text[:80]}"
        )
    except sqlite3.OperationalError as error:
        return f"SQLite connection; not readable now: {str(error)[:60]}"


def _in_transaction(conn: Any) -> bool:
    import sqlite3

    return bool(sqlite3.Connection.in_transaction.__get__(conn))


def _quoted(path: str) -> str:
    return path.rpartition("/")[2]


def _ask(conn: Any, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a query on the user's connection, with nothing of his in the way."""
    import sqlite3

    cursor = sqlite3.Cursor(conn)
    cursor.row_factory = None
    try:
        return cursor.execute(query, values).fetchall()
    finally:
        cursor.close()


def _place(conn: Any) -> str | None:
    """The file of a database; empty in memory; None where a query would call user's code."""
    import gc
    import sqlite3

    factory = sqlite3.Connection.text_factory.__get__(conn)
    if factory not in (str, bytes) or any(
        type(held) is types.ModuleType for held in gc.get_referents(conn)
    ):
        return None  # a callback for traces, progress or permissions holds the module
    for _, name, file in _ask(conn, "PRAGMA database_list"):  # reads no file, and waits for none
        if name in ("main", b"main"):
            return file.decode("utf-8", "replace") if type(file) is bytes else file or ""
    return ""


@contextlib.contextmanager
def _reader(conn: Any, place: str) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """What asks: through an own connection to a file, through the user's one in memory."""
    import sqlite3
    from urllib.parse import quote

    if not place:
        yield lambda query, *values: _ask(conn, query, *values)
        return
    from .observed import recorded

    with recorded():
        own = sqlite3.connect(f"file:{quote(place)}?mode=ro", uri=True, timeout=0)
    deadline = glance.Deadline()
    own.set_progress_handler(lambda: deadline.over, _STEPS)
    try:
        yield lambda query, *values: own.execute(query, values).fetchall()
    finally:
        own.close()


_Asker = Callable[..., list[tuple[Any, ...]]]


def _listed(ask: _Asker) -> list[tuple[str, str, str]]:
    """Name, kind and definition of tables and views."""
    query = (
        "SELECT CAST(name AS BLOB), CAST(type AS BLOB), CAST(coalesce(sql, '') AS BLOB) "
        "FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' "
        "ORDER BY rowid LIMIT 200"
    )
    return [tuple(_text(part) for part in row) for row in ask(query)]  # type: ignore[misc]


def _text(raw: Any) -> str:
    return bytes(raw).decode("utf-8", "replace")


def _columns(ask: _Asker, table: str) -> list[str]:
    query = "SELECT CAST(name AS BLOB), CAST(type AS BLOB) FROM pragma_table_info(?) LIMIT 100"
    return [f"{_text(name)} {_text(kind).lower()}".rstrip() for name, kind in ask(query, table)]


def _tables(ask: _Asker) -> str:
    found = _listed(ask)
    if not found:
        return "no tables"
    deadline = glance.Deadline(glance.SECONDS / 2)
    parts = []
    for name, kind, sql in found[:TABLES]:
        if deadline.over:
            break
        columns = _columns(ask, name)
        more = f", and {len(columns) - COLUMNS} more" if len(columns) > COLUMNS else ""
        rows = "" if kind == "view" else _rows(ask, name, sql)
        what = "view " if kind == "view" else ""
        parts.append(f"{what}{name}{rows} ({', '.join(columns[:COLUMNS])}{more})")
    rest = [name for name, _, _ in found[len(parts) :]]
    listed = ", ".join(rest[:TABLES]) + (", ..." if len(rest) > TABLES else "")
    return ", ".join(parts) + (f"; and {len(rest)} more: {listed}" if rest else "")


def _rows(ask: _Asker, table: str, sql: str) -> str:
    """How many rows: counted while they are few, else by the last row's number."""
    if "VIRTUAL" in sql[:16].upper():
        return ""
    quoted = '"' + table.replace('"', '""') + '"'
    counted = f"SELECT count(*) FROM (SELECT 1 FROM {quoted} LIMIT {COUNTED + 1})"  # noqa: S608
    ((count,),) = ask(counted)
    if count <= COUNTED:
        return f" {count:,} rows"
    if "WITHOUT ROWID" in sql.upper():
        return f" over {COUNTED:,} rows"
    ((last,),) = ask(f"SELECT max(rowid) FROM {quoted}")  # noqa: S608
    return f" ~{last:,} rows" if type(last) is int else ""


def _sqlite_schema(conn: Any) -> Schema:
    place = _place(conn)
    if place is None:
        return {}
    with _reader(conn, place) as ask:
        return {n: [c.partition(" ")[0] for c in _columns(ask, n)] for n, _, _ in _listed(ask)[:50]}


# -- others ----------------------------------------------------------------------------------


def _duckdb(conn: Any) -> str:
    """Through a connection of our own to the same database: the user's results stay."""
    rows = _duckdb_columns(conn)
    if not rows:
        return "DuckDB; no tables"
    tables: dict[str, list[str]] = {}
    sizes: dict[str, Any] = {}
    for table, column, kind, size in rows:
        tables.setdefault(table, []).append(f"{column} {str(kind).lower()}")
        sizes[table] = size
    parts = []
    for name, columns in list(tables.items())[:TABLES]:
        more = f", and {len(columns) - COLUMNS} more" if len(columns) > COLUMNS else ""
        count = f" ~{sizes[name]:,} rows" if type(sizes[name]) is int else ""
        parts.append(f"{name}{count} ({', '.join(columns[:COLUMNS])}{more})")
    rest = list(tables)[TABLES:]
    more = f"; and {len(rest)} more: {', '.join(rest[:TABLES])}" if rest else ""
    return f"DuckDB; {', '.join(parts)}{more}"


def _duckdb_columns(conn: Any) -> list[tuple[Any, ...]]:
    own = conn.cursor()
    try:
        query = (
            "SELECT c.table_name, c.column_name, c.data_type, t.estimated_size "
            "FROM duckdb_columns() c LEFT JOIN duckdb_tables() t "
            "ON c.table_oid = t.table_oid AND c.database_oid = t.database_oid "
            "WHERE NOT c.internal ORDER BY c.table_oid, c.column_index LIMIT 500"
        )
        return list(own.execute(query).fetchall())
    finally:
        own.close()


def _duckdb_schema(conn: Any) -> Schema:
    found: Schema = {}
    for table, column, *_ in _duckdb_columns(conn):
        found.setdefault(table, []).append(column)
    return found


def _relation(obj: Any) -> str:
    """Columns of a relation; it is not executed."""
    pairs = list(zip(obj.columns, obj.types, strict=False))
    listed = ", ".join(f"{name} {str(kind).lower()}" for name, kind in pairs[:30])
    more = f", and {len(pairs) - 30} more" if len(pairs) > 30 else ""
    return f"not executed; columns {listed}{more}"


def _engine(obj: Any) -> str:
    """Where an engine leads, without a password; a file of SQLite is looked into."""
    url = (kinds.attributes(obj) or {}).get("url")
    if url is None:
        return "engine"
    told = discreet.cleaned(url.render_as_string(hide_password=True))
    path = _engine_file(url)
    if not path:
        return told
    import sqlite3

    try:
        with _reader(None, path) as ask:
            return f"{told}; {_tables(ask)}"
    except sqlite3.Error as error:
        return f"{told}; not readable now: {str(error)[:60]}"


def _engine_file(url: Any) -> str:
    import os

    path: Any = url.database if str(url.drivername).partition("+")[0] == "sqlite" else None
    plain = type(path) is str and path and not path.startswith((":", "file:"))
    return os.path.abspath(path) if plain and os.path.isfile(path) else ""


def _engine_schema(obj: Any) -> Schema:
    attributes = kinds.attributes(obj) or {}
    if "engine" in attributes and "url" not in attributes:
        return _engine_schema(attributes["engine"])
    path = _engine_file(attributes["url"])
    if not path:
        return {}
    with _reader(None, path) as ask:
        return {n: [c.partition(" ")[0] for c in _columns(ask, n)] for n, _, _ in _listed(ask)[:50]}


def _connection(obj: Any) -> str:
    engine = (kinds.attributes(obj) or {}).get("engine")
    return f"connection of {_engine(engine)}" if engine is not None else "connection"


def _postgres(obj: Any) -> str:
    """Where it leads, from the driver's own memory; the server is not asked."""
    info = obj.info
    closed = ", closed" if obj.closed else ""
    where = f"{info.dbname} at {info.host or 'local socket'} as {info.user}"
    return f"PostgreSQL {describe.clip(where, 120)}{closed}"


_RULES: dict[str, Callable[[Any], str]] = {
    "sqlite3.Connection": _sqlite,
    "duckdb.DuckDBPyConnection": _duckdb,
    "duckdb.DuckDBPyRelation": _relation,
    "sqlalchemy.Engine": _engine,
    "sqlalchemy.Connection": _connection,
    "psycopg.Connection": _postgres,
    "psycopg2.connection": _postgres,
}
_FAMILY = frozenset({"sqlite3.Connection"})
"""Rules that ask nothing of a class that derives."""
_SCHEMAS: dict[str, Callable[[Any], Schema]] = {
    "sqlite3.Connection": _sqlite_schema,
    "duckdb.DuckDBPyConnection": _duckdb_schema,
    "sqlalchemy.Engine": _engine_schema,
    "sqlalchemy.Connection": _engine_schema,
}
