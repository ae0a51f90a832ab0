"""The seams of cave: small Protocols, and the values that cross them.

`loop` is pure over these; every port has an implementation in the package (`Store`:
`cave.store`, `BlobStore`: `cave.store.blobs`, `Kernel`: `cave.kernel`, `Operator`:
`cave.operators`, `Clock`: `SystemClock`) and a contract test that a third party can run on
its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from cave.calling import (
    Caller as Caller,
    CallPhase as CallPhase,
    Declared as Declared,
    Encoded as Encoded,
    OnCall as OnCall,
    SkillAnswer as SkillAnswer,
    SkillCall as SkillCall,
)
from cave.events import (
    CellStatus,
    CheckResult,
    CheckSpec,
    Delta,
    EndReason,
    Event,
    Fault,
    KernelStart,
    Output,
    ReplyKind,
    Usage,
    Variable,
)
from cave.image import Image, Load, Note
from cave.shared import Shared


class Clock(Protocol):
    """Wall time in Unix seconds, and a clock that never goes back."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks. `monotonic` goes on while a laptop sleeps, where that exists."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)


# -- store -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that operates a session: enough to tell whether it still lives."""

    host: str
    boot: str
    """Boot id of the machine (a new one after each start)."""
    pid: int
    started: float
    """Start time of the process, as the system counts it."""
    token: str
    """Unlike any other Holder's, also within one process."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append and to command the kernel. A higher number fences a lower one."""

    session: str
    number: int
    holder: Holder


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One row of `cave.sessions()`."""

    name: str
    created: float
    changed: float
    """When its last event was committed (Unix seconds)."""
    events: int
    lease: int
    holder: Holder | None
    """Who operates it now; None when nobody does."""
    since: float
    """When that operation began (Unix seconds), 0 without a holder."""
    uid: str = ""
    """Unlike that of any other session, also of one that had the name before."""


@dataclass(frozen=True, slots=True)
class JournalFault:
    """A place where a journal differs from its hash chain."""

    session: str
    seq: int
    reason: str


class Store(Shared, Protocol):
    """Where journals live. Every call may raise `StoreError`."""

    async def create(self, session: str) -> bool:
        """Make the session; False when it is there already."""

    async def sessions(self) -> Sequence[SessionInfo]:
        """Every session, the last changed first."""

    async def info(self, session: str) -> SessionInfo:
        """One session. Raises `SessionNotFound`, which proposes the nearest name."""

    async def delete(self, session: str) -> None:
        """Forget the session and its journal. Raises `SessionNotFound`, `SessionBusy`."""

    async def acquire(self, session: str, holder: Holder, *, wait: float = 0) -> Lease:
        """Begin to operate the session, for at most the lease's time unless renewed.

        The number is kept while the same holder acquires again with nobody between, and
        goes up otherwise. A holder that is dead or whose lease has ended is taken over at
        once. Raises `SessionBusy` when another one operates after `wait` seconds.
        """

    async def renew(self, lease: Lease) -> None:
        """Keep the lease while an operation runs. Raises `LeaseLost`."""

    async def release(self, lease: Lease) -> None:
        """End the operation; the number stays known. A lost lease is no error here."""

    async def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        *,
        sync: bool = False,
        release: bool = False,
    ) -> Sequence[Event]:
        """Commit `events` in order, all or none, and give them back stamped.

        `sync` waits for the disk (safe after a power cut); without it the commit is safe
        after a kill. `release` ends the operation in the same transaction. Raises
        `LeaseLost` when a higher lease number is known, and writes nothing then.
        """

    def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncIterator[Event]:
        """Events with `seq > after`, in order. Raises `SessionNotFound`."""

    async def verify(self, session: str) -> Sequence[JournalFault]:
        """Check the hash chain; empty when it is whole."""

    async def seals(self, session: str) -> Mapping[int, str]:
        """The hash of each record (64 hex digits), by its number."""

    async def close(self) -> None:
        """Finish what is being written and let go of the files."""


class BlobStore(Protocol):
    """Immutable bytes by the SHA-256 of their content (64 hex digits)."""

    def put(self, chunks: Iterable[bytes]) -> str:
        """Write a blob, durable before the key is given. Memory stays flat."""

    def read(self, key: str) -> bytes:
        """The whole blob. Raises `StoreError` when missing or when its hash differs."""

    def keys(self) -> Iterable[str]:
        """Every key that is there."""

    def delete(self, key: str) -> None:
        """Forget a blob; no error when it is not there."""

    def sweep(self) -> int:
        """Remove what writers that died have left; gives how many."""


# -- kernel ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Death:
    """How a kernel ended. Both `signal` and `status` are None when nobody can know."""

    pid: int
    reason: EndReason
    signal: int | None = None
    status: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        if self.reason == "idle":
            return "kernel ended after its idle time"
        if self.signal is not None:
            return f"kernel died (signal {self.signal})"
        if self.status is not None:
            return f"kernel died (exit status {self.status})"
        return "kernel died"


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What is known of a kernel that is up."""

    pid: int
    python: str
    executable: str
    packages: Mapping[str, str]
    """Versions of the packages that decide how values cross: pandas, numpy, pyarrow, dill."""
    profile: str
    connection_file: Path
    seconds: float
    """How long the start took; 0 for a kernel that was taken over."""
    layers: tuple[str, ...] = ()
    """What confines it, with what is to be said of each layer."""
    degraded: tuple[str, ...] = ()
    """The layers that are missing, and what is open by it."""
    policy: str = ""
    """Stands for the policy that it was started under; empty where that is not known."""
    start: KernelStart = "cold"
    """Whether it was started from nothing, or forked off a template (warm)."""


