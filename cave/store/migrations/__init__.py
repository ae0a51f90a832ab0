"""The ways from each schema to the next (Alembic)."""
