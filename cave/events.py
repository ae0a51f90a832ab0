"""Events: the one vocabulary of the journal, the live stream and every face.

An event is an immutable fact. Durable events have a `seq` (1, 2, 3 ... within their
session), given by the store when they are committed; *provisional* ones (`TextDelta`,
`CellOutput`) only stream while work is under way and keep `seq` 0.

How an event is written is in `cave.records`; `FORMAT` counts changes of meaning.

The values that events are made of are in `cave.facts`, and can be had from here.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, TypeVar, dataclass_transform

from cave.facts import (
    Amount as Amount,
    CheckResult as CheckResult,
    CheckSpec as CheckSpec,
    Delta as Delta,
    Fault as Fault,
    Inside as Inside,
    Output as Output,
    OutputKind as OutputKind,
    SkillRef as SkillRef,
    Standing as Standing,
    StoredValue as StoredValue,
    Usage as Usage,
    Variable as Variable,
)
from cave.image import Note

FORMAT = 1
"""Number of the record format that this version writes."""

CellStatus = Literal["ok", "error", "timeout", "interrupted", "denied", "died"]
CellOrigin = Literal["operator", "person", "foreign"]
TurnStatus = Literal[
    "done",
    "failed",
    "interrupted",
    "needs_approval",
    "needs_decision",
    "needs_attention",
    "over_budget",
]
ReplyKind = Literal["cell", "finish", "malformed"]
KernelStart = Literal["cold", "warm"]
EndReason = Literal["died", "idle", "closed", "restart", "asleep"]
RestoreReason = Literal["death", "opened", "asked", "restart", "fork", "seed"]
EffectState = Literal["begun", "done", "failed", "in_doubt", "not_done", "given_up"]
EffectEnd = Literal["done", "failed", "in_doubt"]
Decision = Literal["done", "not_done", "give_up"]
ForkEffects = Literal["ask", "deny", "allow"]
ApprovalState = Literal["pending", "approved", "denied", "expired"]
ApprovalScope = Literal["once", "session"]


def clean(text: str) -> str:
    """`text` with lone surrogates written as escapes, so that it is valid UTF-8 everywhere."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# -- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event has: `seq` (0 while not durable), `at` (Unix seconds), `session`."""

    type: ClassVar[str] = "event"
    durable: ClassVar[bool] = True

    seq: int = 0
    at: float = 0.0
    session: str = ""

    def stamped(self, *, seq: int, at: float, session: str) -> Self:
        """This event as committed: the same fact with its place in the journal."""
        return dataclasses.replace(self, seq=seq, at=at, session=session)


_TYPES: dict[str, type[Event]] = {}
_E = TypeVar("_E", bound=Event)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def _event(cls: type[_E]) -> type[_E]:
    """Make it an immutable fact, known by its dotted name."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    made.type = re.sub(r"(?<=[a-z])(?=[A-Z])", ".", made.__name__).lower()
    _TYPES[made.type] = made
    return made


@_event
class SessionOpened(Event):
    """The session was created."""

    version: str
    """Version of cave that created it."""
    kernel: str = "cave-python"
    forked_from: str = ""
    """The session that it was forked from."""
    uid: str = ""
    """Unlike that of any other session, also of one of the same name."""
    effects: ForkEffects = "allow"
    """Of a fork: what becomes of its calls that touch the world."""
    standing: tuple[Standing, ...] = ()
    """What the session that it was forked from has done since that moment."""


@_event
class SessionClosed(Event):
    """A person closed the session; its kernel was ended. It can be opened again."""


@_event
class KernelStarted(Event):
    """A kernel came up for the session. `kernel` counts them: 1 is the first."""

    kernel: int
    pid: int
    python: str
    """Version of its interpreter."""
    executable: str
    packages: dict[str, str] = field(default_factory=dict)
    profile: str = "open"
    layers: tuple[str, ...] = ()
    """What confines it."""
    degraded: tuple[str, ...] = ()
    """The layers that are missing, and what is open by it."""
    seconds: float = 0.0
    start: KernelStart = "cold"
    """Whether a template had done a part of it before (warm)."""


@_event
class KernelEnded(Event):
    """The kernel's process ended; `lost` are the variables that went with it."""

    kernel: int
    pid: int
    reason: EndReason
    signal: int | None = None
    status: int | None = None
    detail: str = ""
    lost: tuple[Variable, ...] = ()
    alone: bool = False
    """Whether the host that used it lived on and saw it end."""
    item: str = ""
    """The item of a loop over `cave.each` that was under way."""


