"""What several processes write without the lease: answers to approvals, and budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_AMOUNTS = ("tokens", "nano_usd", "steps", "millis")


def _amounts(kind: str = "") -> list[sa.Column[int]]:
    return [sa.Column(f"{kind}{name}", sa.BigInteger, nullable=False) for name in _AMOUNTS]


def upgrade() -> None:
    """Make the tables of answers, budgets and reservations."""
    op.create_table(
        "answers",
        sa.Column("session_id", sa.Integer, nullable=False),
        sa.Column("approval", sa.String(32), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "approval", name="pk_answers"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_answers_session_id"),
    )
    op.create_table(
        "budgets",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("parent", sa.String(64), nullable=False),
        *_amounts("limit_"),
        *_amounts("spent_"),
        sa.PrimaryKeyConstraint("id", name="pk_budgets"),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("budget", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        *_amounts(),
        sa.PrimaryKeyConstraint("id", "budget", name="pk_reservations"),
    )
