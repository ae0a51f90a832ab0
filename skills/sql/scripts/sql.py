"""Query databases into DataFrames."""

from __future__ import annotations

from typing import Any

import pandas as pd

import cave


@cave.skill(version="1.0.0")
def run_query(
    sql: str,
    connection: Any,
    params: dict[str, Any] | None = None,
    *,
    limit: int = 100_000,
) -> pd.DataFrame:
    """The rows of one query as a DataFrame; `params` fill its `:names`.

    `connection` is a SQLAlchemy engine or connection, a sqlite3, duckdb or other DB-API
    connection, the path of a SQLite file, or a URL. Only queries run, no changes.
    """
    import re

    def scrub(text: str) -> str:
        """The query without its texts and comments."""
        return re.sub(
            r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL
        )

    bare = scrub(sql).strip().rstrip(";").strip()
    first = re.match(r"\(*\s*(\w+)", bare)
    allowed = (
        "select",
        "with",
        "values",
        "show",
        "describe",
        "explain",
        "from",
        "summarize",
        "pivot",
    )
    writes = r"\b(insert\s+into|update\s+\S+\s+set|delete\s+from|merge\s+into|into\s+outfile)\b"
    if first is None or first[1].lower() not in allowed or ";" in bare:
        raise ValueError(
            f"only one query can run here, and it begins with one of {', '.join(allowed)}; "
            f"this is {sql.strip()[:80]!r}"
        )
    if re.search(writes, bare, re.IGNORECASE) or re.match(
        r"explain\s+analy[sz]e", bare, re.IGNORECASE
    ):
        raise ValueError(
            f"this would change the database: {sql.strip()[:80]!r}; use a skill for it"
        )
    opened, done = _opened(connection)
    try:
        names, rows = _fetched(opened, sql.strip().rstrip(";"), dict(params or {}), limit + 1)
    finally:
        done()
    frame = pd.DataFrame(rows[:limit], columns=names)
    frame.attrs["truncated"] = len(rows) > limit
    if len(rows) > limit:
        print(f"these are the first {limit:,} rows; there are more: filter or add up in the query")
    return frame


@cave.skill(version="1.0.0")
def list_tables(connection: Any) -> pd.DataFrame:
    """One row for each column of each table and view: table, column, type."""
    opened, done = _opened(connection)
    try:
        rows = _columns(opened)
    finally:
        done()
    return pd.DataFrame(rows, columns=["table", "column", "type"])


def _opened(connection: Any) -> tuple[Any, Any]:
    """A live connection, and what ends it: nothing for one that was given."""
    import sqlite3
    from pathlib import Path

    if isinstance(connection, Path) or (isinstance(connection, str) and "://" not in connection):
        path = Path(connection)
        if not path.is_file():
            raise FileNotFoundError(f"there is no database file {str(path)!r}")
        made = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        return made, made.close
    if isinstance(connection, str):
        import sqlalchemy

        engine = sqlalchemy.create_engine(connection)
        opened = engine.connect()
        return opened, lambda: (opened.close(), engine.dispose())
    if type(connection).__module__.startswith("sqlalchemy") and hasattr(connection, "connect"):
        opened = connection.connect()
        return opened, opened.close
    if not hasattr(connection, "execute") and not hasattr(connection, "cursor"):
        raise TypeError(f"{type(connection).__name__} is no connection to a database")
    return connection, lambda: None


def _fetched(
    opened: Any, sql: str, params: dict[str, Any], most: int
) -> tuple[list[str], list[Any]]:
    import re

    module = type(opened).__module__
    if module.startswith("sqlalchemy"):
        import sqlalchemy

        result = opened.execute(sqlalchemy.text(sql), params)
        return list(result.keys()), [tuple(row) for row in result.fetchmany(most)]
    # a cursor of duckdb's is another connection, without the tables that were registered
    cursor = opened if "duckdb" in module else opened.cursor()
    try:
        if "duckdb" in module:  # $name there
            sql = re.sub(
                r"('(?:[^']|'')*')|(?<![:\w]):([A-Za-z_]\w*)", lambda m: m[1] or f"${m[2]}", sql
            )
            cursor.execute(sql, params) if params else cursor.execute(sql)
        elif "sqlite3" in module or not params:
            cursor.execute(sql, params)
        else:
            cursor.execute(_pyformat(sql), params)
        names = [column[0] for column in cursor.description or ()]
        return names, [tuple(row) for row in cursor.fetchmany(most)]
    finally:
        if cursor is not opened:
            cursor.close()


def _pyformat(sql: str) -> str:
    """`:name` as `%(name)s`, which most drivers understand."""
    import re

    return re.sub(
        r"('(?:[^']|'')*')|(?<![:\w]):([A-Za-z_]\w*)|%",
        lambda m: (m[1] or "").replace("%", "%%") or (f"%({m[2]})s" if m[2] else "%%"),
        sql,
    )


def _columns(opened: Any) -> list[tuple[str, str, str]]:
    if type(opened).__module__.startswith("sqlalchemy"):
        import sqlalchemy

        looked = sqlalchemy.inspect(opened)
        return [
            (name, column["name"], str(column["type"]))
            for name in [*looked.get_table_names(), *looked.get_view_names()]
            for column in looked.get_columns(name)
        ]
    duck = "duckdb" in type(opened).__module__
    cursor = opened if duck else opened.cursor()
    try:
        if "sqlite3" in type(opened).__module__:
            cursor.execute(
                "select m.name, c.name, c.type from sqlite_master m, pragma_table_info(m.name) c "
                "where m.type in ('table', 'view') and m.name not like 'sqlite_%' "
                "order by m.name, c.cid"
            )
        else:
            cursor.execute(
                "select table_name, column_name, data_type from information_schema.columns "
                "where table_schema not in ('information_schema', 'pg_catalog') "
                "order by table_name, ordinal_position"
            )
        return [tuple(row) for row in cursor.fetchall()]
    finally:
        if not duck:
            cursor.close()
