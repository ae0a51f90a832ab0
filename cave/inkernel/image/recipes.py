"""Brings all recipes in: rules for resources and odd kinds of the standard library and others.

A recipe is honest: what comes back behaves as before, or a note says what differs, or a
`Lost` object stands there and says why. Secrets never go into a stream (see `secrets`).
"""

from __future__ import annotations

from . import (
    plugins,
    recipes_archives,
    recipes_asyncio,
    recipes_databases,
    recipes_files,
    recipes_libraries,
    recipes_logging,
    recipes_orm,
    recipes_processes,
    recipes_skills,
    recipes_sqlite,
    recipes_temporary,
    recipes_threads,
    recipes_web,
)

plugins.load_entry_points()

__all__ = [
    "plugins",
    "recipes_archives",
    "recipes_asyncio",
    "recipes_databases",
    "recipes_files",
    "recipes_libraries",
    "recipes_logging",
    "recipes_orm",
    "recipes_processes",
    "recipes_skills",
    "recipes_sqlite",
    "recipes_temporary",
    "recipes_threads",
    "recipes_web",
]
