"""The journal's transactions: make a session, append under the fence, read, forget."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cave.errors import JournalCorrupt, SessionBusy, StoreError
from cave.events import FORMAT, Event
from cave.ports import Clock, JournalFault, Lease
from cave.records import decode, encode
from cave.store import chain, shared
from cave.store.leases import SQL, Row, find, lost, term
from cave.store.schema import GENESIS

PAGE_ROWS = 512
PAGE_BYTES = 4 << 20
"""A page of a journal ends with the first of these that is reached."""

Page = list[tuple[int, float, str, int, bytes]]


@dataclass(frozen=True, slots=True)
class Draft:
    """An event on its way: encoded by the caller, before the transaction begins."""

    event: Event
    body: bytes


def draft(events: Sequence[Event]) -> list[Draft]:
    """Encode events. Raises `ValueError` for those that only stream."""
    for event in events:
        if not event.durable:
            raise ValueError(f"{event.type!r} is provisional: it streams and is never journaled")
    return [Draft(event, encode(event)) for event in events]


def create(cursor: sqlite3.Cursor, sql: SQL, session: str, clock: Clock) -> bool:
    """Make the session's row; False when it is there."""
    if cursor.execute(sql["session"], {"name": session}).fetchone() is not None:
        return False
    now = clock.now()
    row = Row(
        *(0, uuid.uuid4().hex, session, now, now, 0, GENESIS, 0),
        *(None, None, None, None, None),
        *(False, 0.0, 0.0, 0.0),
    )
    cursor.execute(
        sql["session_insert"], {name: getattr(row, name) for name in row.__slots__ if name != "id"}
    )
    return True


class Head(NamedTuple):
    """The end of a session's chain, and who may move it."""

    id: int
    uid: str
    seq: int
    hash: bytes
    changed: float
    lease: int
    token: str | None
    busy: int
    since: float


def append(
    cursor: sqlite3.Cursor,
    sql: SQL,
    lease: Lease,
    drafts: Sequence[Draft],
    *,
    release: bool,
    clock: Clock,
    ttl: float,
) -> list[Event]:
    """Write the records behind the chain's head and move it. Raises `LeaseLost`."""
    found = cursor.execute(sql["head"], {"name": lease.session}).fetchone()
    if found is None:
        find(cursor, sql, lease.session)
    head = Head(*found)
    now = clock.now()
    at = max(now, head.changed)  # within a session time never goes back
    records, last = _chained(head, lease, drafts, at)
    moved = cursor.execute(
        sql["head_update"],
        {
            "of": head.id,
            "number": lease.number,
            "token": lease.holder.token,
            "seq": head.seq + len(drafts),
            "hash": last,
            "changed": at if drafts else head.changed,
            "busy": not release,
            "since": head.since if head.busy else now,
            **term(clock, ttl),
        },
    ).fetchone()
    if moved is None:
        lost(lease, find(cursor, sql, lease.session))
    _insert(cursor, sql, records, lease.session)
    return [
        item.event.stamped(seq=seq, at=at, session=lease.session)
        for seq, item in enumerate(drafts, head.seq + 1)
    ]


def _chained(
    head: Head, lease: Lease, drafts: Sequence[Draft], at: float
) -> tuple[list[dict[str, object]], bytes]:
    """The rows of `drafts`, each linked to the one before, and the last one's hash."""
    records: list[dict[str, object]] = []
    last = head.hash
    for seq, item in enumerate(drafts, head.seq + 1):
        last = chain.link(
            last,
            uid=head.uid,
            seq=seq,
            at=at,
            type=item.event.type,
            format=FORMAT,
            lease=lease.number,
            body=item.body,
        )
        records.append(
            {
                "session_id": head.id,
                "seq": seq,
                "at": at,
                "type": item.event.type,
                "format": FORMAT,
                "lease": lease.number,
                "body": item.body,
                "hash": last,
            }
        )
    return records, last


def _insert(
    cursor: sqlite3.Cursor, sql: SQL, records: list[dict[str, object]], session: str
) -> None:
    try:
        cursor.executemany(sql["events_insert"], records)
    except sqlite3.IntegrityError as fault:
        raise JournalCorrupt(
            f"session {session!r} has records behind the end of its journal; "
            f"see: cave doctor --verify {session}"
        ) from fault


def delete(cursor: sqlite3.Cursor, sql: SQL, session: str, clock: Clock) -> None:
    """Forget the session. Raises `SessionBusy` while somebody operates it."""
    row = find(cursor, sql, session)
    if (holder := row.operator(clock)) is not None:
        raise SessionBusy(session, holder.host, holder.pid, row.since)
    shared.forget(cursor, sql, row.id, row.uid)
    cursor.execute(sql["events_delete"], {"of": row.id})
    cursor.execute(sql["session_delete"], {"of": row.id})


def page(
    cursor: sqlite3.Cursor, sql: SQL, session: str, *, after: int, limit: int | None
) -> list[Event]:
    """The next events behind `after`; empty at the end. Raises `SessionNotFound`."""
    rows = _fetch(cursor, sql, session, after, PAGE_ROWS if limit is None else limit)
    if not rows:
        find(cursor, sql, session)
    return [_decode(session, after + i, row) for i, row in enumerate(rows, 1)]


def _fetch(cursor: sqlite3.Cursor, sql: SQL, session: str, after: int, limit: int) -> Page:
    rows: Page = []
    size = 0
    for row in cursor.execute(sql["page"], {"name": session, "after": after}):
        rows.append(row)
        size += len(row[4])
        if len(rows) >= min(limit, PAGE_ROWS) or size >= PAGE_BYTES:
            break
    return rows


def _decode(session: str, expected: int, row: tuple[int, float, str, int, bytes]) -> Event:
    seq, at, name, version, body = row
    if seq != expected:
        raise JournalCorrupt(
            f"record {expected} of session {session!r} is missing; "
            f"see: cave doctor --verify {session}"
        )
    try:
        return decode(name, body, seq=seq, at=at, session=session, format=version)
    except ValueError as fault:
        from pydantic import ValidationError

        if not isinstance(fault, ValidationError):  # a newer type or format: it says so itself
            raise StoreError(str(fault)) from fault
        raise JournalCorrupt(
            f"record {seq} of session {session!r} cannot be read ({fault}); "
            f"see: cave doctor --verify {session}"
        ) from fault


def seals(cursor: sqlite3.Cursor, sql: SQL, session: str) -> dict[int, str]:
    """The hash of each record, by its number."""
    row = find(cursor, sql, session)
    return {seq: bytes(hash).hex() for seq, hash in cursor.execute(sql["seals"], {"of": row.id})}


def verify(cursor: sqlite3.Cursor, sql: SQL, session: str) -> list[JournalFault]:
    """Every place where the journal differs from its chain."""
    cursor.execute("BEGIN")  # the head and the records of one moment
    try:
        row = find(cursor, sql, session)
        records = cursor.execute(sql["records"], {"of": row.id})
        return list(
            chain.check(
                records,
                session=session,
                uid=row.uid,
                genesis=GENESIS,
                seq=row.seq,
                hash=row.hash,
            )
        )
    finally:
        cursor.execute("ROLLBACK")
