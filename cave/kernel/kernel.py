"""One kernel as its host commands it: the `Kernel` of `cave.ports`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from cave import failpoints
from cave.errors import KernelDied, LeaseLost
from cave.events import CheckResult, CheckSpec, Output, Variable
from cave.image import Load, Note
from cave.kernel import cells, deaths, launch, output, processes, reach, spool
from cave.kernel.calls import Calls
from cave.kernel.cells import Cell, Gap, Tape
from cave.kernel.client import Client, Refused, fault
from cave.kernel.images import Capture, Images
from cave.kernel.launch import Record
from cave.kernel.objects import Objects
from cave.kernel.processes import Process
from cave.kernel.wire import Codec, Message
from cave.ports import (
    Begin,
    Death,
    Declared,
    Executed,
    KernelFacts,
    OnCall,
    SpooledCell,
    SpooledOutput,
    Wanted,
)

GRACE = 10.0
"""Seconds that an interrupted cell has to stop."""
TIMEOUT_GRACE = 2.0
"""Seconds from SIGINT to SIGKILL of a cell that passed its time limit."""
_POLITE = 2.0
STATUS_WAIT = 2.0
"""Seconds that a living keeper has to tell how its kernel ended."""
_REMEMBERED = 10_000

T = TypeVar("T")


class Kernel:
    """A live kernel. Made by `start` and `adopt`; `end` or `detach` lets go of it."""

    def __init__(self, record: Record, home: Path, *, facts: KernelFacts) -> None:
        self.death: Death | None = None
        self.on_late: Callable[[SpooledOutput], None] | None = None
        """Called with output that comes after its cell has ended."""
        self.on_foreign: Callable[[SpooledCell], None] | None = None
        """Called with the ends of cells that foreign clients ran."""
        self._record = record
        self._home = home
        self._codec = Codec(record.key)
        self._tape = Tape(home / "spool", self._codec)
        self._process = Process(record.pid)
        self._client = Client(record.base, self._codec)
        self._keeper = _process(record.keeper, record.keeper_began)
        self._objects = Objects(self._client, record, facts)
        self._images = Images(self._client, record, home)
        self._calls = Calls(self._client, record, lambda: self.facts)
        self._dead = asyncio.Event()
        self._gone = asyncio.Event()
        self._welcome = asyncio.Event()
        self._ending: Literal["closed", "restart"] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = 0
        self._held: list[Message] | None = []
        self._ended: dict[str, int] = {}
        self._late: set[int] = set()
        self._foreign: dict[str, Cell] = {}
        self._process.on_end(self._on_end)
        self._client.wire.on("iopub", self._on_iopub)
        self._client.wire.subscribe()

    @property
    def facts(self) -> KernelFacts:
        return self._objects.peer

    @facts.setter
    def facts(self, facts: KernelFacts) -> None:
        self._objects.peer = facts

    @property
    def on_call(self) -> OnCall | None:
        """Answers calls of skills; they wait while it is None."""
        return self._calls.on_call

    @on_call.setter
    def on_call(self, answer: OnCall | None) -> None:
        self._calls.on_call = answer

    @property
    def on_cancel(self) -> Callable[[str], None] | None:
        """Called with the id of a call that nobody waits for any more."""
        return self._calls.on_cancel

    @on_cancel.setter
    def on_cancel(self, told: Callable[[str], None] | None) -> None:
        self._calls.on_cancel = told

    @property
    def client(self) -> Client:
        """Its channels (for the start)."""
        return self._client

    @property
    def record(self) -> Record:
        return self._record

    async def alive(self) -> bool:
        """Whether the process lives now, not only as far as was heard."""
        process = self._process
        if self.death is None and (not process.alive or processes.doomed(process.pid)):
            await self._dead.wait()
        return self.death is None

    # -- cells -------------------------------------------------------------------------------

    async def execute(
        self,
        source: str,
        *,
        cell: int,
        lease: int,
        timeout: float | None = None,
        on_output: Callable[[Output], None] | None = None,
        wanted: Wanted | None = None,
        begin: Begin | None = None,
    ) -> Executed:
        """Run one cell to its end; raises only `LeaseLost`."""
        run = Cell(cell, cells.new_id(cell), source, on_output)
        if self.death is not None:
            return cells.executed(run, self._tape, death=self.death)
        if not self._welcome.is_set():
            with contextlib.suppress(KernelDied):
                await self._reach(self._welcome.wait())
        self._release()
        self._calls.serve(lease)
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        told: dict[str, Any] = {"lease": lease, "cell": cell}
        if begin is not None:
            told["begin"] = cells.told_of(begin)
        if wanted is not None:
            with contextlib.suppress(KernelDied):
                told["image"] = self._images.behind(wanted, lease=lease)
        self._client.start(run, content, {"cave": told})
        failpoints.hit("cell.after_send")
        try:
            return await self._follow(run, timeout)
        finally:
            del self._client.cells[run.msg_id]
            if run.end is None and wanted is not None and wanted.work is not None:
                wanted.work.cancel()  # the kernel takes one only where it has ended the cell
                wanted.work = None

    async def _follow(self, run: Cell, timeout: float | None) -> Executed:
        if timeout is None:
            await self._end_of(run)
        else:
            await self._end_within(run, timeout)
        if run.refused is not None:
            raise fault(run.refused)
        self._remember(run)
        if run.end is not None and not run.end.get("capped"):
            return cells.executed(run, self._tape, death=None)
        return await asyncio.to_thread(cells.executed, run, self._tape, death=self.death)

    async def _end_of(self, run: Cell) -> None:
        """Until the cell has ended, or the kernel."""
        ends = [asyncio.ensure_future(e.wait()) for e in (run.done, self._dead)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _end_within(self, run: Cell, timeout: float) -> None:
        end = asyncio.ensure_future(self._end_of(run))
        started = asyncio.ensure_future(run.started.wait())
        await asyncio.wait([end, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        steps = ((timeout, signal.SIGINT), (TIMEOUT_GRACE, signal.SIGKILL))
        try:
            for seconds, number in steps:
                await asyncio.wait([end], timeout=seconds)
                if end.done():
                    return
                run.timed_out = True
                self._process.send(number)
            await end
        finally:
            end.cancel()

    def _remember(self, run: Cell) -> None:
        """Output that comes from now on is late."""
        if run.cell is not None:
            self._ended[run.msg_id] = run.cell
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]

    # -- what comes on IOPub -----------------------------------------------------------------

    def _on_iopub(self, message: Message) -> None:
        if message.type == "iopub_welcome":
            self._welcome.set()
        elif self._held is not None:
            self._held.append(message)
        else:
            self._sort(message)

    def _sort(self, message: Message) -> None:
        """Give a message to the cell that it belongs to."""
        if message.number <= self._newest:
            return
        self._newest = message.number
        if run := self._client.cells.get(message.parent):
            run.take(message)
        elif message.parent in self._ended:
            self._came_late(message)
        elif cells.cell_of(message.parent) is None:
            self._came_from_foreign(message)

    def _came_late(self, message: Message) -> None:
        if message.type not in cells.OUTPUTS or self.on_late is None:
            return
        outputs = output.Outputs()
        outputs.add(message)
        self._late.add(message.number)
        cell = self._ended[message.parent]
        self.on_late(SpooledOutput(cell, outputs.result(), message.number))

    def _came_from_foreign(self, message: Message) -> None:
        if message.type == "execute_input":
            run = Cell(None, message.parent, replies=False)
            self._foreign[message.parent] = run
        if (foreign := self._foreign.get(message.parent)) is None:
            return
        foreign.take(message)
        if foreign.done.is_set():
            del self._foreign[message.parent]
            if self.on_foreign is not None:
                found = cells.executed(foreign, self._tape)
                self.on_foreign(SpooledCell(None, foreign.source, found))

    # -- taking over -------------------------------------------------------------------------

    async def catch_up(
        self,
        *,
        lease: int,
        after: int,
        running: int | None,
        on_output: Callable[[Output], None] | None = None,
    ) -> Sequence[SpooledCell | SpooledOutput]:
        """Raise the fence to `lease`; tell what came after message `after`, in order."""
        if self._held is None:
            self._held = []
        try:
            await self._reach(self._welcome.wait())
            asked = self._client.request("control", "cave_hello_request", lease=lease)
            hello = await self._reach(asked)
        except KernelDied:
            self._held = None
            return await asyncio.to_thread(self._left, after)
        self._calls.serve(lease)
        upto = cells.number_of(hello.content.get("number")) or 0
        self._late = {number for number in self._late if number > after}
        gap = Gap(self._tape, skip=self._late)
        await asyncio.to_thread(_feed, gap, self._tape.messages(after=after, upto=upto))
        self._newest = max(self._newest, upto)
        cut = [run for run in gap.still_open() if run.cell is not None and run.cell == running]
        # those of foreign clients are told by `on_foreign` when they have ended
        self._foreign |= {run.msg_id: run for run in gap.still_open() if run.cell is None}
        for run in cut:
            run.on_output = on_output
            self._client.cells[run.msg_id] = run
        self._release()
        found = gap.entries()
        for run in cut:
            await self._end_of(run)
            del self._client.cells[run.msg_id]
            self._remember(run)
            done = await asyncio.to_thread(cells.executed, run, self._tape, death=self.death)
            found = [e for e in found if not (isinstance(e, SpooledCell) and e.cell == running)]
            found.append(SpooledCell(run.cell, run.source, done))
        return found

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for message in held:
            self._sort(message)

    def _left(self, after: int) -> list[SpooledCell | SpooledOutput]:
        return left(self._tape, after=after, death=self.death)

    def ack(self, number: int) -> None:
        """What came up to message `number` is journaled: its part of the spool may go."""
        spool.acknowledge(self._tape.folder, number)
        self._late = {late for late in self._late if late > number}

    # -- objects -----------------------------------------------------------------------------

    async def put(self, values: Mapping[str, Any], *, lease: int) -> Sequence[Variable]:
        """Bind objects. Raises `PutError` naming the variable, and binds none then."""
        return await self._objects.put(values, lease=lease)

    async def get(self, name: str, *, lease: int, allow_pickle: bool = False) -> Any:
        """An object. Raises `UnknownName`, `NotPortable`."""
        return await self._objects.get(name, lease=lease, allow_pickle=allow_pickle)

    async def seed(self, data: bytes, *, lease: int) -> Sequence[Variable]:
        """Bind the variables of a file that dill wrote. Raises `PutError`."""
        return await self._objects.seed(data, lease=lease)

    async def dill(self, *, lease: int) -> tuple[bytes, Mapping[str, str]]:
        """The namespace as bytes that plain dill loads; and names left out, with the reason."""
        return await self._objects.dill(lease=lease)

    async def delete(self, names: Sequence[str], *, lease: int) -> None:
        """Unbind names. Raises `UnknownName`, and unbinds none then."""
        await self._objects.delete(names, lease=lease)

    async def variables(self, *, lease: int) -> Sequence[Variable]:
        """The user's variables, in the order of their making."""
        return await self._objects.variables(lease=lease)

    async def check(
        self, checks: Sequence[CheckSpec], functions: Mapping[str, Any], *, folder: str, lease: int
    ) -> Sequence[CheckResult]:
        """How each of `checks` comes out. Raises `KernelDied`, `PutError`."""
        return await self._objects.check(checks, functions, folder=folder, lease=lease)

    async def define(self, skills: Sequence[Declared], *, lease: int) -> None:
        """Let cells have exactly these skills. Raises `KernelDied`, `LeaseLost`, `SkillError`."""
        await self._calls.define(skills, lease=lease)

    # -- images ------------------------------------------------------------------------------

    async def snapshot(
        self,
        *,
        id: str,
        base: str | None,
        lease: int,
        verify: bool = False,
        background: bool = False,
    ) -> Capture:
        """An image of the namespace, as a difference from `base` where the kernel knows it.

        Raises `KernelDied`, `LeaseLost`, `SnapshotError`.
        """
        return await self._images.snapshot(
            id=id, base=base, lease=lease, verify=verify, background=background
        )

    async def restore(self, load: Load, *, lease: int) -> Sequence[Note]:
        """Make the namespace that of an image; what did not come back as it was.

        Raises `KernelDied`, `LeaseLost`, `SnapshotError`; nothing has changed then.
        """
        return await self._images.restore(load, lease=lease)

    async def versions(self, modules: Iterable[str]) -> Mapping[str, str]:
        """Versions of the libraries that have these modules, where they are installed there."""
        content = {"modules": sorted(modules)}
        reply = await self._client.request("control", "cave_hello_request", content)
        found = reply.content.get("versions")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    async def admit_foreign(self, *, lease: int) -> None:
        """Let other clients run cells from now on."""
        await self._client.request("control", "cave_admit_request", {"admit": True}, lease=lease)

    async def status(self) -> Mapping[str, Any]:
        """What runs now, and how the spool does; answered also while a cell runs."""
        return (await self._client.request("control", "cave_status_request")).content

    # -- stopping ----------------------------------------------------------------------------

    async def interrupt(
        self, *, kill: bool = False, grace: float = GRACE, cell: int | None = None
    ) -> bool:
        """SIGINT to the running cell; after `grace` seconds SIGKILL when `kill`.

        With `cell` only that cell is meant: when it does not run (any more) nothing is sent.
        """
        if self.death is not None:
            return True
        try:
            async with asyncio.timeout(grace):
                if not await self._stop(cell):
                    return True
        except TimeoutError:
            if not kill:
                return False
            self._process.send(signal.SIGKILL)
            await self._dead.wait()
        except KernelDied:
            return True
        return True

    async def _stop(self, cell: int | None) -> bool:
        """Interrupt what runs, and wait until it has stopped. False when nothing ran."""
        ours = [run for run in self._client.cells.values() if cell in {None, run.cell}]
        if ours and cell is not None:  # it may be on its way to the kernel
            await self._begun(ours[0])
        asked = asyncio.ensure_future(self._ask_to_stop(cell))
        try:
            await asyncio.wait([asked], timeout=0.5)
            if not asked.done() and (cell is None or ours):
                # C code holds the interpreter; perhaps a system call of its heeds the signal
                self._process.send(signal.SIGINT)
            stopped = await asked
        finally:
            asked.cancel()
        pause = 0.005
        while stopped is not None and await self._running() == stopped:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.1)
        return stopped is not None

    async def _begun(self, run: Cell) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (run.started, run.done)]
        await asyncio.wait(waits, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _ask_to_stop(self, cell: int | None) -> str | None:
        """The id of the cell that the kernel interrupts for us; None when it does not run."""
        asked = {"cell": cell}
        reply = await self._client.request("control", "cave_interrupt_request", asked)
        found = reply.content.get("msg_id")
        return None if found is None else str(found)

    async def _running(self) -> str | None:
        running = (await self.status()).get("running")
        return str(running.get("msg_id")) if isinstance(running, dict) else None

    async def end(self, *, reason: Literal["closed", "restart"]) -> None:
        """End the process and all that it started; returns when none is left."""
        self._ending = reason
        if self.death is None:
            deaths.note(self._home, reason)
            await self._ask_to_end()
            self._terminate()
        await self._gone.wait()
        await self.detach()

    def _terminate(self) -> None:
        """End the kernel and all below it, by the keeper if there is one."""
        if self._keeper is not None:
            self._keeper.send(signal.SIGTERM)
            self._keeper.go_on()
        else:
            self._process.send(signal.SIGKILL)

    async def _ask_to_end(self) -> None:
        """Let an idle kernel run exit functions and flush files; a busy one has no time."""
        if self._client.cells:
            return
        with contextlib.suppress(TimeoutError, KernelDied, LeaseLost, Refused):
            async with asyncio.timeout(_POLITE):
                state = await self.status()
                if state.get("running") is not None:
                    return
                lease = cells.number_of(state.get("lease")) or 0
                await self._client.request("control", "cave_end_request", lease=lease)
                await self._dead.wait()

    async def detach(self) -> None:
        """Let go of the kernel and leave it running for the next owner."""
        for task in self._tasks:
            task.cancel()
        self._calls.close()
        self._client.close()
        self._process.close()
        if self._keeper is not None:
            self._keeper.close()

    # -- death -------------------------------------------------------------------------------

    def _on_end(self) -> None:
        task = asyncio.ensure_future(self._bury())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self) -> None:
        """The process is gone: find out how, tell those who wait, see that nothing is left."""
        keeper = self._keeper
        if keeper is not None:
            keeper.go_on()
        found = await processes.await_end_record(
            self._home / "end",
            limit=STATUS_WAIT,
            writer=lambda: keeper is not None and keeper.alive,
        )
        self.death = deaths.death_of(self._record, self._home, found, ending=self._ending)
        self._client.fail(self._died())
        self._calls.fail(self._died())
        self._dead.set()
        await self._keeper_gone()
        launch.remove(Path(self._record.runtime))
        self._gone.set()

    async def _keeper_gone(self) -> None:
        if self._keeper is None:
            return
        gone = asyncio.Event()
        self._keeper.on_end(gone.set)
        await gone.wait()
        await asyncio.to_thread(launch.reap, self._keeper.pid)

    async def _reach(self, waited: Awaitable[T]) -> T:
        """Wait for an answer as long as one can come. Raises `KernelDied`, `KernelStartError`."""
        answer = asyncio.ensure_future(waited)
        dead = asyncio.ensure_future(self._dead.wait())
        patience = reach.Patience(self._process, self._home)
        try:
            while not answer.done():
                ends: set[asyncio.Future[Any]] = {answer, dead}
                await asyncio.wait(ends, timeout=reach.LOOK, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    if dead.done():
                        raise self._died()
                    await self._look(patience)
            return answer.result()
        finally:
            answer.cancel()
            dead.cancel()

    async def _look(self, patience: reach.Patience) -> None:
        """See to a kernel that does not answer; one that never can is ended."""
        if self._welcome.is_set() or not (why := reach.cut_off(self._record)):
            patience.check()
            return
        deaths.note(self._home, why, "why")
        self._terminate()
        await self._dead.wait()

    def _died(self) -> KernelDied:
        death = self.death
        if death is None:
            return KernelDied("the kernel is gone")
        return KernelDied(str(death), signal=death.signal, status=death.status)


def _process(pid: int, began: float) -> Process | None:
    try:
        process = Process(pid)
    except ProcessLookupError:
        return None
    if process.alive and process.began == began:
        return process
    process.close()
    return None


def _feed(gap: Gap, messages: Iterable[Message]) -> None:
    for message in messages:
        gap.add(message)


def left(tape: Tape, *, after: int, death: Death | None) -> list[SpooledCell | SpooledOutput]:
    """What a dead kernel's spool holds after message `after`."""
    gap = Gap(tape)
    _feed(gap, tape.messages(after=after))
    return gap.entries(death or Death(0, "died"))
