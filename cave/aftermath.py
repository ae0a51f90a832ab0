"""After a death: what was cut runs again where that is safe. A part of `AsyncSession`."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from cave import replay
from cave.broker import Broker
from cave.config import Options
from cave.errors import ConfigError, SnapshotNotFound
from cave.events import Recovered
from cave.history import History
from cave.journal import Journal
from cave.lineage import Lineage
from cave.loop import Work, rerun_cell
from cave.operations import Operations, carried
from cave.ports import Kernel
from cave.replay import Plan
from cave.turn import Cell


class Aftermath:
    """What a session does with the cells that a death has cut."""

    name: str
    _options: Options
    _operations: Operations
    _journal: Journal
    _fold: History
    _lineage: Lineage
    _work: Work
    _broker: Broker
    _recovering = False
    """Whether a person has asked for it: then nothing runs by itself."""

    @abstractmethod
    def _operation(self) -> AbstractAsyncContextManager[bool]: ...

    @abstractmethod
    async def _ready(self, *, news: bool) -> Kernel: ...

    async def _go_on(self, kernel: Kernel, *, asked: bool = False) -> Kernel:
        """Run again what may, unless a person wants to be asked; gives the kernel of then."""
        by_itself = self._options.resume in {None, "auto"} and not self._recovering
        if not (by_itself or asked) or self._fold.cut.told:
            return kernel
        wanted = await self._planned(asked=False)
        if not wanted.runs and not wanted.concerns_effects:
            return kernel  # the report of the restore names what is undone
        await replay.replay(self._work, self._broker, kernel, wanted)
        return await self._ready(news=False)

    async def plan(self) -> Plan:
        """What `recover` and `resume` would do with cells, in words; brings the kernel's death
        into the journal, and starts none."""
        async with self._journal.operation():
            await self._work.supply.look()
            wanted = await self._planned(asked=True)
            stopped = self._fold.cut.stopped
            return wanted if stopped is None else replay.with_stopped(wanted, self._fold, stopped)

    async def _planned(self, *, asked: bool) -> Plan:
        for n in self._fold.cut.cells:
            await self._broker.ask_about(n)
        return replay.plan(self._fold, asked=asked)

    @carried
    async def recover(self) -> Recovered:
        """Run again what `plan` tells of: a cell that stopped at what is settled now, and those
        that a death has cut."""
        async with self._operation() as news:
            self._recovering = True
            try:
                kernel = await self._ready(news=news)
            finally:
                self._recovering = False
            return await self._again(kernel)

    async def _resumed_cell(self, kernel: Kernel) -> Cell | None:
        """The cell that a person waits for, once all has run again; None when nothing was cut.

        Raises `SnapshotNotFound` when what was there before it is on no disk.
        """
        done = await self._again(kernel)
        numbers = (*done.cells, *(n for n, _ in done.left))
        if not numbers:
            return None
        stopped = self._fold.cut.stopped
        return self._fold.cells[numbers[-1] if stopped is None else stopped]

    async def _again(self, kernel: Kernel) -> Recovered:
        stopped = self._fold.cut.stopped
        if stopped is not None:
            first = replay.planned_stopped(self._fold, stopped)
            if not first.waits:
                await self._from_before(kernel, stopped)
            if first.waits or self._fold.cut.stopped == stopped:
                why = f"cell {stopped}, which comes before it, has stopped"
                left = tuple((n, why) for n in self._fold.cut.cells)
                if first.waits:
                    return Recovered(cells=(), left=((stopped, first.obstacle), *left))
                return Recovered(cells=(stopped,), left=left)
        wanted = await self._planned(asked=True)
        done = await replay.replay(self._work, self._broker, kernel, wanted)
        return done if stopped is None else replace(done, cells=(stopped, *done.cells))

    async def _from_before(self, kernel: Kernel, n: int) -> None:
        """Run a cell again, from the namespace of before it."""
        if self._fold.source_of(n) is None:
            raise ConfigError(
                f"cell {n} cannot run again: a secret in its source is masked in the journal; "
                f"run it yourself, with the secret from a variable of the environment"
            )
        if self._fold.cells[n].status != "denied":  # it had begun
            await self._lineage.go_to(kernel, self._work.supply.number, self._before(n))
        self._broker.began(n)
        await rerun_cell(self._work, kernel, n)

    def _denied(self, n: int) -> bool:
        """Whether a cell did not run: the namespace is as it was."""
        return n in self._fold.cells and self._fold.cells[n].status == "denied"

    def _before(self, n: int) -> str:
        """The snapshot of the namespace as it was when cell `n` began."""
        lasting = self._fold.lasting
        earlier = [cell for cell in lasting.past.cells() if cell < n and not self._denied(cell)]
        found = lasting.of_cell.get(earlier[-1] if earlier else 0)
        if found is None or found not in lasting.snapshots:
            raise SnapshotNotFound(
                f"cell {n} cannot run again: no snapshot holds the namespace as it was before it. "
                f"Type s.history[{n}].source to see it, and run what is missing in a new cell"
            )
        return found
