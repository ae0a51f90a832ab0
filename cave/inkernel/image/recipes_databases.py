"""Other databases: duckdb, and engines of SQLAlchemy, whose passwords are not written."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from . import secrets
from .frozen import frozen
from .lost import Lost
from .places import here
from .recipes_processes import losing
from .remarks import gone, remark
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler


def users(name: str) -> Any:
    """A library of the user's environment; cave itself need not have it."""
    return importlib.import_module(name)


# -- duckdb --------------------------------------------------------------------------------------


@rule("duckdb.DuckDBPyConnection", "_duckdb.DuckDBPyConnection", "duckdb.duckdb.DuckDBPyConnection",
      "_duckdb._duckdb.DuckDBPyConnection")  # fmt: skip
def _duckdb(pickler: Pickler, obj: Any) -> Any:
    try:
        own = obj.cursor()  # its own result, if it has one, stays as it is
    except Exception as exc:
        return pickler.lose(obj, f"it is closed ({exc})")
    try:
        bases = own.execute(
            "SELECT path, readonly FROM duckdb_databases() WHERE NOT internal ORDER BY database_oid"
        ).fetchall()
    finally:
        own.close()
    if not bases or not bases[0][0]:
        return pickler.lose(
            obj, "its database is in memory only; use a file, or keep its tables in DataFrames"
        )
    how = f"opened again on {bases[0][0]!r}; open transactions, temporary tables, registered views "
    pickler.rebuilt(obj, how + "and settings are gone")
    return make_duckdb, (pickler.root, bases[0][0], bool(bases[0][1]), bases[1:])


@frozen
def make_duckdb(root: str, path: str, readonly: Any, attached: list[tuple[str, Any]]) -> Any:
    """A connection to the file of that path."""
    import duckdb

    path = here(path)
    if not os.path.exists(path):
        return gone(root, "duckdb.DuckDBPyConnection", f"the database {path!r} is gone")
    made = duckdb.connect(path, read_only=readonly)
    for other, _ in attached:
        remark("lost", root, "duckdb.DuckDBPyConnection", f"attach {other or 'memory'!r} again")
    return made


losing(
    "a query of a duckdb connection that ended; run it again, or keep its result with .df()",
    "duckdb.DuckDBPyRelation", "_duckdb.DuckDBPyRelation", "duckdb.duckdb.DuckDBPyRelation",
    "_duckdb._duckdb.DuckDBPyRelation", "duckdb._relation.DuckDBPyRelation",
)  # fmt: skip


# -- SQLAlchemy's engines --------------------------------------------------------------------


@rule("sqlalchemy.engine.base.Engine")
def _engine(pickler: Pickler, obj: Any) -> Any:
    url = obj.url
    if url.get_backend_name() == "sqlite" and _in_memory(url):
        return pickler.lose(
            obj, "its database is in memory only; use a file, or keep its tables in DataFrames"
        )
    hidden, password = _hide_password(url)
    how = f"a new engine and pool for {hidden.render_as_string(hide_password=True)}"
    if url.password:
        how += f"; its password {secrets.where(password)}"
    if names := _connect_args(obj):
        how += f"; connect_args are not kept: {', '.join(names)}"
    pickler.rebuilt(obj, f"{how}; listeners must be registered again")
    settings = {"echo": obj.echo, "hide_parameters": obj.hide_parameters}
    if obj.logging_name:
        settings["logging_name"] = obj.logging_name
    parts = {name: getattr(hidden, name) for name in _PARTS}
    parts["query"] = dict(hidden.query)
    state = {
        "pool": _pool(obj.pool),
        "settings": settings,
        "options": dict(obj.get_execution_options()),
        "isolation": getattr(obj.dialect, "_on_connect_isolation_level", None),
    }
    args = (pickler.root, parts, password if url.password else "", state)
    return make_engine, args


_PARTS = ("drivername", "username", "host", "port", "database")
_POOL = {"_recycle": "pool_recycle", "_pre_ping": "pool_pre_ping", "_timeout": "pool_timeout",
         "_max_overflow": "max_overflow"}  # fmt: skip


def _in_memory(url: Any) -> bool:
    base = url.database or ""
    return base in ("", ":memory:") or "mode=memory" in base or url.query.get("mode") == "memory"


def _hide_password(url: Any) -> tuple[Any, secrets.Reference | None]:
    plain, _ = secrets.split(dict(url.query))
    found = secrets.reference(str(url.password)) if url.password else None
    return url._replace(password=None, query=plain), found


