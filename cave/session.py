"""AsyncSession: a named, durable unit of work, for code that has its own event loop.

One journal, one kernel lineage, one conversation. Every verb that acts is an *operation*:
it takes the session's lease, finds or makes the kernel, works, and lets go. `cave.Session`
(in `cave.facade`) is the same for code without a loop.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from cave import __version__, config, home, loop, wishes
from cave.aftermath import Aftermath
from cave.approving import Approving
from cave.config import Options, portable_name
from cave.conversation import Conversation
from cave.display import VarTable
from cave.effects import Effects, read_value
from cave.errors import (
    CaveError,
    ConfigError,
    KernelDied,
    LeaseLost,
    SessionBusy,
    StoreError,
    UnknownName,
)
from cave.events import (
    Event,
    ForeignAdmitted,
    SessionClosed,
    SessionOpened,
    ValuesDeleted,
    ValuesPut,
    Variable,
)
from cave.history import History
from cave.journal import Journal
from cave.lineage import Lineage
from cave.observing import Observing
from cave.operations import Heard, Operations, carried
from cave.policy import Policy
from cave.policy.enforced import check_policy
from cave.policy.masking import Mask
from cave.ports import Kernel, Operator, SpooledCell, SpooledOutput
from cave.record import Record
from cave.recovery import KernelView, Supply
from cave.spending import Spending
from cave.steering import Steering
from cave.tending import Tending
from cave.travel import TimeTravel
from cave.turn import Cell

ADOPTION = 2.0
"""Seconds that `open` waits for the end of a cell whose host died; longer ones end later."""

PUT = 0.05
"""Seconds that `put` and `del` wait for a snapshot; larger ones are finished in idle time."""

RAISE: Any = object()
"""Stands for "no default given"."""


class AsyncSession(
    Approving, Effects, Aftermath, Conversation, Steering, Observing, TimeTravel, Record
):
    """Made by `cave.open_async(name)`; use it with `async with`."""

    def __init__(self, at: home.Home, name: str, options: Options) -> None:
        self.name = config.checked_name(name)
        self.home = at
        self._options = Options()
        self._operator: Operator | None = None
        self._spec: Any = None
        self._functions = {}
        self._closed = self._leaving = False
        self._pid = os.getpid()
        self._operations = Operations(self._give_up)
        self._background: set[asyncio.Task[None]] = set()
        self._grants: set[asyncio.Task[None]] = set()
        self._settings = config.Settings()
        self._policy: Policy | None = None
        self._kernels = home.Kernels(at, self.name, settings=self._settings)
        from cave.store import this_process

        history = History(at.text, lambda stored: read_value(stored, at, self._mask.veil))
        owner = this_process()
        self._journal = Journal(at.store, self.name, owner, history, at.clock)
        self._journal.mask = self._mask = Mask(key=lambda: at.key)
        self._fold = history
        self._lineage = Lineage(self._journal, lambda: at.snapshots(self.name))
        self._lineage.mask = self._mask
        supply = Supply(self._journal, self._kernels, at.blobs, self._lineage)
        self._work = loop.Work(self._journal, supply)
        self._spending = Spending(self._journal)
        self._tending = Tending(self, self._lineage, history, self._spawn)
        self._begin_effects(owner)
        self._begin_observing(history)
        self.apply(options)

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` on the event loop with every event; gives the undo."""
        return self._journal.listen(listener)

    # -- opening and closing -----------------------------------------------------------------

    def apply(self, options: Options) -> None:
        """Use new options from the next operation on. Raises `ConfigError`."""
        merged = options.over(self._options)
        settings = config.Settings.load(persistence=merged.persistence)
        policy = merged.policy or Policy.of_files(settings.profile)
        check_policy(policy)
        if policy is not None:
            settings = replace(settings, profile=policy.holds_as)
            self._mask.take(policy.secrets)
            self._mask.kept = policy.keep_secrets == "reference"
        self._options, self._settings, self._policy = merged, settings, policy
        self._kernels.settings = settings
        self._kernels.kernel = merged.kernel or "cave-python"
        self._kernels.python = merged.python
        self._kernels.policy = policy
        self._lineage.on = settings.persistence != "live"
        self._lineage.every = merged.snapshot_every or settings.snapshot_every
        self._lineage.retention = settings.retention
        self._give(merged.skills or ())

    def sibling(self, name: str) -> AsyncSession:
        """A session of that name with the same options, not open yet."""
        return AsyncSession(self.home, name, replace(self._options, seed=None))

    async def open(self) -> Self:
        """Create or resume the session and its kernel. Never calls a model.

        A session that another process operates opens for reading. Raises
        `KernelStartError`, `StoreError`.
        """
        await self.home.store.create(self.name)
        sown = True
        try:
            async with self._operation() as news:
                if new := self._fold.opened is None:
                    opened = SessionOpened(
                        version=__version__, kernel=self._kernels.kernel, uid=uuid.uuid4().hex
                    )
                    await self._journal.append(opened)
                running = self._fold.running
                if running is None:
                    kernel = await self._ready(news=news)
                    if new and self._options.seed is not None:
                        sown = False
                        await self._sow(kernel, Path(self._options.seed))
                        sown = True
        except SessionBusy:
            await self._journal.refresh()
            return self
        except CaveError:
            if not sown:  # a session is not left behind without what it was to begin with
                await self.close()
                await self.home.forget(self.name)
            raise
        if running is not None:
            adoption = self._adopt_later()
            await asyncio.wait({adoption}, timeout=ADOPTION)
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closed or self._leaving

    @carried
    async def close(self, *, discard: bool = False) -> tuple[Variable, ...]:
        """End the kernel; gives the variables that are lost with it, which no snapshot has.

        The journal and the snapshots stay. Raises `SnapshotError` when there is no room for
        what is in memory only, unless that may be lost (`discard`)."""
        if self._closed:
            return ()
        self._leaving = True
        try:
            async with self._operation():
                await self._flush_late()
                await self._keep_all(verify=self._lineage.unsure)
                if not discard:
                    await self._nothing_would_go(" (s.close(discard=True) lets it go)")
                lost = await self._work.supply.end("closed")
                await self._journal.append(SessionClosed(), sync=True)
                self._closed = True  # who queues behind this finds it closed
        except ConfigError:
            if not self._closed:
                raise
            return ()  # another call closed it meanwhile
        finally:
            self._leaving = False
        await self.leave()
        return lost

    async def leave(self) -> None:
        """Let go of the session and leave its kernel running for the next owner."""
        self._closed = True
        if self._grants:
            await asyncio.wait(self._grants, timeout=wishes.PATIENCE)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._operator is not None:
            await self._operator.close()
        await self._keep_at_last()
        if self._work.supply.kernel is not None:
            await self._work.supply.kernel.detach()
            self._work.supply.kernel = None

    async def _keep_all(self, *, verify: bool = False) -> None:
        """Have the namespace on disk, if a kernel serves it."""
        kernel = self._work.supply.kernel
        await self._lineage.settle()
        if kernel is not None and await kernel.alive() and (self._lineage.stale or verify):
            await self._lineage.take(kernel, self._work.supply.number, verify=verify)

    async def _keep_at_last(self) -> None:
        """What was put, or is on its way to disk, is not left to luck."""
        if self._lineage.on and (self._lineage.under_way or self._lineage.stale):
            with suppress(SessionBusy, LeaseLost, KernelDied, StoreError):
                async with self._journal.operation() as news:
                    if not news:
                        await self._keep_all()

    async def keep(self, *, verify: bool) -> None:
        """Have the namespace on disk; with `verify`, after looking at all of it."""
        async with self._operation():
            await self._keep_all(verify=verify)

    # -- operations --------------------------------------------------------------------------

    @asynccontextmanager
    async def _operation(
        self, on_event: Callable[[Event], None] | None = None, *, light: bool = False
    ) -> AsyncIterator[bool]:
        self._check_open()
        self._hooks.check()
        self._tending.put_off()
        async with self._journal.operation(wait=self._options.wait or 0, light=light) as news:
            self._check_open()
            self._mask.look()
            self._operations.begin()
            self._work.stop = loop.Stop()
            self._work.sync = self._settings.persistence != "live"
            watcher = asyncio.ensure_future(self._watch_wishes())
            heard = Heard(on_event, self._operations.ask_to_stop) if on_event else None
            stop_listening = self._journal.listen(heard) if heard else None
            try:
                yield news
            finally:
                watcher.cancel()
                await self._operations.end()
                if stop_listening:
                    stop_listening()
            if heard:
                heard.raise_fault()
        died = self._work.supply.kernel is None and self._fold.ended is not None
        if died and not self._leaving:
            self._adopt_later()
        self._tending.later()
        self._watch_answers()
        await self._hooks.settled()

    def _check_open(self) -> None:
        if self._closed or self._pid != os.getpid():  # a forked child cannot use its sockets
            raise ConfigError(
                f"session {self.name!r} is closed here; open it again with cave.open({self.name!r})"
            )

    async def _ready(self, *, news: bool) -> Kernel:
        await self._flush_late()
        await self._asking.absorb()
        await self._find_again()
        kernel = await self._work.supply.ready(news=news)
        kernel.on_late = kernel.on_foreign = self._came_late
        if news and self._lineage.stale:  # cells have ended whose host died before their snapshot
            await self._lineage.take(kernel, self._work.supply.number, wait=False)
        if news:
            await self._broker.ask_about_left_open()
        await self._offer(kernel)
        return await self._go_on(kernel)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _adopt_later(self) -> asyncio.Task[None]:
        """Have a kernel ready, and a running cell's end journaled, before anyone asks."""
        return self._spawn(self._adopt_now())

    async def _adopt_now(self) -> None:
        with suppress(SessionBusy, LeaseLost):
            async with self._journal.operation() as news:
                await self._ready(news=news)
        self._tending.later()

    def _came_late(self, output: SpooledOutput | SpooledCell) -> None:
        late = self._work.supply.late
        late.append(output)
        if not self._journal.operating and not self._closed and len(late) == 1:
            self._spawn(self._flush_soon())

    async def _flush_soon(self) -> None:
        await asyncio.sleep(0.1)
        with suppress(SessionBusy, LeaseLost):
            async with self._journal.operation():
                await self._flush_late()

    async def _flush_late(self) -> None:
        await self._broker.pay()
        if late := await self._work.supply.late_events():
            await self._journal.append(*late)

    # -- cells ---------------------------------------------------------------------

    @carried
    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> Cell:
        """Run your own cell; `timeout` in seconds. Faults are in the Cell, not raised."""
        if not isinstance(code, str):
            raise ConfigError(f"a cell is a text, not {type(code).__name__!r}")
        config.check_seconds("timeout", timeout)
        seq, kernel = self._fold.seq, self._work.supply.kernel
        light = kernel is not None and kernel.death is None
        try:
            return await self._run(code, timeout, on_event, light=light)
        except LeaseLost:
            if self._fold.seq != seq:  # it had begun: what runs now is the new owner's
                raise
            return await self._run(code, timeout, on_event)

    async def _run(
        self,
        code: str,
        timeout: float | None,
        on_event: Callable[[Event], None] | None,
        *,
        light: bool = False,
    ) -> Cell:
        async with self._operation(on_event, light=light) as news:
            self._require_settled()
            self._gone_on = None
            kernel = await self._ready(news=news)
            cell = await loop.run_cell(
                self._work, kernel, code, timeout=timeout or self._cell_timeout
            )
            await self._sleep()
            return cell

    async def _go_on_by_itself(self) -> None:
        await self._resume(by_itself=True)

    async def _sleep(self) -> None:
        """With `persistence="snapshot"` the kernel lives no longer than its work."""
        await self._retire_if_overdue()
        if self._settings.persistence == "snapshot":
            await self._keep_all(verify=self._lineage.unsure)
            if not self._lineage.stale:
                await self._work.supply.end("asleep")

    @property
    def _cell_timeout(self) -> float | None:
        return self._policy.cell_timeout if self._policy else None

    # -- values ------------------------------------------------------------------------------

    @carried
    async def put(self, /, **values: Any) -> None:
        """Objects into the kernel, all or none; into a snapshot at once when they are small,
        else a moment later (until then `vars` calls them volatile).

        Raises `PutError` naming the variable that cannot go.
        """
        values = {portable_name(name): value for name, value in values.items()}
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            variables = await kernel.put(values, lease=self._journal.lease)
            await self._journal.append(ValuesPut(variables=tuple(variables)))
            await self._keep_soon(kernel)

    async def _keep_soon(self, kernel: Kernel) -> None:
        if self._lineage.on:
            number = self._work.supply.number
            await self._lineage.take(kernel, number, wait=False, patience=PUT)

    @carried
    async def get(self, name: str, default: Any = RAISE, *, allow_pickle: bool = False) -> Any:
        """An object by the safe codecs; with `allow_pickle`, any that can be pickled.

        Raises `UnknownName` (unless a `default` is given) and `NotPortable`.
        """
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            try:
                name = config.normal(name)
                return await kernel.get(name, lease=self._journal.lease, allow_pickle=allow_pickle)
            except UnknownName as error:
                if default is not RAISE:
                    return default
                raise self._with_loss(name, error) from None

    def _with_loss(self, name: str, error: UnknownName) -> UnknownName:
        gone = [v for v in self._fold.lost if v.name == name]
        if not gone:
            return error
        return UnknownName(
            f"{name!r} ({gone[0].type}) was lost when its kernel ended; make it again"
        )

    @carried
    async def dill(self) -> tuple[bytes, Mapping[str, str]]:
        """The namespace as dill writes it; and names left out, with the reason."""
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            data, left_out = await kernel.dill(lease=self._journal.lease)
        hidden, secrets = await asyncio.to_thread(self._mask.veil.hide, data)
        masked = {f"the value of {name}": "it is a secret" for name in sorted(secrets)}
        return bytes(hidden) if secrets else data, {**left_out, **masked}

    @carried
    async def delete(self, *names: str) -> None:
        """Take names out of the namespace, and out of the next snapshot, which is taken as after
        `put`. Raises `UnknownName`; none is deleted then."""
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            names = tuple(config.normal(name) for name in names)
            await kernel.delete(names, lease=self._journal.lease)
            await self._journal.append(ValuesDeleted(names=names))
            await self._keep_soon(kernel)

    @carried
    async def vars(self) -> VarTable:
        """The variables; as the journal last saw them while another process operates."""
        try:
            async with self._operation() as news:
                kernel = await self._ready(news=news)
                rows = await kernel.variables(lease=self._journal.lease)
        except SessionBusy:
            await self._journal.refresh()
            rows = tuple(self._fold.variables.values())
        return VarTable(self._mask.value(tuple(self._fold.lasting.of(rows))))

    # -- the kernel --------------------------------------------------------------------------

    @carried
    async def restart(self) -> tuple[Variable, ...]:
        """End the kernel and all its processes, and start it again with the last snapshot;
        gives the variables that are lost, which no snapshot has."""
        async with self._operation():
            await self._flush_late()
            await self._keep_all(verify=self._lineage.unsure)
            await self._nothing_would_go()
            lost = await self._work.supply.end("restart")
            await self._ready(news=True)
            return lost

    @carried
    async def attach(self) -> str:
        """Admit other clients to the kernel; gives the line that joins it from a terminal."""
        async with self._operation() as news:
            kernel = await self._ready(news=news)
            await kernel.admit_foreign(lease=self._journal.lease)
            await self._journal.append(ForeignAdmitted())
        return f"jupyter console --existing {kernel.facts.connection_file}"

    @property
    def kernel(self) -> KernelView:
        """The kernel: pid, whether it lives, profile, connection file."""
        view = self._work.supply.view(profile=self._settings.profile)
        return replace(view, stale=bool(view.policy) and view.policy != self._kernels.held)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.name!r}>"
