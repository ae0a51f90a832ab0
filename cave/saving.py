"""Taking the snapshots of one session: from a kernel's image to an event in the journal.

A snapshot is journaled when its file is on disk, or with its file, where that is small: then
one wait for the disk is enough for the end of a cell and the namespace after it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cave import failpoints, mending
from cave.errors import KernelDied, SnapshotError, StoreError
from cave.events import CellFinished, Inside, SnapshotCommitted, SnapshotFailed, Variable
from cave.image import Image, Note
from cave.journal import Journal
from cave.ports import Capture, Kernel, Wanted

if TYPE_CHECKING:
    from cave.policy.masking import Mask
    from cave.snapshot import Manifest, Snapshots

SOON = 2.0
"""Seconds that a caller who would rather not wait does wait for a snapshot."""
AT_ONCE = 0.05
"""Seconds that the end of a cell waits for its image before it is journaled alone."""
LIGHT = 8 << 10
"""Bytes of an image that is written without another thread, if the file is not waited for."""
FEW = 200
"""Groups of such an image."""
HOPS = 3
"""Turns of the event loop after which a request has been sent."""


@dataclass(slots=True)
class Asked:
    """An image that a kernel was asked for."""

    began: float
    work: asyncio.Future[Capture]


@dataclass(slots=True)
class Taken:
    """An image that is on its way to disk."""

    cell: int
    upto: int
    name: str
    kernel: int
    began: float
    work: asyncio.Task[tuple[Image, Manifest]]
    inside: Inside | None = None


@dataclass(slots=True)
class Saving:
    """The snapshots of one session as they are taken."""

    journal: Journal
    open: Callable[[], Snapshots]
    """Opens the session's folder of snapshots."""
    on: bool = True
    """Whether there are snapshots at all (`persistence="live"` has none)."""
    every: int = 1
    """Cells from one automatic snapshot to the next."""
    retention: int = 100
    """Automatic snapshots that are kept whole."""
    tracking: str = ""
    """How the kernel that gave the last image knows which memory changed."""
    mask: Mask | None = None
    """What keeps secrets out of snapshots."""
    _store: Snapshots | None = None
    _mended: bool = False
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _taken: Taken | None = None
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

    async def manifest(self, id: str) -> Manifest:
        """A manifest whose signature was checked. Raises `SnapshotError`."""
        known = self._manifests.get(id)
        if known is None:
            await self.mend()
            known = await asyncio.to_thread(self.store.read, id)
            digest = self._digests().get(id)
            if digest and digest != known.digest:
                raise SnapshotError(f"snapshot {id} is not the one that the journal knows")
            self._manifests[id] = known
        return known

    def _digests(self) -> dict[str, str]:
        snapshots = self.journal.history.lasting.snapshots
        return {id: event.digest for id, event in snapshots.items()}

    async def mend(self) -> None:
        """Before anything is read: see to it that small files have outlasted a power cut."""
        if not self._mended:
            lasting = self.journal.history.lasting
            keep = {*lasting.snapshots, *filter(None, [lasting.latest])}
            await mending.mend(self.journal.store, self.journal.session, self.store, keep)
            self._mended = True

    # -- taking ------------------------------------------------------------------------------

    def wanted(self, cell: int) -> Wanted | None:
        """The image that the request for that cell is to ask for, too."""
        if not self.due or self._taken is not None or self._whole:
            return None
        return Wanted(_new_id(cell), self.journal.history.lasting.image)

    async def ask(self, kernel: Kernel, cell: int, wanted: Wanted | None) -> Asked | None:
        """The image that the kernel has begun behind a cell; else have it begin now."""
        if self._taken is not None or self._whole:
            return None
        if wanted is not None and wanted.work is not None:
            return Asked(self.journal.clock.monotonic(), wanted.work)
        asked = self._ask(kernel, cell, verify=False, background=True)
        for _ in range(HOPS):  # on its way before the journal's thread wants the processor
            await asyncio.sleep(0)
        return asked

    def _ask(self, kernel: Kernel, cell: int, *, verify: bool, background: bool) -> Asked:
        work = asyncio.ensure_future(
            kernel.snapshot(
                id=_new_id(cell),
                base=None if self._whole else self.journal.history.lasting.image,
                lease=self.journal.lease,
                verify=verify,
                background=background,
            )
        )
        work.add_done_callback(_heard)
        return Asked(self.journal.clock.monotonic(), work)

    async def take(
        self,
        kernel: Kernel,
        number: int,
        *,
        name: str = "",
        verify: bool = False,
        wait: bool = True,
        patience: float = SOON,
        sync: bool = True,
        last: bool = False,
        asked: Asked | None = None,
    ) -> SnapshotCommitted | None:
        """Put the namespace on disk and journal it; `asked` is what the kernel has begun.

        None when the kernel died or the disk is full (then the journal says why), and when
        it takes more than `patience` seconds and `wait` is not set: then `settle` is to be
        called.
        """
        await self.settle()
        again = self._whole
        while True:
            try:
                cell = self.journal.history.lasting.last_cell
                asked = asked or self._ask(kernel, cell, verify=verify, background=not wait)
                await self._begin(asked, number, name)
                if not wait and not await self._soon(patience):
                    return None
                return await self._settled(sync=sync, last=last)
            except KernelDied:
                return None
            except StoreError as error:
                if again or not self._whole:
                    await self.failed(error, sync=sync)
                    return None
                again, asked = True, None

    async def at_once(
        self, asked: Asked, end: CellFinished, number: int
    ) -> SnapshotCommitted | SnapshotFailed | None:
        """The snapshot after a cell, or that it failed: to be journaled with the cell's end.

        None when the image is not there soon, or not small: then `take` is to be called.
        """
        await asyncio.wait({asked.work}, timeout=AT_ONCE)
        if not asked.work.done() or asked.work.exception() or not asked.work.result().small:
            return None
        failpoints.hit("snapshot.after_image")
        variables = _after(self.journal.history.variables, end)
        try:
            image = await asked.work.result().image()
            manifest = await self._put(image, end.cell, "", variables)
        except (SnapshotError, KernelDied):
            return None  # met again by `take`, which asks for a whole image then
        except StoreError as error:
            return SnapshotFailed(cell=end.cell, reason=str(error))
        failpoints.hit("snapshot.before_event")
        self._manifests[manifest.id] = manifest
        return self._event(image, manifest, upto=-1, kernel=number, began=asked.began)

    def saved(self, event: SnapshotCommitted | SnapshotFailed) -> None:
        """What `at_once` gave is journaled."""
        if isinstance(event, SnapshotCommitted):
            self._manifests = {event.snapshot: self._manifests[event.snapshot]}

    async def _begin(self, asked: Asked, number: int, name: str) -> None:
        """Have an image on its way to disk."""
        lasting = self.journal.history.lasting
        cell, upto = lasting.last_cell, lasting.seq
        capture = await asked.work
        failpoints.hit("snapshot.after_image")
        work = self._write(capture.image(), cell, name)
        self._taken = Taken(cell, upto, name, number, asked.began, asyncio.ensure_future(work))

    async def _soon(self, patience: float) -> bool:
        """Whether what is on its way is there before long."""
        assert self._taken is not None
        await asyncio.wait({self._taken.work}, timeout=patience)
        return self._taken.work.done()

    def _write(
        self,
        given: Awaitable[Image],
        cell: int,
        name: str,
        variables: tuple[Variable, ...] | None = None,
    ) -> Coroutine[Any, Any, tuple[Image, Manifest]]:
        """Puts an image on disk when it is there; with the variables that are known now."""
        known = tuple(self.journal.history.variables.values()) if variables is None else variables

        async def write() -> tuple[Image, Manifest]:
            image = await given
            return image, await self._put(image, cell, name, known)

        return write()

    async def _put(
        self, image: Image, cell: int, name: str, variables: Sequence[Variable]
    ) -> Manifest:
        """Write an image; a small file need not be on disk then, and is in the manifest."""
        await self.mend()
        base = None if image.base is None else await self.manifest(image.base)
        veil = None if self.mask is None else self.mask.veil
        name = name if self.mask is None else self.mask.text(name)

        def write() -> Manifest:
            types = {variable.name: variable.type for variable in variables}
            return self.store.write(
                image if veil is None else veil.image(image, types),
                base=base,
                cell=cell,
                at=self.journal.clock.now(),
                name=name,
                variables=variables,
                wait=False,
            )

        return write() if _is_light(image, base) else await asyncio.to_thread(write)

    async def commit(
        self, image: Image, number: int, inside: Inside | None = None
    ) -> SnapshotCommitted | None:
        """Make a snapshot of an image that a kernel left behind, or kept inside a cell."""
        lasting, clock = self.journal.history.lasting, self.journal.clock
        inside = inside if self.mask is None else self.mask.value(inside)
        given: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        given.set_result(replace(image, id=_new_id(lasting.last_cell)))
        cell, variables = lasting.last_cell, inside.variables if inside else None
        work = asyncio.ensure_future(self._write(given, cell, "", variables))
        self._taken = Taken(cell, lasting.seq, "", number, clock.monotonic(), work, inside)
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
        """Journal the snapshot that is on its way, if one is, or that it failed."""
        try:
            return await self._settled(sync=sync, last=last)
        except KernelDied:
            return None
        except StoreError as error:
            await self.failed(error, sync=sync)
            return None

    async def _settled(self, *, sync: bool, last: bool) -> SnapshotCommitted | None:
        taken = self._taken
        if taken is None:
            return None
        try:
            image, manifest = await asyncio.shield(taken.work)
        except (KernelDied, StoreError) as error:
            self._taken = None
            self._whole = isinstance(error, SnapshotError)
            raise
        self._taken, self._whole = None, False
        failpoints.hit("snapshot.before_event")
        event = self._event(
            image,
            manifest,
            upto=taken.upto,
            kernel=taken.kernel,
            began=taken.began,
        )
        event = replace(event, inside=taken.inside)
        await self.journal.append(event, sync=sync, last=last)
        self._manifests = {manifest.id: manifest}
        return self.journal.history.lasting.snapshots[manifest.id]

    def _event(
        self, image: Image, manifest: Manifest, *, upto: int, kernel: int, began: float
    ) -> SnapshotCommitted:
        self.tracking = image.tracking
        return SnapshotCommitted(
            snapshot=manifest.id,
            cell=manifest.cell,
            upto=upto,
            name=manifest.name,
            kernel=kernel,
            written=manifest.written,
            size=manifest.size,
            seconds=round(self.journal.clock.monotonic() - began, 6),
            pause=image.pause,
            digest=manifest.digest,
            notes=notes_of(manifest),
            missed=image.missed,
            file=mending.as_text(manifest.file),
        )

    async def failed(self, error: StoreError, *, sync: bool = False) -> None:
        """Snapshots are given up first when the disk is full; the session goes on."""
        cell = self.journal.history.lasting.last_cell
        await self.journal.append(SnapshotFailed(cell=cell, reason=str(error)), sync=sync)