def _pool(pool: Any) -> dict[str, Any]:
    found = {name: getattr(pool, key) for key, name in _POOL.items() if hasattr(pool, key)}
    if hasattr(pool, "_pool") and hasattr(pool._pool, "maxsize"):
        found["pool_size"] = pool.size()
    found["poolclass"] = type(pool)
    return found


def _connect_args(obj: Any) -> list[str]:
    """Names of arguments to the driver that do not come from the URL."""
    closure = getattr(getattr(obj.pool, "_creator", None), "__closure__", None) or ()
    _, usual = obj.dialect.create_connect_args(obj.url)
    given: dict[str, Any] = {}
    for cell in closure:
        if isinstance(cell.cell_contents, dict):
            given.update(cell.cell_contents)
    return sorted(str(name) for name in given if name not in usual)


@frozen
def make_engine(root: str, parts: dict[str, Any], password: Any, state: dict[str, Any]) -> Any:
    """An engine for a URL; the password comes from the environment."""
    sqlalchemy = users("sqlalchemy")
    secret = None if password == "" else secrets.resolve(password)
    if secret is None and password != "":
        what = "" if password is None else f": the environment has no {password[0]}"
        remark("changed", root, "sqlalchemy.engine.base.Engine", f"it has no password{what}")
    if isinstance(parts["database"], str) and not parts["host"]:
        parts = {**parts, "database": here(parts["database"])}
    url = sqlalchemy.URL.create(password=secret, **parts)
    pool = dict(state["pool"])
    made = sqlalchemy.create_engine(url, **pool, **state["settings"])
    if state["isolation"]:
        made = made.execution_options(isolation_level=state["isolation"])
    return made.execution_options(**state["options"]) if state["options"] else made


@rule("sqlalchemy.engine.base.OptionEngine")
def _option_engine(_: Pickler, obj: Any) -> Any:
    return make_option_engine, (obj._proxied, dict(obj.get_execution_options()))


@frozen
def make_option_engine(engine: Any, options: dict[str, Any]) -> Any:
    """An engine with options over another one."""
    return engine if isinstance(engine, Lost) else engine.execution_options(**options)


@rule("sqlalchemy.ext.asyncio.engine.AsyncEngine")
def _async_engine(_: Pickler, obj: Any) -> Any:
    return make_async_engine, (obj.sync_engine,)


@frozen
def make_async_engine(engine: Any) -> Any:
    """The asynchronous face of an engine."""
    kind = users("sqlalchemy.ext.asyncio").AsyncEngine
    return engine if isinstance(engine, Lost) else kind(engine)


@rule("sqlalchemy.engine.url.URL")
def _url(pickler: Pickler, obj: Any) -> Any:
    if not obj.password:
        return NotImplemented
    hidden, password = _hide_password(obj)
    pickler.rebuilt(obj, f"its password {secrets.where(password)}")
    parts = {name: getattr(hidden, name) for name in _PARTS}
    parts["query"] = dict(hidden.query)
    return make_url, (pickler.root, parts, password)


@frozen
def make_url(root: str, parts: dict[str, Any], password: Any) -> Any:
    """A URL; the password comes from the environment."""
    sqlalchemy = users("sqlalchemy")
    secret = secrets.resolve(password)
    if secret is None:
        remark("changed", root, "sqlalchemy.engine.url.URL", "it has no password")
    return sqlalchemy.URL.create(password=secret, **parts)


losing(
    "a connection ends with its process; type engine.connect()",
    "sqlalchemy.engine.base.Connection", "sqlalchemy.engine.base.Transaction",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection", "sqlalchemy.pool.base._ConnectionFairy",
)  # fmt: skip
losing("rows that were not fetched yet; run the query again", "sqlalchemy.engine.result.Result")
losing("a pool of connections; it is made with its engine", "sqlalchemy.pool.base.Pool")
losing(
    "a connection to a database server ends with its process; connect again",
    "psycopg.Connection", "psycopg2.extensions.connection", "psycopg.AsyncConnection",
    "psycopg.Cursor", "psycopg2.extensions.cursor", "pymysql.connections.Connection",
    "redis.client.Redis", "pymongo.mongo_client.MongoClient", "pymongo.synchronous.mongo_client."
    "MongoClient", "mysql.connector.connection.MySQLConnection", "oracledb.connection.Connection",
    "pyodbc.Connection", "snowflake.connector.connection.SnowflakeConnection",
)  # fmt: skip