@_event
class ForeignAdmitted(Event):
    """Other clients of the kernel (JupyterLab, jupyter console) may run cells from now on."""


@_event
class TurnStarted(Event):
    """A person's request to the operator."""

    turn: int
    prompt: str
    operator: str = ""
    limits: Amount | None = None
    """What the turn may spend, in whole units; -1 where there is no limit."""
    checks: tuple[CheckSpec, ...] = ()
    """What has to hold when it is done."""


@_event
class TurnResumed(Event):
    """A turn that was cut or waits goes on."""

    turn: int
    operator: str = ""
    limits: Amount | None = None
    """What it may spend from now on in all; None: as before."""


@_event
class StepStarted(Event):
    """The operator is asked for its next move."""

    turn: int
    step: int


@_event
class TextDelta(Event):
    """A piece of the operator's text as it streams; provisional."""

    durable: ClassVar[bool] = False

    turn: int
    step: int
    text: str


@_event
class StepReplied(Event):
    """What the operator answered, and what that call cost."""

    turn: int
    step: int
    kind: ReplyKind
    """`cell`: run `source`; `finish`: `text` is the answer; `malformed`: `text` says why."""
    source: str = ""
    note: str = ""
    text: str = ""
    raw: str = ""
    """The reply as it came, where it was malformed."""
    usage: Usage = Usage()


@_event
class Checked(Event):
    """The operator has finished, and what has to hold then was looked at."""

    turn: int
    step: int
    results: tuple[CheckResult, ...]


@_event
class CellStarted(Event):
    """A cell is sent to the kernel."""

    cell: int
    source: str
    note: str = ""
    origin: CellOrigin = "person"
    turn: int | None = None
    step: int | None = None
    kernel: int = 0
    timeout: float | None = None
    """Seconds until it is stopped; None means no limit."""
    masked: bool = False
    """Whether `source` is not what ran: secrets in it are masked."""


@_event
class CellResumed(Event):
    """A cell is sent to the kernel again, from its start: its effects come from the ledger."""

    cell: int
    kernel: int


@_event
class CellOutput(Event):
    """Output of a running cell as it streams; provisional until `CellFinished`."""

    durable: ClassVar[bool] = False

    cell: int
    output: Output


@_event
class CellFinished(Event):
    """A cell has ended, with all that it put out."""

    cell: int
    status: CellStatus
    outputs: tuple[Output, ...] = ()
    error: Fault | None = None
    seconds: float = 0.0
    kept: bool = True
    """Whether the namespace survived."""
    delta: Delta = Delta()
    full_size: int = 0
    """Characters of text that the cell put out, when `outputs` holds only head and tail."""
    full_blob: str = ""
    """Key of the blob with all of that text."""
    bound: str = ""
    """Name of the variable in the kernel that holds the whole text (`_output_7`)."""
    spool: int = 0
    """Number of the last kernel message that this event accounts for."""
    observed: tuple[str, ...] = ()
    """What it was seen to do to the world outside of the namespace, or had open: a line each."""


@_event
class OutputLate(Event):
    """Output that came after its cell had ended (from a thread, a task)."""

    cell: int
    outputs: tuple[Output, ...] = ()
    spool: int = 0


@_event
class ValuesPut(Event):
    """A person put objects into the namespace."""

    variables: tuple[Variable, ...]


@_event
class ValuesDeleted(Event):
    """A person deleted names from the namespace."""

    names: tuple[str, ...]


