"""The outside: another database, and skills of every kind that touch it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import cave
from cave import SkillContext

SLOW = 0.0
"""Seconds that pass in each call before anything is done."""


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(os.environ["WORLD"], timeout=30, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS done (key TEXT, skill TEXT, item TEXT)")
    return connection


def do(key: str, skill: str, item: str, *, once: bool = False) -> str:
    """Do it: once more each time, or `once` for a key."""
    time.sleep(SLOW)
    known = "WHERE NOT EXISTS (SELECT 1 FROM done WHERE key = ?1)" if once else ""
    with closing(_connect()) as connection:
        connection.execute(f"INSERT INTO done SELECT ?1, ?2, ?3 {known}", (key, skill, item))
    return f"{skill} {item}"


def was_done(key: str) -> bool:
    """Whether the outside has it."""
    with closing(_connect()) as connection:
        (count,) = connection.execute("SELECT count(*) FROM done WHERE key = ?", (key,)).fetchone()
    return bool(count)


def rows() -> list[tuple[str, str, str]]:
    """All that was done: key, skill, item."""
    with closing(_connect()) as connection:
        return connection.execute("SELECT * FROM done").fetchall()


@cave.skill(effect="write", runs="host", in_doubt="retry")
def refund(item: str, result: str, ctx: SkillContext) -> None:
    """Take a payment back."""
    assert result == f"pay {item}"
    do(ctx.idempotency_key, "refund", item, once=True)


@cave.skill(effect="write", runs="host")
async def unsend(item: str, ctx: SkillContext) -> None:
    """Take a text back."""
    do(ctx.idempotency_key, "unsend", item)


@cave.skill(effect="write", runs="host", in_doubt="retry", undo=refund)
def pay(item: str, ctx: SkillContext) -> str:
    """Pay at a bank that knows a key which it has seen."""
    return do(ctx.idempotency_key, "pay", item, once=True)


def _look_up(call: Any) -> str | None:
    return f"mail {call.arguments['item']}" if was_done(call.idempotency_key) else None


@cave.skill(effect="write", runs="host", in_doubt=_look_up)
def mail(item: str, ctx: SkillContext) -> str:
    """Mail by a server that can be asked what it has sent."""
    return do(ctx.idempotency_key, "mail", item)


@cave.skill(effect="write", runs="host", undo="unsend")
async def text(item: str, ctx: SkillContext) -> str:
    """Text by a service that tells nobody anything: people are asked."""
    return do(ctx.idempotency_key, "text", item)


def hold(moment: str) -> None:
    """Stand still inside of a kernel's skill while a file says so, and say that by another."""
    place = Path(f"{os.environ['WORLD']}.{moment}")
    if place.exists():
        place.with_suffix(f".{moment}_here").touch()
    while place.exists():
        time.sleep(0.01)


@cave.skill(effect="write", runs="kernel")
def stamp(item: str, ctx: SkillContext) -> str:
    """Stamp from inside the kernel; people are asked."""
    hold("before")
    done = do(ctx.idempotency_key, "stamp", item)
    hold("after")
    return done


@cave.skill(effect="write", runs="kernel", in_doubt="retry")
async def seal(item: str, ctx: SkillContext) -> str:
    """Seal from inside the kernel, where a key that was seen is known."""
    await asyncio.sleep(0)
    hold("before")
    done = do(ctx.idempotency_key, "seal", item, once=True)
    hold("after")
    return done


@cave.skill(effect="read", runs="host")
def price(item: str) -> str:
    """Look up a price: as often as it takes."""
    return f"price {item}"


_CALLED = [pay, mail, text, stamp, seal, price]
KINDS = [skill.name for skill in _CALLED]
SKILLS = [*_CALLED, refund, unsend]
