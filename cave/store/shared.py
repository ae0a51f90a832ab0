"""What processes write into one database without the lease: answers and reservations.

Each function is one transaction that has taken the write lock before it reads, so that of
two who answer one counts, and two who spend never pass a limit together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from cave.facts import Amount
from cave.ports import Clock
from cave.shared import Account, Shortfall
from cave.store.leases import SQL, find
from cave.store.schema import AMOUNTS

DEPTH = 1000
"""Budgets above each other at most: what a damaged table might have as a ring ends."""

# -- answers ---------------------------------------------------------------------------------


def answer(
    cursor: sqlite3.Cursor,
    sql: SQL,
    session: str,
    approval: str,
    body: bytes,
    *,
    until: float | None,
    clock: Clock,
) -> bytes | None:
    """The answer that counts: the first; None when it comes too late and there is none."""
    row = find(cursor, sql, session)
    at = {"of": row.id, "approval": approval}
    known = cursor.execute(sql["answer"], at).fetchone()
    if known is not None:
        return bytes(known[0])
    now = clock.now()
    if until is not None and now >= until:
        return None
    values = {"session_id": row.id, "approval": approval, "at": now, "body": body}
    cursor.execute(sql["answer_insert"], values)
    return body


def answers(cursor: sqlite3.Cursor, sql: SQL, session: str) -> dict[str, bytes]:
    """Every answer of a session, by approval."""
    row = find(cursor, sql, session)
    return {id: bytes(body) for id, body in cursor.execute(sql["answers"], {"of": row.id})}


# -- budgets ---------------------------------------------------------------------------------


def limit(
    cursor: sqlite3.Cursor,
    sql: SQL,
    budget: str,
    limits: Amount,
    *,
    parent: str | None,
    spent: Amount,
) -> None:
    """Set limits (-1: as they were). A budget that is not there begins with `spent`."""
    known = _account(cursor, sql, budget)
    if known is None:
        values = {"id": budget, "parent": parent or ""}
        cursor.execute(
            sql["budget_insert"], {**values, **_named(limits, "limit_"), **_named(spent, "spent_")}
        )
        return
    old = _values(known.limits)
    new = [was if value < 0 else value for was, value in zip(old, _values(limits), strict=True)]
    cursor.execute(
        sql["budget_limit"],
        {
            "of": budget,
            "parent": known.parent if parent is None else parent,
            **_named(Amount(*new), "limit_"),
        },
    )


def accounts(cursor: sqlite3.Cursor, sql: SQL, budget: str) -> list[Account]:
    """The budget and those above it, the nearest first; empty when there is none."""
    return list(_path(cursor, sql, budget))


def _path(cursor: sqlite3.Cursor, sql: SQL, budget: str) -> Iterator[Account]:
    for _ in range(DEPTH):
        account = _account(cursor, sql, budget)
        if account is None:
            return
        yield account
        budget = account.parent


def _account(cursor: sqlite3.Cursor, sql: SQL, budget: str) -> Account | None:
    row = cursor.execute(sql["budget"], {"of": budget}).fetchone() if budget else None
    if row is None:
        return None
    many = len(AMOUNTS)
    held = cursor.execute(sql["budget_reserved"], {"of": budget}).fetchone()
    limits, spent = row[2 : 2 + many], row[2 + many :]
    reserved = Amount(*(int(value or 0) for value in held))
    return Account(row[0], row[1], Amount(*limits), Amount(*spent), reserved)


def reserve(
    cursor: sqlite3.Cursor, sql: SQL, id: str, budget: str, amount: Amount
) -> Shortfall | None:
    """Set `amount` aside in the budget and in all above it; or what is too little, and nothing
    is set aside. What `id` has reserved already is not reserved again."""
    if cursor.execute(sql["reservation"], {"of": id}).fetchone() is not None:
        return None
    path = accounts(cursor, sql, budget)
    for account in path:
        if (short := _shortfall(account, amount)) is not None:
            return short
    for account in path:
        row = {"id": id, "budget": account.id, "owner": budget, **_named(amount)}
        cursor.execute(sql["reservation_insert"], row)
    return None


def _shortfall(account: Account, amount: Amount) -> Shortfall | None:
    for name in AMOUNTS:
        needed, allowed = getattr(amount, name), getattr(account.limits, name)
        used = getattr(account.spent, name) + getattr(account.reserved, name)
        if needed > 0 and allowed >= 0 and used + needed > allowed:
            return Shortfall(account.id, name, allowed, used, needed)
    return None


def settle(cursor: sqlite3.Cursor, sql: SQL, id: str, amount: Amount) -> None:
    """Give back what `id` has reserved, and count `amount` as spent; done once."""
    budgets = [row[0] for row in cursor.execute(sql["reservation"], {"of": id})]
    for budget in budgets:
        cursor.execute(sql["budget_spend"], {"of": budget, **_named(amount)})
    if budgets:
        cursor.execute(sql["reservation_delete"], {"of": id})


def reserved(cursor: sqlite3.Cursor, sql: SQL, budget: str) -> dict[str, Amount]:
    """What the calls of one session have reserved and not settled, by id."""
    rows = cursor.execute(sql["reservations"], {"of": budget})
    return {row[0]: Amount(*row[1:]) for row in rows}


def forget(cursor: sqlite3.Cursor, sql: SQL, session_id: int, budget: str) -> None:
    """Nothing of a session that is deleted stays, but what its calls have cost those above."""
    for id, amount in reserved(cursor, sql, budget).items():
        settle(cursor, sql, id, amount)
    cursor.execute(sql["answers_delete"], {"of": session_id})
    cursor.execute(sql["budget_delete"], {"of": budget})


def _values(amount: Amount) -> list[int]:
    return [getattr(amount, name) for name in AMOUNTS]


def _named(amount: Amount, kind: str = "") -> dict[str, Any]:
    return {f"{kind}{name}": value for name, value in zip(AMOUNTS, _values(amount), strict=True)}