@_event
class InterruptSent(Event):
    """One step of stopping a cell: SIGINT, then SIGKILL; `refused` when nothing more is done."""

    cell: int | None
    action: Literal["sigint", "sigkill", "refused"]
    reason: str = ""


@_event
class SnapshotCommitted(Event):
    """The namespace is on disk: from here on it is promised."""

    snapshot: str
    """Its id."""
    cell: int
    """The last cell that had ended."""
    upto: int = 0
    """Everything up to the event of this number is in it; -1: all that was journaled before."""
    name: str = ""
    """What a person called it; empty for automatic ones."""
    kernel: int = 0
    written: int = 0
    """Bytes that were new."""
    size: int = 0
    """Bytes of everything that it holds."""
    seconds: float = 0.0
    """From the request to the disk."""
    pause: float = 0.0
    """Seconds for which the kernel was held up."""
    digest: str = ""
    """SHA-256 of its manifest."""
    notes: tuple[Note, ...] = ()
    """Names that it will not bring back exactly."""
    missed: tuple[str, ...] = ()
    """Names that had changed although no cell was seen to reach them; now they are in."""
    inside: Inside | None = field(default=None, repr=False)
    """Where the cell was that it was taken in the midst of; None for one between cells."""
    file: str = field(default="", repr=False)
    """All of its file (deflated, base64), where that is small and was not waited for."""

    @property
    def covers(self) -> int:
        """The number of the last event that is in it."""
        return self.seq - 1 if self.upto < 0 else self.upto


@_event
class SnapshotFailed(Event):
    """The namespace could not be put on disk; the session goes on with what it has in memory."""

    cell: int
    reason: str


@_event
class SnapshotsRetired(Event):
    """Old automatic snapshots were let go of, by the rule of retention."""

    snapshots: tuple[str, ...]


@_event
class Restored(Event):
    """The namespace is again what it was at a snapshot, but for what is named."""

    snapshot: str
    cell: int
    """The cell after which the namespace was so."""
    reason: RestoreReason
    kernel: int
    variables: tuple[Variable, ...] = ()
    """All variables, as they are now."""
    kept: tuple[str, ...] = ()
    """Names that had not changed and stayed in the kernel."""
    notes: tuple[Note, ...] = ()
    """Names that did not come back exactly."""
    versions: tuple[tuple[str, str, str], ...] = ()
    """Libraries whose version is another: name, then, now."""
    seconds: float = 0.0
    undone: tuple[int, ...] = ()
    """Cells that had ended later, where nobody asked to go back."""
    standing: tuple[Standing, ...] = ()
    """Effects of later cells, which stand all the same."""


@_event
class Recovered(Event):
    """What a death had cut was run again as far as that was safe."""

    cells: tuple[int, ...] = ()
    """Those that ran again, in their order."""
    left: tuple[tuple[int, str], ...] = ()
    """Cells that did not, and why."""
    notes: tuple[Note, ...] = ()
    """Names that are not what they were, and effects that were not reached again."""


@_event
class SkillsOffered(Event):
    """The skills that cells may call from now on, in place of those before."""

    skills: tuple[SkillRef, ...]
    changed: tuple[tuple[str, str, str], ...] = ()
    """Those that are others than when the session was left: name, version then, version now."""


@_event
class EffectIntent(Event):
    """A skill that touches the world is about to be called: on disk before the call.

    Called again (a retry, after a doubt was settled), it is the same effect with a higher
    `attempt` and the same `key`.
    """

    effect: str
    """Its id in the session: `e1`, `e2` ..."""
    attempt: int
    skill: str
    effect_kind: Literal["read", "write"]
    runs: Literal["host", "kernel"]
    cell: int
    lane: str = ""
    """Which thread of calls in the cell: what a cell submits has a lane of its own."""
    ordinal: int
    """Which call of its lane, from 1."""
    digest: str
    """SHA-256 of the encoded arguments."""
    key: str
    """The idempotency key."""
    arguments: dict[str, str] = field(default_factory=dict)
    """For people: the arguments as short texts."""
    version: str = ""
    hash: str = ""
    """Of the skill's source and declaration."""
    module: str = ""
    in_doubt: Literal["ask", "retry", "probe"] = "ask"
    timeout: float | None = None
    kernel: int = 0
    owner: tuple[str, str, int, float] = ("", "", 0, 0.0)
    """The process that calls: host, boot id, pid, start time as the system counts it."""
    since_boot: float = 0.0
    """When, by the clock that counts from the machine's start (seconds)."""
    given: StoredValue | None = None
    """The arguments, where a compensation would need them."""
    undo: str = ""
    """Name of the skill that compensates it."""
    undoes: str = ""
    """The effect that this one compensates: no cell has called it."""
    repeats: str = ""
    """The effect that stands and is the same: a person is asked first."""


