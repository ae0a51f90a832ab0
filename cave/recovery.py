"""What follows a death: the live kernel is taken over, a dead one is named and replaced.

`Supply` gives an operation the kernel that it may command. It keeps the journal true: the
output and the ends of cells that nobody saw are read from the kernel's spool before
anything new is written, and every variable that went with a kernel is named in
`KernelEnded.lost`. It never runs a cell again by itself and never calls a model.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from cave import failpoints
from cave.errors import DiedReading, KernelDied, KernelStartError, StoreError
from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Delta,
    Event,
    Fault,
    Inside,
    KernelEnded,
    KernelStart,
    KernelStarted,
    Output,
    OutputLate,
    RestoreReason,
    Variable,
    clean,
)
from cave.facts import NOT_RUN, joined
from cave.history import History
from cave.image import Image
from cave.journal import Journal
from cave.lineage import Lineage
from cave.ports import BlobStore, Death, Executed, Kernel, SpooledCell, SpooledOutput


class KernelSource(Protocol):
    """Where kernels come from: `cave.kernel`, bound to one session."""

    async def start(self, number: int) -> Kernel:
        """A new kernel. Raises `KernelStartError`."""

    def exists(self, number: int) -> bool:
        """Whether a kernel of that number was begun, journaled or not."""

    async def adopt(self, number: int) -> Kernel | Death | None:
        """The kernel of that number that another process started, or how it ended."""

    async def last_image(self, number: int) -> Image | None:
        """The image that a kernel left when no host was there; it is not given again.

        Raises `SnapshotError` when it is not in order.
        """

    async def progress(self, number: int, cell: int) -> tuple[Image, Inside] | None:
        """What a kernel kept in the midst of a cell, and where that was.

        Raises `SnapshotError` when it is not in order.
        """

    def forget_progress(self, number: int) -> None:
        """It is committed, or worth nothing."""

    def item(self, number: int) -> str:
        """The item of a loop that was under way in a kernel that has ended."""

    async def left_behind(
        self, number: int, *, after: int
    ) -> Sequence[SpooledCell | SpooledOutput]:
        """What a kernel that is dead had put out after message `after`.

        A cell that it cut is the entry whose `executed.status` is `died`.
        """


@dataclass(frozen=True, slots=True)
class KernelView:
    """The kernel as a person sees it."""

    pid: int | None
    alive: bool
    profile: str
    layers: tuple[str, ...]
    """What confines it, with what is to be said of each."""
    degraded: tuple[str, ...]
    """What is missing, and what is open by it."""
    connection_file: str | None
    python: str | None
    number: int
    policy: str = ""
    """Stands for the policy that it was started under."""
    stale: bool = False
    """Whether that is another one than the session's now."""
    start: KernelStart | None = None
    """Whether it was started from nothing (cold), or forked off a template (warm)."""


RESTORES = 2
"""Kernels that may die of a restore, none knows of what, before the session starts with
nothing; and of the same variables, before it goes on without those."""
DEATHS = 12
"""Kernels that may die of a restore in all."""

_REASONS: dict[str, RestoreReason] = {"died": "death", "restart": "restart"}


def _reason(ended: KernelEnded | None) -> RestoreReason:
    """Why a namespace is brought back, from how the kernel before it ended."""
    return "fork" if ended is None else _REASONS.get(ended.reason, "opened")


def names(variables: tuple[Variable, ...]) -> str:
    """Variables in words: `df (DataFrame), y (int)`."""
    return ", ".join(f"{v.name} ({v.type})" for v in variables)


def death_fault(death: Death, lost: tuple[Variable, ...], back: str | None = None) -> Fault:
    """The error of a cell whose kernel died under it; `back` says of when the namespace will
    be restored."""
    tail = f"; lost with it: {names(lost)}" if lost else "; no variable was lost"
    if back is not None:
        tail = f"; the namespace comes back as it was {back}"
        tail += f", without {names(lost)}" if lost else ""
    detail = f" ({death.detail})" if death.detail else ""
    return Fault("KernelDied", f"{death}{detail}{tail}")