def _heard(work: asyncio.Future[Capture]) -> None:
    """A fault that nobody asks for any more is no news."""
    if not work.cancelled():
        work.exception()


def _new_id(cell: int) -> str:
    return f"{cell:06d}-{secrets.token_hex(4)}"


def notes_of(manifest: Manifest) -> tuple[Note, ...]:
    """What a snapshot will not bring back exactly, what was not looked at included."""
    if not manifest.assumed:
        return manifest.notes
    why = "no cell was seen to reach it, and it was not looked at"
    assumed = [
        Note("assumed", v.name, v.type, why) for v in manifest.variables if v.fidelity == "assumed"
    ]
    return (*manifest.notes, *assumed)


def _after(known: Mapping[str, Variable], end: CellFinished) -> tuple[Variable, ...]:
    """The variables when that end of a cell is journaled, in the order of their making."""
    delta = end.delta
    found = {**known, **{v.name: v for v in (*delta.added, *delta.changed)}}
    return tuple(v for name, v in found.items() if name not in delta.removed)


def _is_light(image: Image, base: Manifest | None) -> bool:
    """Whether writing it takes less time than another thread would need to begin."""
    given = [group for group in image.groups if not group.same]
    size = sum(group.stream.nbytes for group in given if group.stream is not None)
    count = max(len(image.groups), len(base.entries) if base is not None else 0)
    return count < FEW and size < LIGHT and not any(g.buffers for g in given)
