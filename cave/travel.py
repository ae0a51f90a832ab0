"""The verbs of time: snapshot, restore, diff, fork. A part of `cave.session.AsyncSession`."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from cave import __version__, moments, thinning
from cave.config import Options, checked_name
from cave.errors import ConfigError, SessionBusy, SnapshotError
from cave.events import Event, ForkEffects, Restored, SessionOpened, SnapshotCommitted, ValuesPut
from cave.history import History
from cave.home import Home
from cave.journal import Journal
from cave.lineage import Lineage
from cave.operations import carried
from cave.ports import Kernel
from cave.report import Diff, RestoreReport, Snapshot
from cave.shared import NO_LIMITS
from cave.spending import uid_of

if TYPE_CHECKING:
    from cave.loop import Work
    from cave.operations import Operations


class TimeTravel:
    """What a session does with its snapshots."""

    name: str
    home: Home
    _options: Options
    _operations: Operations
    _journal: Journal
    _fold: History
    _lineage: Lineage
    _work: Work

    @abstractmethod
    def _operation(self) -> AbstractAsyncContextManager[bool]: ...

    @abstractmethod
    async def _ready(self, *, news: bool) -> Kernel: ...

    @abstractmethod
    def sibling(self, name: str) -> Self:
        """A session of that name with the same options, not open yet."""

    def _require_snapshots(self) -> None:
        if not self._lineage.on:
            raise ConfigError(
                f'session {self.name!r} has persistence="live", which takes no snapshots; open it '
                f'with persistence="hybrid"'
            )

    @carried
    async def snapshot(self, name: str = "") -> Snapshot:
        """Take a snapshot now, after looking at every object; a named one is always kept.

        Raises `SnapshotError` when the disk is full or the kernel died.
        """
        self._require_snapshots()
        name = moments.checked_name(name)
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            taken = await self._lineage.take(
                kernel, self._work.supply.number, name=name, verify=True
            )
            if taken is None:
                raise SnapshotError(f"no snapshot of {self.name!r} was taken: {self._why()}")
            return self._shown(taken)

    def _why(self) -> str:
        kernel = self._work.supply.kernel
        if kernel is not None and kernel.death is not None:
            return str(kernel.death)
        return self._fold.lasting.failure or "the kernel died"

    def _shown(self, event: SnapshotCommitted) -> Snapshot:
        return Snapshot.of(event, self._fold.lasting.of(self._fold.variables.values()))

    @property
    def tracking(self) -> str:
        """How the kernel knows which memory changed, as its last image told; empty before."""
        return self._lineage.tracking

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The snapshots that are kept, oldest first (without their variables)."""
        return tuple(Snapshot.of(event) for event in self._fold.lasting.snapshots.values())

    @property
    def last_restore(self) -> RestoreReport | None:
        """How the namespace was brought back last; None when it never was."""
        event = self._fold.lasting.restored
        return None if event is None else self._report(event)

    def _report(self, event: Restored) -> RestoreReport:
        gone = () if event.reason == "asked" else self._fold.lost
        undone = [entry.id for entry in self._fold.ledger.entries.values() if entry.undone]
        return RestoreReport.of(event, gone, undone=undone)

    @carried
    async def restore(self, at: Any) -> RestoreReport:
        """Bring the namespace back to an earlier moment.

        `at` is a cell number (the state after it), "turn 4", "before turn 4", the name of a
        snapshot, or a Snapshot. What is now is put on disk first. Raises `SnapshotNotFound`,
        `SnapshotCorrupt`, `SnapshotError` when the disk is full; the namespace is untouched then.
        """
        self._require_snapshots()
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            await self._up_to_date(kernel)
            id = moments.resolve(self._fold, at)
            return self._report(await self._lineage.go_to(kernel, self._work.supply.number, id))

    async def _up_to_date(self, kernel: Kernel) -> None:
        """What is now is on disk, and all of it has been looked at. Raises `SnapshotError`."""
        await self._lineage.settle()
        if self._lineage.unsure:
            await self._lineage.take(kernel, self._work.supply.number, verify=True)
        await self._nothing_would_go()

    async def _nothing_would_go(self, hint: str = "") -> None:
        """Raises `SnapshotError` when a live kernel has what could not be put on disk."""
        kernel = self._work.supply.kernel
        if kernel is not None and self._lineage.stale and await kernel.alive():
            raise SnapshotError(
                f"nothing was done, since what cells made is in memory only and would be lost"
                f"{hint}: {self._why()}"
            )

    async def outlook(self, at: Any) -> Diff:
        """What `restore(at)` would change, from the state of the latest snapshot."""
        await self._refreshed()
        latest = self._fold.lasting.latest
        return await self._between(latest, moments.resolve(self._fold, at))

    @carried
    async def diff(self, old: Any, new: Any) -> Diff:
        """Names that were added, changed, removed and unchanged from one moment to another.

        Both as `restore` takes them. Raises `SnapshotNotFound`.
        """
        await self._refreshed()
        return await self._between(
            moments.resolve(self._fold, old), moments.resolve(self._fold, new)
        )

    async def _between(self, old: str, new: str) -> Diff:
        from cave.snapshot import differences

        manifests = [await self._lineage.manifest(id) for id in (old, new)]
        touched = moments.changed_between(self._fold, old, new)
        found = differences(manifests[0], manifests[1], touched=touched)
        return Diff(found.added, found.changed, found.removed, found.unchanged)

    async def _refreshed(self) -> None:
        if not self._journal.operating:
            await self._journal.refresh()

    @carried
    async def fork(self, name: str, at: Any = None, *, effects: ForkEffects = "ask") -> Self:
        """Another session with the same objects, as they are now or were `at` a moment.

        It has its own journal, kernel, workdir (a copy) and snapshots. `effects`: of calls that
        touch the world, `ask` a person before one that this session has made since that moment,
        `deny` all, or `allow` all. Raises `ConfigError` when there is a session of that name,
        `SnapshotNotFound`.
        """
        self._require_snapshots()
        if effects not in get_args(ForkEffects):
            raise ConfigError(
                f"effects={effects!r} is not one of {', '.join(get_args(ForkEffects))}"
            )
        child = self.sibling(checked_name(name))
        try:
            async with self._operation() as news:
                await self._lineage.settle()
                if at is None:
                    kernel = await self._ready(news=news)
                    await self._up_to_date(kernel)
                    await self._branch(child, self._fold.lasting.latest, effects)
                else:
                    await self._branch(child, moments.resolve(self._fold, at), effects)
        except SessionBusy:
            if at is None:
                raise
            await self._refreshed()  # what is on disk is there for all
            await self._branch(child, moments.resolve(self._fold, at), effects)
        return child

    async def _branch(self, child: Self, id: str, effects: ForkEffects) -> None:
        if not await self.home.store.create(child.name):
            raise ConfigError(f"there is a session {child.name!r} already; choose another name")
        try:
            await asyncio.to_thread(self._copy_workdir, child.name)
            await child.receive(self.name, self._lineage, id, effects)
        except BaseException:
            await asyncio.shield(self.home.forget(child.name))
            raise

    def _copy_workdir(self, name: str) -> None:
        source = self.home.workdir(self.name)
        if source.is_dir():
            shutil.copytree(source, self.home.workdir(name), symlinks=True, dirs_exist_ok=True)

    async def receive(self, parent: str, lineage: Lineage, id: str, effects: ForkEffects) -> None:
        """Begin as a fork of another session, at a snapshot of its."""
        store = self._lineage.store
        await lineage.mend()
        manifest = await asyncio.to_thread(store.link_from, lineage.store, id)
        past = lineage.journal.history
        opened = SessionOpened(
            version=__version__,
            forked_from=parent,
            uid=uuid.uuid4().hex,
            effects=effects,
            standing=past.ledger.beyond(parent, past.lasting.past.cells(id))
            if effects == "ask"
            else (),
        )
        first = SnapshotCommitted(
            snapshot=manifest.id,
            cell=0,
            size=manifest.size,
            written=manifest.written,
            digest=manifest.digest,
            notes=manifest.notes,
        )
        async with self._journal.operation():
            await self._journal.append(opened, first, sync=True)
        above, own = [await uid_of(self.home.store, name) for name in (parent, self.name)]
        await self.home.store.limit(own, NO_LIMITS, parent=above)  # it spends from that too

    async def _sow(self, kernel: Kernel, seed: Path) -> None:
        """Begin with the variables of a file that dill wrote."""
        try:
            data = await asyncio.to_thread(lambda: seed.expanduser().read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read the seed {str(seed)!r}: {error.strerror}") from error
        variables = await kernel.seed(data, lease=self._journal.lease)
        await self._journal.append(ValuesPut(variables=tuple(variables)))
        await self._lineage.take(kernel, self._work.supply.number)

    async def retire(self) -> tuple[Event, ...]:
        """Let go of old automatic snapshots, by the rule of retention."""
        async with self._operation():
            return await self._retire()

    async def _retire(self) -> tuple[Event, ...]:
        return tuple(
            await self._lineage.retire(thinning.kept(self._fold, last=self._lineage.retention))
        )

    async def _retire_if_overdue(self) -> None:
        """Inside of an operation: for sessions that are never idle."""
        if thinning.overdue(self._fold, last=self._lineage.retention, slack=thinning.SLACK):
            await self._retire()
