from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from cave.errors import JournalCorrupt, StoreError
from cave.ports import JournalFault
from cave.store import SQLStore, chain, this_process
from cave.testing.store import cells, journal

INSERT = "INSERT INTO events SELECT session_id, {seq}, at, type, format, lease, body, hash"

SWAP = """
UPDATE events SET seq = -1 WHERE seq = 3;
UPDATE events SET seq = 3 WHERE seq = 4;
UPDATE events SET seq = 4 WHERE seq = -1;
"""
SHIFT = f"""
UPDATE events SET seq = seq + 100 WHERE seq >= 4;
UPDATE events SET seq = seq - 99 WHERE seq > 100;
{INSERT.format(seq=4)} FROM events WHERE seq = 2;
"""

TAMPERING = {
    "body edited": ("UPDATE events SET body = CAST('{}' AS BLOB) WHERE seq = 4", 4),
    "one byte of a body": ("UPDATE events SET body = CAST(body || ' ' AS BLOB) WHERE seq = 4", 4),
    "time edited": ("UPDATE events SET at = at + 0.001 WHERE seq = 3", 3),
    "type edited": ("UPDATE events SET type = 'cell.finished' WHERE seq = 2", 2),
    "format edited": ("UPDATE events SET format = 0 WHERE seq = 2", 2),
    "lease edited": ("UPDATE events SET lease = lease + 1 WHERE seq = 6", 6),
    "hash edited": ("UPDATE events SET hash = zeroblob(32) WHERE seq = 5", 5),
    "body of another type": ("UPDATE events SET body = 7 WHERE seq = 5", 5),
    "first deleted": ("DELETE FROM events WHERE seq = 1", 1),
    "one deleted": ("DELETE FROM events WHERE seq = 4", 4),
    "several deleted": ("DELETE FROM events WHERE seq IN (4, 5)", 4),
    "end cut off": ("DELETE FROM events WHERE seq >= 7", 7),
    "all deleted": ("DELETE FROM events", 1),
    "two swapped": (SWAP, 3),
    "one inserted": (SHIFT, 4),
    "one added behind the end": (f"{INSERT.format(seq=9)} FROM events WHERE seq = 8", 9),
    "head moved back": ("UPDATE sessions SET seq = 7", 8),
    "end cut off, head moved back": (
        "DELETE FROM events WHERE seq = 8; UPDATE sessions SET seq = 7",
        7,
    ),
    "taken from a namesake": ("UPDATE sessions SET uid = 'another'", 1),
}


def tampered(database: Path, statements: str) -> list[JournalFault]:
    async def fill() -> None:
        store = SQLStore(database)
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        for n in range(4):
            await store.append(lease, cells(n, n + 10))
        assert await store.verify("q3") == []
        await store.close()

    async def verify() -> list[JournalFault]:
        store = SQLStore(database)
        faults = await store.verify("q3")
        await store.close()
        return list(faults)

    asyncio.run(fill())
    connection = sqlite3.connect(database)
    connection.executescript(statements)
    connection.close()
    return asyncio.run(verify())


@pytest.mark.parametrize("kind", TAMPERING)
def test_verify_names_the_first_bad_record(database: Path, kind: str) -> None:
    """Every kind of tampering is found, at its first record, with a reason."""
    statements, seq = TAMPERING[kind]
    faults = tampered(database, statements)
    assert (faults[0].session, faults[0].seq) == ("q3", seq)
    assert faults[0].reason


def test_one_edit_is_one_fault(database: Path) -> None:
    """An edited record is named alone: those behind it still follow its stored hash."""
    statements, _ = TAMPERING["body edited"]
    (fault,) = tampered(database, statements)
    assert "differs from its hash" in fault.reason


def test_the_hash_is_over_exact_columns() -> None:
    """Bytes moved between neighbouring columns give another hash (no ambiguous framing)."""
    fields = {"seq": 1, "at": 1.0, "format": 1, "lease": 1}
    one = chain.link(bytes(32), uid="ab", type="c", body=b"d", **fields)  # type: ignore[arg-type]
    two = chain.link(bytes(32), uid="a", type="bc", body=b"d", **fields)  # type: ignore[arg-type]
    three = chain.link(bytes(32), uid="ab", type="", body=b"cd", **fields)  # type: ignore[arg-type]
    assert len({one, two, three}) == 3
    known = "ab1f2f18"
    assert one.hex()[:8] == known, "the way to hash changed: old journals would not verify"


async def read(database: Path) -> None:
    store = SQLStore(database)
    try:
        await journal(store, "q3")
    finally:
        await store.close()


def test_reading_never_skips_a_missing_record(database: Path) -> None:
    """A gap is told as JournalCorrupt with the command that says more."""
    tampered(database, TAMPERING["one deleted"][0])
    with pytest.raises(JournalCorrupt, match=r"record 4 .*missing.*--verify q3"):
        asyncio.run(read(database))


def test_a_body_that_cannot_be_read_is_told(database: Path) -> None:
    """A record whose body is no event of its type is JournalCorrupt, naming the record."""
    tampered(database, "UPDATE events SET body = CAST('{' AS BLOB) WHERE seq = 4")
    with pytest.raises(JournalCorrupt, match=r"record 4 .*cannot be read"):
        asyncio.run(read(database))


@pytest.mark.parametrize("column", ["type = 'cell.invented'", "format = 99"])
def test_a_record_of_a_newer_version_is_told(database: Path, column: str) -> None:
    """A record of a newer type or format asks for an upgrade, and is not called corrupt."""
    tampered(database, f"UPDATE events SET {column} WHERE seq = 4")
    with pytest.raises(StoreError, match="upgrade") as fault:
        asyncio.run(read(database))
    assert not isinstance(fault.value, JournalCorrupt)


def test_an_append_behind_a_forged_end_is_refused(database: Path) -> None:
    """When a record stands where the next one belongs, nothing is written over it."""
    tampered(database, TAMPERING["one added behind the end"][0])

    async def main() -> None:
        store = SQLStore(database)
        lease = await store.acquire("q3", this_process(), wait=0)
        with pytest.raises(JournalCorrupt, match="behind the end"):
            await store.append(lease, cells(1))
        await store.close()

    connection = sqlite3.connect(database)
    with connection:
        connection.execute("UPDATE sessions SET busy = 0")
    connection.close()
    asyncio.run(main())
