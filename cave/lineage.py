"""The snapshots of one session in use: taken after its cells, brought back into a kernel.

A Lineage sits between the journal, a live kernel and the files of `cave.snapshot`. It never
journals a snapshot before its file is on disk, and never lets go of one that a restore may
need.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cave import failpoints, moments
from cave.errors import KernelDied, SnapshotCorrupt, SnapshotError, StaleImage, StoreError
from cave.events import (
    Event,
    Restored,
    RestoreReason,
    SnapshotCommitted,
    SnapshotFailed,
    SnapshotsRetired,
    Variable,
)
from cave.image import Image, Load, Note
from cave.journal import Journal
from cave.ports import Capture, Kernel

if TYPE_CHECKING:
    from cave.snapshot import Manifest, Plan, Snapshots

SOON = 2.0
"""Seconds that a caller who would rather not wait does wait for a snapshot."""
HOPS = 3
"""Turns of the event loop after which a request has been sent."""
DISTRUST = 3
"""Snapshots whose manifest is good that are tried, newest first, before the session starts
with nothing."""


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
    retention: int = 100
    """Automatic snapshots that are kept whole."""
    tracking: str = ""
    """How the kernel that gave the last image knows which memory changed."""
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

    async def ask(self, kernel: Kernel, cell: int) -> Asked | None:
        """Have the kernel begin with the image that `take` will want after that cell."""
        if self._taken is not None or self._whole:
            return None
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
        await self.journal.append(self._event(taken, image, manifest), sync=sync, last=last)
        self._manifests = {manifest.id: manifest}
        return self.journal.history.lasting.snapshots[manifest.id]

    def _event(self, taken: Taken, image: Image, manifest: Manifest) -> SnapshotCommitted:
        self.tracking = image.tracking
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
        deadly: Collection[str] = (),
    ) -> Restored | None:
        """Bring the latest namespace that can be read into a new kernel, without the groups
        that are `deadly`.

        None when there is none. Raises `KernelDied`.
        """
        failures: list[str] = []
        distrust = 0
        try:
            for id in self.journal.history.lasting.line:
                try:
                    target = await self.manifest(id)
                except StoreError as error:  # found out at once: as many as there are
                    failures.append(str(error))
                    continue
                try:
                    return await self._load(
                        kernel, number, target, reason, failures=failures, deadly=deadly
                    )
                except StoreError as error:
                    failures.append(str(error))
                    distrust += 1
                    if distrust == DISTRUST:
                        break
        finally:
            await self._forget_plan()
        if failures:
            await self.give_up(number, reason, _why(failures))
        return None

    def prepare(self) -> None:
        """Begin to check what the next kernel comes back to, while that kernel starts."""
        if self._ahead is None and (line := self.journal.history.lasting.line):
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
        live = await self._live()
        try:
            return await self._load(kernel, number, target, "asked", live=live)
        except StaleImage:  # something has changed that no cell was seen to reach
            return await self._load(kernel, number, target, "asked")

    async def _live(self) -> Manifest | None:
        """What is known of the kernel's namespace; nothing where that file is damaged."""
        image = self.journal.history.lasting.image
        try:
            return None if image is None else await self.manifest(image)
        except StoreError:
            return None

    async def _load(
        self,
        kernel: Kernel,
        number: int,
        target: Manifest,
        reason: RestoreReason,
        *,
        live: Manifest | None = None,
        failures: Sequence[str] = (),
        deadly: Collection[str] = (),
    ) -> Restored:
        began = self.journal.clock.monotonic()
        versions = target.versions(kernel.facts.python, await kernel.versions(target.packages))
        plan = await self._planned(target, live)
        later = self._later(target, failures) if failures else ()
        try:
            if reason == "asked" and plan.damaged:
                raise _damaged(target.id, plan.damaged)
            load = self._wanted(plan, deadly, [n for n in later if n.kind == "lost"])
            found = await kernel.restore(load, lease=self.journal.lease)
        finally:
            plan.close()
        notes = [*_notes(target), *load.lost, *found, *later]
        event = Restored(
            snapshot=target.id,
            cell=target.cell,
            reason=reason,
            kernel=number,
            variables=self._known(target, load.lost),
            kept=plan.same,
            notes=tuple(dict.fromkeys(notes)),
            versions=versions,
            seconds=self.journal.clock.monotonic() - began,
            undone=() if reason == "asked" else self._undone(target.id),
        )
        await self.journal.append(event, sync=True)
        return event

    def _undone(self, id: str) -> tuple[int, ...]:
        """Cells that have ended and whose work a snapshot does not have."""
        history = self.journal.history
        there = set(history.lasting.past.cells(id))
        now = [n for n in history.lasting.past.cells() if n not in there]
        return tuple(n for n in now if history.cells[n].kept and history.cells[n].status != "died")

    def _wanted(self, plan: Plan, deadly: Collection[str], lost: Sequence[Note]) -> Load:
        """What is loaded: nothing that is deadly, nor what needs it."""
        groups = {group.id: group for group in plan.target.groups}
        if any(groups[id].definitions for id in deadly if id in groups):
            deadly = {*deadly, *(group.id for group in groups.values() if group.uses)}
        types = {v.name: v.type for v in plan.target.variables} | self._types()
        notes = [n if n.type != "unknown" else replace(n, type=types.get(n.name, n.type))
                 for n in plan.load.lost]  # fmt: skip
        notes += [
            Note("lost", name, types.get(name, "object"), "reading it ended the kernel")
            for group in plan.load.groups
            if group.id in deadly
            for name in group.names
        ]
        return replace(
            plan.load,
            groups=tuple(group for group in plan.load.groups if group.id not in deadly),
            lost=(*notes, *lost),
            cells={v.name: v.cell for v in self._known(plan.target, lost)},
        )

    def _types(self) -> dict[str, str]:
        return {v.name: v.type for v in self.journal.history.held.values()}

    def _known(self, target: Manifest, lost: Sequence[Note]) -> tuple[Variable, ...]:
        """The variables of a snapshot, and others that are lost, as the journal knows them."""
        held, there = self.journal.history.held, {v.name for v in target.variables}
        variables = [held.get(v.name, v) if v.type == "unknown" else v for v in target.variables]
        others = [n.name for n in lost if n.name in held and n.name not in there]
        return (*variables, *(held[name] for name in others))

    def _later(self, target: Manifest, failures: Sequence[str]) -> tuple[Note, ...]:
        """What may differ from the latest snapshot where an older one is used."""
        history, why = self.journal.history, f"an older snapshot is used: {_why(failures)}"
        seen = moments.changed_between(history, target.id, history.lasting.latest)
        notes = []
        for v in target.variables:
            if seen is None or v.name in seen:
                notes.append(Note("changed", v.name, v.type, f"cells have changed it, and {why}"))
            else:
                unseen = f"no cell was seen to change it, but {why}"
                notes.append(Note("assumed", v.name, v.type, unseen))
        there = {v.name for v in target.variables}
        notes += [
            Note("lost", v.name, v.type, f"made after cell {target.cell}, and {why}")
            for v in history.held.values()
            if v.name not in there
        ]
        return tuple(notes)

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
        latest = lasting.snapshots.get(lasting.latest)
        return latest.cell if latest else None


def _why(failures: Sequence[str]) -> str:
    more = len(failures) - 1
    return failures[0] + (f" (nor can {more} others be used)" if more else "")


def _damaged(id: str, notes: Sequence[Note]) -> SnapshotCorrupt:
    names = ", ".join(dict.fromkeys(note.name for note in notes))
    return SnapshotCorrupt(
        f"snapshot {id} is damaged, so that it lacks {names} ({notes[0].reason}); nothing was "
        f"changed; s.fork('another', at={id!r}) gives a session with the rest of it"
    )


def _heard(work: asyncio.Future[Capture]) -> None:
    """A fault that nobody asks for any more is no news."""
    if not work.cancelled():
        work.exception()


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
