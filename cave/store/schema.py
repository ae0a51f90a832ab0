"""Every table of the store, and what each column is for.

Portable types only, so that SQLite and PostgreSQL share this page. `migrations/` leads an
existing database here; a test compares the two. Times are Unix seconds.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

REVISION = "0002"
"""The Alembic revision that this page describes."""

GENESIS = bytes(32)
"""What stands for the hash before a session's first record."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
    }
)

meta = Table(
    "meta",
    metadata,
    Column("key", String(32), primary_key=True),
    # `format`: the highest record format in use; `version`: the cave that raised it last
    Column("value", String(64), nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Integer, primary_key=True),
    # part of every hash: a deleted session and its namesake are never taken for each other
    Column("uid", String(32), nullable=False, unique=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("created", Double, nullable=False),
    # `at` of the last event: times never go back within a session
    Column("changed", Double, nullable=False),
    # the chain's head: a journal cut short differs from it
    Column("seq", BigInteger, nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
    # the fence: the highest lease number given out, and to whom
    Column("lease", BigInteger, nullable=False),
    Column("holder_host", String(255)),
    Column("holder_boot", String(64)),
    Column("holder_pid", BigInteger),
    Column("holder_started", Double),
    Column("holder_token", String(64)),
    # whether an operation runs under that number, since when, and until when at most:
    # by the wall clock, and by the holder's own clock since its machine's start
    Column("busy", Boolean, nullable=False),
    Column("since", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("expires_boot", Double, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("session_id", Integer, ForeignKey("sessions.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("type", String(64), nullable=False),
    Column("format", Integer, nullable=False),
    # the number under which it was written
    Column("lease", BigInteger, nullable=False),
    # one JSON object, exactly the bytes that the hash is over
    Column("body", LargeBinary, nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
)

# -- what processes write without the lease -------------------------------------------------

answers = Table(
    "answers",
    metadata,
    Column("session_id", Integer, ForeignKey("sessions.id"), primary_key=True),
    # its id in the session; the key is what makes the first answer the only one
    Column("approval", String(32), primary_key=True),
    Column("at", Double, nullable=False),
    # one JSON object
    Column("body", LargeBinary, nullable=False),
)

AMOUNTS = ("tokens", "nano_usd", "steps", "millis")
"""The dimensions of a budget, in whole units, as in `cave.facts.Amount`."""


def _amounts(kind: str = "") -> list[Column[int]]:
    return [Column(f"{kind}{name}", BigInteger, nullable=False) for name in AMOUNTS]


budgets = Table(
    "budgets",
    metadata,
    # the uid of the session that it is for; a fork's parent is the session that it came from
    Column("id", String(64), primary_key=True),
    Column("parent", String(64), nullable=False),
    # -1 is no limit
    *_amounts("limit_"),
    # what calls that have ended have cost, those of forks included
    *_amounts("spent_"),
)

reservations = Table(
    "reservations",
    metadata,
    # one row for the session's budget and one for each above it
    Column("id", String(128), primary_key=True),
    Column("budget", String(64), primary_key=True),
    # the session whose call it is for
    Column("owner", String(64), nullable=False),
    *_amounts(),
)