@dataclass(slots=True)
class Supply:
    """The kernel of one session, whoever started it and however often it died."""

    journal: Journal
    source: KernelSource
    blobs: BlobStore
    lineage: Lineage
    kernel: Kernel | None = None
    number: int = 0
    """Which kernel of the session `kernel` is."""
    meet: Callable[[Kernel], None] = lambda _: None
    """Called with each kernel before anything is asked of it: its cells may be calling."""
    late: list[SpooledOutput | SpooledCell] = field(default_factory=list)
    """Output of cells that had ended, and foreign cells, not journaled yet."""

    async def ready(self, *, news: bool) -> Kernel:
        """A live kernel that knows this operation's lease. Raises `KernelStartError`."""
        await self._let_go_of_stale()
        if self.kernel is None and self.journal.history.kernel is not None:
            await self._adopt(self.journal.history.kernel.kernel)
            news = True
        kernel = self.kernel
        if kernel is not None and await kernel.alive() and (news or self.journal.history.foreign):
            await self._catch_up(kernel)
        if kernel is not None and kernel.death is not None:
            await self.bury(kernel.death)
        if self.kernel is None:
            await self._start()
        if self.journal.history.lasting.fresh:
            await self._bring_back()
        assert self.kernel is not None
        return self.kernel

    async def look(self) -> None:
        """Journal how the kernel ended, if it did; starts none."""
        await self._let_go_of_stale()
        if self.kernel is None and self.journal.history.kernel is not None:
            await self._adopt(self.journal.history.kernel.kernel)

    async def _bring_back(self) -> None:
        """Restore the latest snapshot into a new kernel, without what has ended others."""
        reason = _reason(self.journal.history.last_end)
        deaths: Counter[str] = Counter()
        deadly: set[str] = set()
        while deaths[""] < RESTORES and deaths.total() < DEATHS:
            assert self.kernel is not None
            kernel = self.kernel
            try:
                await self.lineage.bring_back(kernel, self.number, reason=reason, deadly=deadly)
            except KernelDied as died:
                group = died.group if isinstance(died, DiedReading) else ""
                deaths[group] += 1
                if group and (deadly or deaths[group] == RESTORES):
                    deadly.add(group)
                await kernel.alive()
                assert kernel.death is not None
                await self.bury(kernel.death)
                await self._start()
            else:
                return
        await self.lineage.give_up(self.number, reason, "restoring it ended the kernel")

    async def _let_go_of_stale(self) -> None:
        serving = self.journal.history.kernel
        if self.kernel is not None and (serving is None or serving.kernel != self.number):
            await self.kernel.detach()
            self.kernel = None

    async def _adopt(self, number: int) -> None:
        found = await self.source.adopt(number)
        if isinstance(found, Death) or found is None:
            self.number = number
            await self.bury(found or Death(pid=0, reason="died", detail="its record is gone"))
        else:
            self.kernel, self.number = found, number
            self.meet(found)

    async def _start(self) -> None:
        self.lineage.prepare()
        number, kernel = await self._unclaimed()
        if kernel is None:
            kernel = await self.source.start(number)
        facts = kernel.facts
        started = KernelStarted(
            kernel=number,
            pid=facts.pid,
            python=facts.python,
            executable=facts.executable,
            packages=dict(facts.packages),
            profile=facts.profile,
            layers=facts.layers,
            degraded=facts.degraded,
            seconds=facts.seconds,
            start=facts.start,
        )
        try:
            await self.journal.append(started)
        except BaseException:
            await kernel.end(reason="closed")
            raise
        self.kernel, self.number = kernel, number
        self.meet(kernel)
        await kernel.catch_up(lease=self.journal.lease, after=0, running=None)

    async def _unclaimed(self) -> tuple[int, Kernel | None]:
        """The next free number; or a live kernel whose host died before it was journaled."""
        number = self.journal.history.kernels + 1
        while self.source.exists(number):
            found = await self.source.adopt(number)
            if found is not None and not isinstance(found, Death):
                return number, found
            number += 1
        return number, None

    async def _catch_up(self, kernel: Kernel) -> None:
        history = self.journal.history
        running = history.running.cell if history.running else None
        try:
            found = await kernel.catch_up(
                lease=self.journal.lease,
                after=history.spool,
                running=running,
                on_output=self._provisional(running),
            )
        except KernelStartError:  # it lives and does not answer: the next operation asks anew
            self.kernel = None
            await kernel.detach()
            raise
        await self.record([entry for entry in found if not _cut(entry)])  # `bury` tells of that
        kernel.ack(history.spool)
        if history.running is not None and kernel.death is None:
            await self.journal.append(_never_arrived(history, history.running.cell))
        if history.foreign:
            await kernel.admit_foreign(lease=self.journal.lease)

    def _provisional(self, cell: int | None) -> Callable[[Output], None] | None:
        if cell is None:
            return None
        return lambda output: self.journal.publish(CellOutput(cell=cell, output=output))

    async def late_events(self) -> list[Event]:
        """The events of what came late; journaled before the end of any later cell."""
        late, self.late = self.late, []
        events: list[Event] = []
        for entry in late:
            events += await self._events_of(entry, after=len(events))
        return events

    async def _events_of(
        self, entry: SpooledOutput | SpooledCell, *, after: int = 0
    ) -> list[Event]:
        """The events that journal an entry, unless they are there already."""
        history = self.journal.history
        match entry:
            case SpooledOutput() if entry.spool > history.spool:
                if entry.cell >= history.next_cell:  # nobody has sent it
                    return []
                return [OutputLate(cell=entry.cell, outputs=entry.outputs, spool=entry.spool)]
            case SpooledCell(cell=None, executed=Executed() as executed):
                if executed.spool <= history.spool:
                    return []
                n = history.next_cell + after
                started = CellStarted(
                    cell=n, source=clean(entry.source), origin="foreign", kernel=self.number
                )
                return [started, await self.finished(n, executed)]
            case SpooledCell(cell=int() as n, executed=Executed() as executed):
                if history.running is None or history.running.cell != n:  # its end is known
                    return []
                return [await self.finished(n, executed, history.outputs_before(n))]
            case _:
                return []

    async def record(self, found: Sequence[SpooledCell | SpooledOutput]) -> None:
        """Journal what a kernel put out while nobody saw."""
        for entry in found:
            if events := await self._events_of(entry):
                await self.journal.append(*events)

    async def bury(self, death: Death, *, alone: bool = False) -> KernelEnded:
        """Journal the death of the kernel, the cell that it cut, and every lost name.

        `alone`: this process had sent the cell, and saw the kernel die under it.
        """
        history = self.journal.history
        if self.kernel is not None:
            await self.kernel.detach()
        self.kernel = None
        found = await self.source.left_behind(self.number, after=history.spool)
        await self.lineage.settle()
        await self.record([entry for entry in found if not _cut(entry)])
        await self._keep_last_image()
        await self.keep_progress()
        lost = self.losses()
        if history.running is not None:
            cut = next((e.executed for e in found if isinstance(e, SpooledCell) and _cut(e)), None)
            await self.journal.append(await self._cut_short(history.running.cell, cut, death, lost))
        ended = KernelEnded(
            kernel=self.number,
            pid=death.pid,
            reason=death.reason,
            signal=death.signal,
            status=death.status,
            detail=death.detail,
            lost=lost,
            alone=alone,
            item=self.source.item(self.number),
        )
        await self.journal.append(ended, sync=True)
        return ended

    async def _keep_last_image(self) -> None:
        """What a kernel left of itself counts where no snapshot is as new."""
        try:
            image = await self.source.last_image(self.number)
            if image is not None and self.lineage.stale:
                await self.lineage.commit(image, self.number)
        except StoreError as error:
            await self.lineage.failed(error)

    async def keep_progress(self) -> None:
        """What a kernel kept in the midst of the cell that it cut is the newest snapshot."""
        if (running := self.journal.history.running) is None:
            return
        try:
            found = await self.source.progress(self.number, running.cell)
            if found is not None:
                image, inside = found
                before = self.journal.history.outputs_before(running.cell)
                inside = replace(inside, outputs=joined(before, inside.outputs))
                await self.lineage.commit(image, self.number, inside)
            failpoints.hit("progress.after_commit")
            self.source.forget_progress(self.number)
        except StoreError as error:
            await self.lineage.failed(error)

    async def _cut_short(
        self, cell: int, seen: Executed | None, death: Death, lost: tuple[Variable, ...]
    ) -> CellFinished:
        fault = death_fault(death, lost, self.lineage.back)
        before = self.journal.history.outputs_before(cell)
        if seen is None:
            return CellFinished(cell=cell, status="died", error=fault, kept=False, outputs=before)
        cut = replace(seen, status="died", error=fault, kept=False)
        return await self.finished(cell, cut, before)

    async def finished(
        self, cell: int, executed: Executed, before: tuple[Output, ...] = ()
    ) -> CellFinished:
        """The event of a cell's end, as it will be journaled; the whole text goes to a blob
        where outputs were clipped.

        `before` is what it had put out where it went on from.
        """
        key = ""
        if executed.full_text is not None:
            text = self.journal.masked_text(executed.full_text())
            key = await asyncio.to_thread(self.blobs.put, text)
        event = CellFinished(
            cell=cell,
            status=executed.status,
            outputs=joined(before, executed.outputs),
            error=executed.error,
            seconds=executed.seconds,
            kept=executed.kept,
            delta=executed.delta if executed.kept else Delta(),
            full_size=executed.full_size,
            full_blob=key,
            bound=executed.bound,
            spool=executed.spool,
            observed=executed.observed,
        )
        return self.journal.masked(event)

    def losses(self) -> tuple[Variable, ...]:
        """The variables that go with the kernel and do not come back."""
        return self.journal.history.not_held()

    def view(self, *, profile: str) -> KernelView:
        """The kernel as a person sees it; without one here, as the journal knows it."""
        kernel, started = self.kernel, self.journal.history.kernel
        if kernel is None:
            return KernelView(
                pid=started.pid if started else None,
                alive=False,
                profile=profile,
                layers=started.layers if started else (),
                degraded=started.degraded if started else (),
                connection_file=None,
                python=started.python if started else None,
                number=self.journal.history.kernels,
            )
        facts = kernel.facts
        return KernelView(
            pid=facts.pid,
            alive=kernel.death is None,
            profile=facts.profile,
            layers=facts.layers,
            degraded=facts.degraded,
            connection_file=str(facts.connection_file),
            python=facts.python,
            number=self.number,
            policy=facts.policy,
            start=facts.start,
        )

    async def end(self, reason: Literal["closed", "restart", "asleep"]) -> tuple[Variable, ...]:
        """End the kernel that serves, if one does; gives the variables that go with it."""
        history = self.journal.history
        await self._let_go_of_stale()
        if self.kernel is None and history.kernel is not None:
            await self._adopt(history.kernel.kernel)
        kernel = self.kernel
        if kernel is None:
            return ()
        if kernel.death is not None:
            return (await self.bury(kernel.death)).lost
        pid, lost = kernel.facts.pid, self.losses()
        await kernel.end(reason="closed" if reason == "asleep" else reason)
        self.kernel = None
        await self.journal.append(
            KernelEnded(kernel=self.number, pid=pid, reason=reason, lost=lost), sync=True
        )
        return lost


def never_sent(cell: int, why: str) -> CellFinished:
    """The end of a cell that the kernel has never seen, and by the fence never will."""
    return CellFinished(cell=cell, status="interrupted", error=Fault(NOT_RUN, why))


def _never_arrived(history: History, n: int) -> CellFinished:
    """The end of a cell whose host died on the way; one that was to run again still has to."""
    before, why = history.cells.get(n), "its host died before it was sent"
    if before is None:
        return never_sent(n, f"{why}; it did not run")
    error = None if before.error is None else Fault(before.error.name, before.error.message)
    if history.cut.stopped == n:
        return CellFinished(
            cell=n, status=before.status, error=error, outputs=before.outputs, kept=False
        )
    if error is None or error.name != NOT_RUN:
        error = Fault(NOT_RUN, "; ".join([f"{why} again", *([error.message] if error else [])]))
    return CellFinished(cell=n, status="died", error=error, outputs=before.outputs, kept=False)


def _cut(entry: SpooledCell | SpooledOutput) -> bool:
    return (
        isinstance(entry, SpooledCell)
        and entry.executed is not None
        and entry.executed.status == "died"
    )