@_event
class EffectResult(Event):
    """What came of an effect; `in_doubt` where nobody can know whether it was done."""

    effect: str
    attempt: int
    state: EffectEnd
    value: StoredValue | None = None
    error: Fault | None = None
    reason: str = ""
    """Of a doubt: what is known."""
    seconds: float = 0.0
    source: Literal["call", "probe"] = "call"


@_event
class EffectSettled(Event):
    """A person said what became of an effect that was in doubt."""

    effect: str
    decision: Decision
    """`done`: it was, with `value`; `not_done`: it is called again; `give_up`: it never is."""
    value: StoredValue | None = None


@_event
class ApprovalRequested(Event):
    """A person's leave is needed for a call of a skill or for a cell, which waits."""

    approval: str
    """Its id in the session: `a1`, `a2` ..."""
    what: str
    """In words: `post(n=1)`, `cell of turn 2, step 3`."""
    digest: str
    """SHA-256 of the encoded arguments, or of the cell's source: the answer is for these."""
    skill: str = ""
    """Empty for a cell."""
    arguments: dict[str, str] = field(default_factory=dict)
    """For people: the arguments as short texts."""
    source: str = ""
    """All of the cell that calls, or that is to run."""
    reason: str = ""
    """Why one is asked: the rule, the skill's declaration."""
    covers: str = ""
    """What an answer for the whole session is for: a skill as it is declared now, a rule."""
    expires_at: float | None = None
    """When it counts as denied (Unix seconds)."""
    turn: int | None = None
    step: int | None = None
    cell: int | None = None
    lane: str = ""
    ordinal: int = 0
    given: StoredValue | None = None
    """All of the arguments."""


@_event
class ApprovalSettled(Event):
    """A person, or what answers for one, has said yes or no; or nobody has in time."""

    approval: str
    state: ApprovalState
    digest: str
    """Of what was shown to whoever answered; an answer for something else counts for nothing."""
    scope: ApprovalScope = "once"
    actor: str = ""
    """Who: a user's name, the name of an approver."""
    via: str = ""
    """Where: `notebook`, `terminal`, `python`, `approver`."""
    reason: str = ""
    answered_at: float | None = None
    """When it was said, which may be long before it is journaled; None: then."""
    edits: dict[str, str] = field(default_factory=dict)
    """Arguments that the answer changed, as short texts."""
    edited: str = ""
    """SHA-256 of the encoded arguments with those changes."""
    given: StoredValue | None = None
    """Those arguments."""


@_event
class BudgetPaused(Event):
    """A limit is spent: the session waits until it is raised."""

    budget: str
    """Which: `turn`, `session`, or the name of one above it."""
    limit: str
    """`tokens`, `usd`, `steps` or `seconds`."""
    allowed: float
    spent: float
    needed: float = 0.0
    """What the next call would have needed."""
    turn: int | None = None


@_event
class TurnFinished(Event):
    """A turn has ended or waits; `status` says which."""

    turn: int
    status: TurnStatus
    answer: str = ""
    reason: str = ""
    """Why it did not end as `done`."""
    usage: Usage = Usage()
    over: bool = False
    """Whether it is not gone on with, although it did not end as `done`."""


def types() -> dict[str, type[Event]]:
    """Every event type by its dotted name."""
    return dict(_TYPES)
