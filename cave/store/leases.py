"""Leases: the transactions by which a process begins, keeps and ends to operate a session.

What makes two owners impossible is the number alone (the fence): it goes up with every
change of hands, inside one write transaction, and every append and every request to the
kernel carries it; the lower one is refused. Clocks only decide *when* somebody may be
relieved. On one machine that is judged by the clock since its start, which no setting of
the date moves, and by whether the process lives; the wall clock counts only between
machines. A clock that jumps may relieve an owner early; it never makes two of them.

A holder lets go by marking the row idle; the number stays. While nobody took the session in
between, the same holder's next append makes it busy again, so it need not acquire first.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, NoReturn

from cave.errors import LeaseLost, SessionBusy, SessionNotFound
from cave.ports import Clock, Holder, Lease, SessionInfo
from cave.store.holders import is_dead, same_boot
from cave.store.statements import SESSION_COLUMNS

SQL = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `sessions`, in the order of its columns."""

    id: int
    uid: str
    name: str
    created: float
    changed: float
    seq: int
    hash: bytes
    lease: int
    holder_host: str | None
    holder_boot: str | None
    holder_pid: int | None
    holder_started: float | None
    holder_token: str | None
    busy: int
    since: float
    expires: float
    expires_boot: float

    @property
    def holder(self) -> Holder | None:
        """Who held the highest number; None before anyone did."""
        if self.holder_token is None:
            return None
        return Holder(
            host=self.holder_host or "",
            boot=self.holder_boot or "",
            pid=self.holder_pid or 0,
            started=self.holder_started or 0.0,
            token=self.holder_token,
        )

    def operator(self, clock: Clock) -> Holder | None:
        """Who operates the session now: marked busy, not over its time, not known dead."""
        holder = self.holder
        if not self.busy or holder is None or self._is_over(clock) or is_dead(holder):
            return None
        return holder

    def _is_over(self, clock: Clock) -> bool:
        if same_boot(self.holder_boot or ""):
            return clock.monotonic() >= self.expires_boot
        return clock.now() >= self.expires

    def info(self, clock: Clock) -> SessionInfo:
        """The row as callers see it."""
        holder = self.operator(clock)
        since = 0.0 if holder is None else self.since
        return SessionInfo(
            self.name, self.created, self.changed, self.seq, self.lease, holder, since, self.uid
        )


assert tuple(Row.__dataclass_fields__) == SESSION_COLUMNS


def find(cursor: sqlite3.Cursor, sql: SQL, session: str) -> Row:
    """The session's row. Raises `SessionNotFound`, which proposes the nearest name."""
    found = cursor.execute(sql["session"], {"name": session}).fetchone()
    if found is not None:
        return Row(*found)
    import difflib

    names = [name for (name,) in cursor.execute(sql["names"])]
    near = difflib.get_close_matches(session, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise SessionNotFound(f"no session {session!r}{hint}")


def acquire(
    cursor: sqlite3.Cursor, sql: SQL, session: str, holder: Holder, *, clock: Clock, ttl: float
) -> Lease:
    """Begin to operate. Raises `SessionBusy` while another one does."""
    row = find(cursor, sql, session)
    number = row.lease
    if row.holder_token != holder.token:
        if (other := row.operator(clock)) is not None:
            raise SessionBusy(session, other.host, other.pid, row.since)
        number += 1
    taken = cursor.execute(
        sql["lease_take"],
        {
            "of": row.id,
            "was": row.lease,
            "lease": number,
            "busy": True,
            "since": row.since if row.busy and number == row.lease else clock.now(),
            "holder_host": holder.host,
            "holder_boot": holder.boot,
            "holder_pid": holder.pid,
            "holder_started": holder.started,
            "holder_token": holder.token,
            **term(clock, ttl),
        },
    ).fetchone()
    if taken is None:
        raise SessionBusy(session, "another process", 0, clock.now())
    return Lease(session, number, holder)


def term(clock: Clock, ttl: float) -> dict[str, float]:
    """When a lease given now ends, by both clocks."""
    return {"expires": clock.now() + ttl, "expires_boot": clock.monotonic() + ttl}


def renew(cursor: sqlite3.Cursor, sql: SQL, lease: Lease, clock: Clock, ttl: float) -> None:
    """Put off the end of a lease. Raises `LeaseLost`."""
    parameters: dict[str, Any] = {**_fence(lease), **term(clock, ttl)}
    if cursor.execute(sql["lease_renew"], parameters).fetchone() is None:
        lost(lease, find(cursor, sql, lease.session))


def release(cursor: sqlite3.Cursor, sql: SQL, lease: Lease) -> None:
    """Mark the session idle, if it is still held under this lease."""
    cursor.execute(sql["lease_release"], {**_fence(lease), "busy": False})


def _fence(lease: Lease) -> dict[str, Any]:
    return {"of": lease.session, "number": lease.number, "token": lease.holder.token}


def lost(lease: Lease, row: Row) -> NoReturn:
    """Say who took the session over."""
    by = row.holder
    who = "nobody now" if by is None else f"pid {by.pid} on {by.host}"
    raise LeaseLost(
        f"session {lease.session!r} was taken over by {who} (lease {row.lease}, this process "
        f"held {lease.number}); open it again to go on"
    )