@dataclass(frozen=True, slots=True)
class Executed:
    """How a cell ended, as the kernel's host saw it."""

    status: CellStatus
    outputs: tuple[Output, ...]
    error: Fault | None
    seconds: float
    kept: bool
    delta: Delta
    spool: int
    """Number of the last kernel message of this cell."""
    full_size: int = 0
    """Characters of text in all, when `outputs` were clipped; else 0."""
    full_text: Callable[[], Iterable[bytes]] | None = None
    """Reads the whole text from the spool (UTF-8 chunks), when `outputs` were clipped."""
    bound: str = ""
    observed: tuple[str, ...] = ()
    """What it did to the world outside of the namespace, as far as was seen; a line each."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a cell begins that is sent again (see `cave.facts.Inside`)."""

    statement: int = 1
    calls: int = 0
    forks: int = 0
    items: int | None = None
    keys: Mapping[str, int] = field(default_factory=dict)
    deaths: Mapping[str, int] = field(default_factory=dict)
    """By item of a loop: how often the kernel died under it."""


@dataclass(frozen=True, slots=True)
class SpooledCell:
    """A cell found in the spool that no journal knows the end of (a gap, a foreign client)."""

    cell: int | None
    """The number that its host gave it; None for a foreign client's."""
    source: str
    executed: Executed | None
    """None while it still runs."""


@dataclass(frozen=True, slots=True)
class SpooledOutput:
    """Output of a cell that had ended before."""

    cell: int
    outputs: tuple[Output, ...]
    spool: int


class Capture(Protocol):
    """An image that a kernel gives, perhaps still on its way."""

    @property
    def small(self) -> bool:
        """Whether all of it came with the answer."""

    @property
    def pause(self) -> float:
        """Seconds for which the kernel was held up."""

    async def image(self) -> Image:
        """The image, when all of it is there. Raises `KernelDied`, `SnapshotError`."""


@dataclass(slots=True)
class Wanted:
    """An image that a kernel is to give right behind a cell, before it does anything else."""

    id: str
    base: str | None
    """Id of the image that it is to be a difference from."""
    work: asyncio.Task[Capture] | asyncio.Task[Any] | None = None
    """Set by `execute`: the image on its way; None when the kernel has not begun one."""


