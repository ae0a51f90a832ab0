"""After a death: what was cut runs again where that is safe. A part of `AsyncSession`."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager

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

    async def _go_on(self, kernel: Kernel) -> Kernel:
        """Run again what may, unless a person wants to be asked; gives the kernel of then."""
        by_itself = self._options.resume in {None, "auto"} and not self._recovering
        if not by_itself or self._fold.cut.told:
            return kernel
        wanted = await self._planned(asked=False)
        if not wanted.runs and not wanted.concerns_effects:
            return kernel  # the report of the restore names what is undone
        await replay.replay(self._work, self._broker, kernel, wanted)
        return await self._ready(news=False)

    async def plan(self) -> Plan:
        """What `recover` would do, in words; brings the kernel's death into the journal, and
        starts none."""
        async with self._journal.operation():
            await self._work.supply.look()
            return await self._planned(asked=True)

    async def _planned(self, *, asked: bool) -> Plan:
        for n in self._fold.cut.cells:
            await self._broker.ask_about(n)
        return replay.plan(self._fold, asked=asked)

    @carried
    async def recover(self) -> Recovered:
        """Run again what a death has cut, as `plan` says."""
        async with self._operation() as news:
            self._recovering = True
            try:
                kernel = await self._ready(news=news)
            finally:
                self._recovering = False
            wanted = await self._planned(asked=True)
            return await replay.replay(self._work, self._broker, kernel, wanted)

    async def _again(self, kernel: Kernel) -> Cell | None:
        """Run the cell again that a death has cut, or that stopped at what is settled now.

        None when there is none. Raises `SnapshotNotFound` when what was there before it is on
        no disk.
        """
        cut, history = self._fold.cut, self._fold
        if cut.stopped is not None:
            n = cut.stopped
            if history.source_of(n) is None:
                raise ConfigError(
                    f"cell {n} cannot run again: a secret in its source is masked in the journal; "
                    f"run it yourself, with the secret from a variable of the environment"
                )
            await self._lineage.go_to(kernel, self._work.supply.number, self._before(n))
            self._broker.began(n)
            return await rerun_cell(self._work, kernel, n)
        if cut.cell is None:
            return None
        wanted = await self._planned(asked=True)
        await replay.replay(self._work, self._broker, kernel, wanted)
        return history.cells[cut.cell or wanted.cells[-1].cell]

    def _before(self, n: int) -> str:
        """The snapshot of the namespace as it was when cell `n` began."""
        lasting = self._fold.lasting
        earlier = [cell for cell in lasting.past.cells() if cell < n]
        found = lasting.of_cell.get(earlier[-1] if earlier else 0)
        if found is None or found not in lasting.snapshots:
            raise SnapshotNotFound(
                f"cell {n} cannot run again: no snapshot holds the namespace as it was before it. "
                f"Type s.history[{n}].source to see it, and run what is missing in a new cell"
            )
        return found
