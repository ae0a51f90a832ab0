"""Where journals and blobs live: the SQL store and the blob folder.

The only package that imports SQLAlchemy and Alembic, and only when a store is opened:
naming what is here costs nothing.

`schema` is all that is kept; `statements` what is asked of it; `sqlite` what only SQLite
needs; `database` one open file; `writer` its group-committing thread; `leases`, `journal`
and `chain` the transactions; `sql` the `Store` made of them; `blobs` the `BlobStore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cave.store.blobs import FolderBlobs
    from cave.store.holders import this_process
    from cave.store.sql import SQLStore

__all__ = ["FolderBlobs", "SQLStore", "this_process"]

_HOMES = {
    "FolderBlobs": "cave.store.blobs",
    "SQLStore": "cave.store.sql",
    "this_process": "cave.store.holders",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