class Kernel(Protocol):
    """The live process that holds the objects, as its host commands it.

    Every command carries a lease number; the kernel refuses numbers lower than it has seen
    (`LeaseLost`). What touches the namespace waits its turn behind a running cell and
    raises `KernelDied` when the process ends first.
    """

    facts: KernelFacts
    death: Death | None
    """None while the process lives, as far as was heard."""
    on_late: Callable[[SpooledOutput], None] | None
    """Called with output that comes after its cell has ended."""
    on_foreign: Callable[[SpooledCell], None] | None
    """Called with the ends of cells that foreign clients ran."""
    on_call: OnCall | None
    """Answers calls of skills, each in a task of its own; calls wait while it is None.

    What it raises is an error in the cell, but for `LeaseLost`: the next owner is asked then.
    `detach` cancels the tasks, and their calls come again to the next owner.
    """
    on_cancel: Callable[[str], None] | None
    """Called with the id of a call that nobody waits for any more (an interrupt)."""

    async def alive(self) -> bool:
        """Whether the process lives now."""

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
        """Run one cell to its end; returns (never raises) for faults, time-outs and deaths.

        It does not wait for the image that is `wanted` of the namespace after it.
        """

    async def catch_up(
        self,
        *,
        lease: int,
        after: int,
        running: int | None,
        on_output: Callable[[Output], None] | None = None,
    ) -> Sequence[SpooledCell | SpooledOutput]:
        """Take the kernel over under `lease` and tell what it put out after message `after`.

        When the cell `running` has not ended yet, waits for its end.
        """

    async def put(self, values: Mapping[str, Any], *, lease: int) -> Sequence[Variable]:
        """Bind objects. Raises `PutError` naming the variable, and binds none then."""

    async def get(self, name: str, *, lease: int, allow_pickle: bool = False) -> Any:
        """An object. Raises `UnknownName`, `NotPortable`."""

    async def seed(self, data: bytes, *, lease: int) -> Sequence[Variable]:
        """Bind the variables of a file that dill wrote. Raises `PutError`."""

    async def dill(self, *, lease: int) -> tuple[bytes, Mapping[str, str]]:
        """The namespace as bytes that plain dill loads; and names left out, with the reason."""

    async def delete(self, names: Sequence[str], *, lease: int) -> None:
        """Unbind names. Raises `UnknownName`, and unbinds none then."""

    async def variables(self, *, lease: int) -> Sequence[Variable]:
        """The user's variables, in the order of their making."""

    async def check(
        self, checks: Sequence[CheckSpec], functions: Mapping[str, Any], *, folder: str, lease: int
    ) -> Sequence[CheckResult]:
        """How each of `checks` comes out, evaluated without changing the namespace.

        `functions` are those of checks that are functions, by their names; paths of files
        begin in `folder`. Raises `PutError` naming a function that cannot go there.
        """

    async def define(self, skills: Sequence[Declared], *, lease: int) -> None:
        """Let cells have exactly these skills, in place of those defined before.

        A name that the user's variable has stays the variable's. Raises `SkillError` naming
        the skill that cannot go there, and changes nothing then.
        """

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

        With `verify` also what no cell has reached is looked at. With `background` a large
        first image is copied beside the cells that come next. Raises `SnapshotError`.
        """

    async def restore(self, load: Load, *, lease: int) -> Sequence[Note]:
        """Make the namespace that of an image; what did not come back as it was.

        Raises `SnapshotError`; nothing has changed then.
        """

    async def versions(self, modules: Iterable[str]) -> Mapping[str, str]:
        """Versions of the libraries that have these top-level modules in its environment."""

    async def admit_foreign(self, *, lease: int) -> None:
        """Let other clients run cells from now on."""

    def ack(self, number: int) -> None:
        """What came up to message `number` is journaled: its part of the spool may go."""

    async def interrupt(self, *, kill: bool = False, cell: int | None = None) -> bool:
        """SIGINT to the running cell; after the grace time SIGKILL when `kill`.

        `cell` names the one that is meant: another one is never hit. True when the cell has
        stopped (or does not run). Needs no lease.
        """

    async def end(self, *, reason: Literal["closed", "restart"]) -> None:
        """End the process and all that it started; returns when none is left."""

    async def detach(self) -> None:
        """Let go of the kernel and leave it running for the next owner."""


# -- operator --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the stream, in the order of time.

    `user`: a person's request, or the harness telling the operator what to mend;
    `cell`: code that the operator had run (`text` is the source, `note` its intent);
    `result`: what came of it; `answer`: what the operator said to the person.
    """

    role: Literal["user", "cell", "result", "answer"]
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that the operator sees: stable text first, so that prompts can be cached."""

    system: str
    messages: tuple[Message, ...]
    turn: int
    step: int
    variables: tuple[Variable, ...] = ()
    """The namespace as facts, for operators that are functions."""
    error: Fault | None = None
    """The fault of the last cell of this turn, if it had one."""
    max_tokens: int | None = None
    """The most that a budget leaves for the reply; None leaves it to the operator."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The operator's next move."""

    kind: ReplyKind
    source: str = ""
    note: str = ""
    text: str = ""
    """`finish`: the answer. `malformed`: one sentence for the operator on what to mend."""
    raw: str = ""
    usage: Usage = Usage()


class Operator(Protocol):
    """Who decides the next cell.

    For budgets it may have `price(usage)` (US dollars, or None) or be `free`, and have
    `max_tokens` (of a reply), `heeds_max_tokens` (whether it heeds the view's),
    `prompt_tokens(view)`, and `is_person` (whom to wait for is no work).
    """

    @property
    def name(self) -> str:
        """As `operator=` spells it: `anthropic:MODEL`, `script:FILE`, `human` ..."""

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        """Decide. `on_text` gets text as it streams. Raises `OperatorError` for good faults."""

    async def close(self) -> None:
        """Let go of connections and models."""
