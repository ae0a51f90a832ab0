"""`cave gc`: what no kept snapshot of any session needs goes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from cave import mending
from cave.errors import SessionBusy, SnapshotError
from cave.history import History
from cave.home import Home
from cave.journal import Journal

if TYPE_CHECKING:
    from cave.snapshot import Snapshots

DAY = 86400.0
"""Seconds before what is not needed counts as left behind, and not as being written."""


async def collect(at: Home, *, dry_run: bool = False, now: bool = False) -> dict[str, int]:
    """Bytes that were freed (or with `dry_run` would be) in each session that nobody operates.

    Files younger than a day stay, unless `now`. A session is cleaned under its own lease.
    """
    freed = {}
    for row in await at.sessions():
        if at.snapshots_folder(row.name).is_dir():
            freed[row.name] = await _clean(at, row.name, dry_run=dry_run, now=now)
    if not dry_run:
        await asyncio.to_thread(at.blobs.sweep)
    return {name: count for name, count in freed.items() if count}


async def _clean(at: Home, name: str, *, dry_run: bool, now: bool) -> int:
    from cave.store import this_process

    journal = Journal(at.store, name, this_process(), History(at.text), at.clock)
    try:
        async with journal.operation():
            lasting = journal.history.lasting
            keep = {*lasting.snapshots, *filter(None, [lasting.latest])}
            older, snapshots = 0.0 if now else DAY, at.snapshots(name)
            await mending.mend(at.store, name, snapshots, keep)
            freed = await asyncio.to_thread(_retire, snapshots, keep, older=older, dry_run=dry_run)
    except SessionBusy:
        return 0
    return freed


def _retire(snapshots: Snapshots, keep: set[str], *, older: float, dry_run: bool) -> int:
    """Bytes freed. Snapshots that cannot be read keep nothing."""
    there = set(snapshots.ids())
    readable = set()
    for id in keep & there:
        with contextlib.suppress(SnapshotError):
            readable.add(snapshots.read(id).id)
    return snapshots.retire(readable, older=older, dry_run=dry_run).freed
