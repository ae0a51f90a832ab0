"""Sessions, their leases and their journals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "meta",
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("value", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("changed", sa.Double, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("lease", sa.BigInteger, nullable=False),
        sa.Column("holder_host", sa.String(255)),
        sa.Column("holder_boot", sa.String(64)),
        sa.Column("holder_pid", sa.BigInteger),
        sa.Column("holder_started", sa.Double),
        sa.Column("holder_token", sa.String(64)),
        sa.Column("busy", sa.Boolean, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("expires_boot", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("uid", name="uq_sessions_uid"),
        sa.UniqueConstraint("name", name="uq_sessions_name"),
    )
    op.create_table(
        "events",
        sa.Column("session_id", sa.Integer, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("lease", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "seq", name="pk_events"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_events_session_id"),
    )
