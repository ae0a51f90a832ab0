"""Small snapshots whose files a power cut has taken: the journal holds them, too."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from cave.events import SnapshotCommitted
from cave.ports import Store

if TYPE_CHECKING:
    from cave.snapshot import Snapshots


def as_text(file: bytes) -> str:
    """A small file as its event holds it; nothing of a file that was waited for."""
    from cave.snapshot import mend

    return mend.as_text(file) if file else ""


async def mend(store: Store, session: str, snapshots: Snapshots, keep: Collection[str]) -> None:
    """Have every file that the snapshots in `keep` need on disk, if the machine was started
    since that was seen last. Raises `StoreError`."""
    if not snapshots.unsure:
        return
    from cave.snapshot import mend as files

    found = {
        event.snapshot: files.of_text(event.file)
        async for event in store.read(session)
        if isinstance(event, SnapshotCommitted) and event.file
    }
    await asyncio.to_thread(snapshots.mend, found, keep)
