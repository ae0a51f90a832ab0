"""What Alembic runs for each migration: our open connection, inside our own transaction."""

from __future__ import annotations

from alembic import context

from cave.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # the caller began a transaction that covers every step; SQLite's DDL is part of it
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
