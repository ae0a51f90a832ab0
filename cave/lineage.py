"""The snapshots of one session in use: taken after its cells, brought back into a kernel.

A Lineage sits between the journal, a live kernel and the files of `cave.snapshot`. It never
journals a snapshot before its file is on disk, and never lets go of one that a restore may
need.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cave import failpoints
from cave.errors import KernelDied, SnapshotCorrupt, SnapshotError, StaleImage, StoreError
from cave.events import (
    Event,
    Restored,
    RestoreReason,
    SnapshotCommitted,
    SnapshotFailed,
    SnapshotsRetired,
)
from cave.image import Image, Note
from cave.journal import Journal
from cave.ports import Kernel

if TYPE_CHECKING:
    from cave.snapshot import Manifest, Plan, Snapshots

SOON = 2.0
"""Seconds that a caller who would rather not wait does wait for a snapshot."""
DISTRUST = 3
"""Snapshots that are tried, newest first, before the session starts with nothing."""


@dataclass(slots=True)
class Taken:
    """An image that is on its way to disk."""

    cell: int
    upto: int
    name: str
    kernel: int
    began: float
    work: asyncio.Task[tuple[Image, Manifest]]


@dataclass(slots=True)
class Lineage:
    """What a session's kernels were, and what the next one will be."""

    journal: Journal
    open: Callable[[], Snapshots]
    """Opens the session's folder of snapshots."""
    on: bool = True
    """Whether there are snapshots at all (`persistence="live"` has none)."""
    every: int = 1
    """Cells from one automatic snapshot to the next."""
    _store: Snapshots | None = None
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _taken: Taken | None = None
    _ahead: asyncio.Task[Plan | None] | None = None
    _whole: bool = False
    """Whether the next image must be a whole one: what it would be a difference from is
    damaged."""

    @property
    def store(self) -> Snapshots:
        """The files of the session's snapshots."""
        if self._store is None:
            self._store = self.open()
        return self._store

    @property
    def due(self) -> bool:
        """Whether an automatic snapshot is to be taken after the cell that ends now."""
        lasting = self.journal.history.lasting
        return self.on and lasting.waiting + 1 >= self.every

    @property
    def stale(self) -> bool:
        """Whether anything may have changed since the latest snapshot."""
        return self.on and self.journal.history.lasting.unsaved

    @property
    def assumes(self) -> bool:
        """Whether the latest snapshot takes anything to be as it was without having looked."""
        notes = self.journal.history.lasting.notes.values()
        return self.on and any(note.kind == "assumed" for note in notes)

    @property
    def unsure(self) -> bool:
        """Whether the latest snapshot may differ from what is in the kernel."""
        return self.stale or self.assumes

    # -- taking ------------------------------------------------------------------------------

    async def take(
        self,
        kernel: Kernel,
        number: int,
        *,
        name: str = "",
        verify: bool = False,
        wait: bool = True,
        sync: bool = True,
        last: bool = False,
    ) -> SnapshotCommitted | None:
        """Put the namespace on disk and journal it.

        None when the kernel died or the disk is full (then the journal says why), and when
        it takes its time and `wait` is not set: then `settle` is to be called.
        """
        await self.settle()
        lasting, clock = self.journal.history.lasting, self.journal.clock
        began, cell, upto = clock.monotonic(), lasting.last_cell, lasting.seq
        try:
            capture = await kernel.snapshot(
                id=_new_id(cell),
                base=None if self._whole else lasting.image,
                lease=self.journal.lease,
                verify=verify,
                background=not wait,
            )
        except KernelDied:
            return None
        except StoreError as error:
            await self.failed(error, sync=sync)
            return None
        failpoints.hit("snapshot.after_image")
        work = self._write(capture.image(), cell, name)
        self._taken = Taken(cell, upto, name, number, began, asyncio.ensure_future(work))
        if not wait:
            await asyncio.wait({self._taken.work}, timeout=SOON)
            if not self._taken.work.done():
                return None
        return await self.settle(sync=sync, last=last)

    def _write(
        self, given: Awaitable[Image], cell: int, name: str
    ) -> Coroutine[Any, Any, tuple[Image, Manifest]]:
        """Puts an image on disk when it is there; with the variables that are known now."""
        variables = tuple(self.journal.history.variables.values())

        async def write() -> tuple[Image, Manifest]:
            image = await given
            base = None if image.base is None else await self.manifest(image.base)
            manifest = await asyncio.to_thread(
                self.store.write,
                image,
                base=base,
                cell=cell,
                at=self.journal.clock.now(),
                name=name,
                variables=variables,
            )
            return image, manifest

        return write()

    async def commit(self, image: Image, number: int) -> SnapshotCommitted | None:
        """Make a snapshot of an image that a kernel left behind."""
        lasting, clock = self.journal.history.lasting, self.journal.clock
        given: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        given.set_result(replace(image, id=_new_id(lasting.last_cell)))
        work = asyncio.ensure_future(self._write(given, lasting.last_cell, ""))
        self._taken = Taken(lasting.last_cell, lasting.seq, "", number, clock.monotonic(), work)
        return await self.settle()

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is on its way that `settle` would journal."""
        return self._taken is not None

    async def arrived(self) -> None:
        """Wait until the snapshot that is on its way is on disk, or has failed."""
        if self._taken is not None:
            await asyncio.wait({self._taken.work})

    async def settle(self, *, sync: bool = True, last: bool = False) -> SnapshotCommitted | None:
        """Journal the snapshot that is on its way, if one is."""
        taken = self._taken
        if taken is None:
            return None
        try:
            image, manifest = await asyncio.shield(taken.work)
        except KernelDied:
            self._taken = None
            return None
        except StoreError as error:
            self._taken = None
            self._whole = isinstance(error, SnapshotCorrupt)
            await self.failed(error, sync=sync)
            return None
        self._taken, self._whole = None, False
        failpoints.hit("snapshot.before_event")
        await self.journal.append(self._event(taken, image, manifest), sync=sync, last=last)
        self._manifests = {manifest.id: manifest}
        return self.journal.history.lasting.snapshots[manifest.id]

    def _event(self, taken: Taken, image: Image, manifest: Manifest) -> SnapshotCommitted:
        return SnapshotCommitted(
            snapshot=manifest.id,
            cell=taken.cell,
            upto=taken.upto,
            name=taken.name,
            kernel=taken.kernel,
            written=manifest.written,
            size=manifest.size,
            seconds=round(self.journal.clock.monotonic() - taken.began, 6),
            pause=image.pause,
            digest=manifest.digest,
            notes=_notes(manifest),
            missed=image.missed,
        )

    async def failed(self, error: StoreError, *, sync: bool = False) -> None:
        """Snapshots are given up first when the disk is full; the session goes on."""
        cell = self.journal.history.lasting.last_cell
        await self.journal.append(SnapshotFailed(cell=cell, reason=str(error)), sync=sync)

    # -- bringing back -----------------------------------------------------------------------

    async def manifest(self, id: str) -> Manifest:
        """A manifest whose signature was checked. Raises `SnapshotError`."""
        known = self._manifests.get(id)
        if known is None:
            known = await asyncio.to_thread(self.store.read, id)
            digest = self._digests().get(id)
            if digest and digest != known.digest:
                raise SnapshotError(f"snapshot {id} is not the one that the journal knows")
            self._manifests[id] = known
        return known

    def _digests(self) -> dict[str, str]:
        snapshots = self.journal.history.lasting.snapshots
        return {id: event.digest for id, event in snapshots.items()}

    async def bring_back(
        self,
        kernel: Kernel,
        number: int,
        *,
        reason: RestoreReason,
    ) -> Restored | None:
        """Bring the latest namespace that can be read into a new kernel.

        None when there is none. Raises `KernelDied`.
        """
        failures: list[str] = []
        try:
            for id in self.journal.history.lasting.line[:DISTRUST]:
                try:
                    target = await self.manifest(id)
                    return await self._load(kernel, number, target, reason, failures=failures)
                except StoreError as error:
                    failures.append(str(error))
        finally:
            await self._forget_plan()
        if failures:
            await self.give_up(number, reason, "; ".join(failures))
        return None

    def prepare(self) -> None:
        """Begin to check what the next kernel comes back to, while that kernel starts."""
        if self.on and self._ahead is None and (line := self.journal.history.lasting.line):
            self._ahead = asyncio.ensure_future(self._plan_ahead(line[0]))

    async def _plan_ahead(self, id: str) -> Plan | None:
        try:
            target = await self.manifest(id)
            return await asyncio.to_thread(self.store.plan, target, live=None)
        except StoreError:  # met again, and told, by who needs it
            return None

    async def _planned(self, target: Manifest, live: Manifest | None) -> Plan:
        if self._ahead is not None and live is None:
            ahead, self._ahead = self._ahead, None
            plan = await ahead
            if plan is not None and plan.target.id == target.id:
                return plan
            if plan is not None:
                plan.close()
        return await asyncio.to_thread(self.store.plan, target, live=live)

    async def _forget_plan(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (plan := await ahead) is not None:
            plan.close()

    async def go_to(self, kernel: Kernel, number: int, id: str) -> Restored:
        """Bring the namespace of a live kernel to an earlier moment. Raises `SnapshotError`."""
        target = await self.manifest(id)
        image = self.journal.history.lasting.image
        live = await self.manifest(image) if image is not None else None
        try:
            return await self._load(kernel, number, target, "asked", live=live)
        except StaleImage:  # something has changed that no cell was seen to reach
            return await self._load(kernel, number, target, "asked")

    async def _load(
        self,
        kernel: Kernel,
        number: int,
        target: Manifest,
        reason: RestoreReason,
        *,
        live: Manifest | None = None,
        failures: Sequence[str] = (),
    ) -> Restored:
        began = self.journal.clock.monotonic()
        versions = target.versions(kernel.facts.python, await kernel.versions(target.packages))
        plan = await self._planned(target, live)
        cells = {v.name: v.cell for v in target.variables}
        try:
            load = replace(plan.load, cells=cells)
            found = await kernel.restore(load, lease=self.journal.lease)
        finally:
            plan.close()
        notes = [*_notes(target), *load.lost, *found]
        notes += [
            Note("changed", v.name, v.type, f"an older snapshot was used: {why}")
            for why in failures
            for v in target.variables
        ]
        event = Restored(
            snapshot=target.id,
            cell=target.cell,
            reason=reason,
            kernel=number,
            variables=target.variables,
            kept=plan.same,
            notes=tuple(dict.fromkeys(notes)),
            versions=versions,
            seconds=self.journal.clock.monotonic() - began,
        )
        await self.journal.append(event, sync=True)
        return event

    async def give_up(self, number: int, reason: RestoreReason, why: str) -> None:
        """Journal that nothing could be brought back, and of what."""
        variables = tuple(self.journal.history.held.values())
        notes = tuple(Note("lost", v.name, v.type, why) for v in variables)
        await self.journal.append(
            Restored(snapshot="", cell=0, reason=reason, kernel=number, notes=notes)
        )

    # -- looking and cleaning ----------------------------------------------------------------

    async def retire(self, keep: set[str]) -> Sequence[Event]:
        """Let go of snapshots that are not in `keep`, journal first."""
        gone = tuple(id for id in self.journal.history.lasting.snapshots if id not in keep)
        if not gone:
            return ()
        event = SnapshotsRetired(snapshots=gone)
        await self.journal.append(event)
        await asyncio.to_thread(self._let_go, keep)
        return (event,)

    def _let_go(self, keep: set[str]) -> None:
        try:
            self.store.retire(keep)
        except SnapshotCorrupt:  # one that cannot be read keeps nothing
            self.store.retire({id for id in keep if self._readable(id)})

    def _readable(self, id: str) -> bool:
        try:
            self.store.read(id)
        except SnapshotError:
            return False
        return True

    @property
    def back(self) -> int | None:
        """The cell after which the next kernel's namespace would be; None without a snapshot."""
        lasting = self.journal.history.lasting
        latest = lasting.snapshots.get(lasting.latest) if self.on else None
        return latest.cell if latest else None


def _new_id(cell: int) -> str:
    return f"{cell:06d}-{secrets.token_hex(4)}"


def _notes(manifest: Manifest) -> tuple[Note, ...]:
    """What a snapshot will not bring back exactly, what was not looked at included."""
    if not manifest.assumed:
        return manifest.notes
    why = "no cell was seen to reach it, and it was not looked at"
    assumed = [
        Note("assumed", v.name, v.type, why) for v in manifest.variables if v.fidelity == "assumed"
    ]
    return (*manifest.notes, *assumed)
