"""Thousands of real records, a loop over them, and the database outside that it writes to.

The texts are what every Python brings along: the paragraphs of its language reference, and
docstrings of its standard library.
"""

from __future__ import annotations

import ast
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cave
from cave import SkillContext

LOOP = """
import time
from collections import Counter
words, characters, ids = Counter(), 0, []
for record in cave.each(records, key=lambda r: r['topic']):
    file_it = file_here if record['id'] % 4 == 3 else file
    time.sleep(wait)
    number = file_it(record['id'], len(record['text']))
    words.update(record['text'].lower().split())
    characters += number
    ids.append(record['id'])
most = words.most_common(10)
"""
"""One effect for each record, by the host or in the kernel, and what adds up."""
NAMES = ("words", "characters", "ids", "most")


def records(count: int) -> list[dict[str, Any]]:
    """So many records; keys are those of several."""
    found: list[dict[str, Any]] = []
    for topic, text in _texts():
        if text:
            found.append({"id": len(found), "topic": topic, "text": text})
        if len(found) == count:
            return found
    raise AssertionError(f"there are {len(found)} texts, not {count}")


def _texts() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            yield topic, paragraph.strip()
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield path.stem, ast.get_docstring(node) or ""


def alone(given: list[dict[str, Any]]) -> dict[str, Any]:
    """What the loop makes of records when nothing happens to it."""
    space: dict[str, Any] = {"cave": cave, "records": given, "wait": 0}
    space["file"] = space["file_here"] = lambda _, size: size
    exec(LOOP, space)
    return {name: space[name] for name in NAMES}


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(os.environ["WORLD"], timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")  # it outlasts kills, not power cuts
    connection.execute("CREATE TABLE IF NOT EXISTS filed (key TEXT, id INTEGER, place TEXT)")
    connection.execute("CREATE INDEX IF NOT EXISTS keys ON filed (key)")
    return connection


def rows() -> list[tuple[int, str]]:
    """All that was filed, and where that was done."""
    with closing(_connect()) as connection:
        return connection.execute("SELECT id, place FROM filed ORDER BY rowid").fetchall()


def count() -> int:
    """How many were filed."""
    if not Path(os.environ["WORLD"]).exists():
        return 0
    with closing(_connect()) as connection:
        return int(connection.execute("SELECT count(*) FROM filed").fetchone()[0])


def _was_filed(call: Any) -> int | None:
    with closing(_connect()) as connection:
        found = connection.execute("SELECT 1 FROM filed WHERE key = ?", (call.idempotency_key,))
        return int(call.arguments["size"]) if found.fetchone() else None


@cave.skill(effect="write", runs="host", in_doubt=_was_filed)
def file(number: int, size: int, ctx: SkillContext) -> int:
    """File a record by a service that files whatever it is sent, and can be asked."""
    with closing(_connect()) as connection:
        row = ctx.idempotency_key, number
        connection.execute("INSERT INTO filed VALUES (?, ?, 'host')", row)
    return size


@cave.skill(effect="write", runs="kernel", in_doubt="retry")
def file_here(number: int, size: int, ctx: SkillContext) -> int:
    """File a record from inside the kernel, by a service that knows a key which it has seen."""
    import os
    import sqlite3

    connection = sqlite3.connect(os.environ["WORLD"], timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute(
        "INSERT INTO filed SELECT ?1, ?2, 'kernel' "
        "WHERE NOT EXISTS (SELECT 1 FROM filed WHERE key = ?1)",
        (ctx.idempotency_key, number),
    )
    connection.close()
    return size


SKILLS = [file, file_here]
