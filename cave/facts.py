"""Facts: the values that events are made of, and that every layer above speaks in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

OutputKind = Literal["stream", "display_data", "execute_result", "error"]


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a cell, in the terms of nbformat's outputs."""

    kind: OutputKind
    text: str = ""
    """Of a stream: what was written. Of an error: the traceback without colours."""
    name: str = ""
    """Of a stream: `stdout` or `stderr`."""
    data: dict[str, Any] = field(default_factory=dict)
    """Of a display or result: the MIME bundle (binary types in base64)."""
    metadata: dict[str, Any] = field(default_factory=dict)


def joined(first: tuple[Output, ...], then: tuple[Output, ...]) -> tuple[Output, ...]:
    """The outputs of a cell that ran in two parts; a stream that goes on is one."""
    kinds = {(one.kind, one.name) for one in (*first[-1:], *then[:1])}
    if not first or not then or len(kinds) > 1 or first[-1].kind != "stream":
        return (*first, *then)
    whole = Output("stream", first[-1].text + then[0].text, first[-1].name)
    return (*first[:-1], whole, *then[1:])


NOT_RUN = "CellNotRun"
"""The name of the fault of a cell that was not sent to a kernel."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The exception that ended a cell: class name, text, traceback without colours."""

    name: str
    message: str
    traceback: str = ""
    hint: str = ""
    """What the live namespace knows about it: the nearest names, columns, shapes, signatures."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the namespace, described by facts."""

    name: str
    type: str
    shape: tuple[int, ...] | None = None
    """Rows and columns of a frame, dimensions of an array, length of a container."""
    size: int | None = None
    """Bytes in memory, where the object can tell cheaply."""
    cell: int | None = None
    """The cell that set it last; None for what was put."""
    fidelity: str = "volatile"
    """How it would come back: `exact`; `rebuilt` by a recipe; `changed`, named with a reason;
    `assumed` to be what it was, not looked at; `lost`; `volatile`: held by the live kernel
    alone, no snapshot has it yet."""
    summary: str = ""
    """One line of facts: columns and dtypes, ranges, a sample."""
    change: str = ""
    """In a cell's delta: what differs from before, and which name holds the same object."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one cell did to the namespace."""

    added: tuple[Variable, ...] = ()
    changed: tuple[Variable, ...] = ()
    removed: tuple[str, ...] = ()
    prints: dict[str, str] = field(default_factory=dict)
    """Of added and changed names: the same text for the same content, also in another process.
    Names of which none can be had are left out."""

    @property
    def empty(self) -> bool:
        """Whether nothing was seen to change."""
        return not (self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class Usage:
    """What was spent: tokens of model calls, money, calls, cells, seconds of work."""

    input_tokens: int = 0
    """Prompt tokens that were not read from a cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = 0.0
    """US dollars; None when the price of the model is not known."""
    model_calls: int = 0
    cells: int = 0
    seconds: float = 0.0
    estimated: bool = False
    """Whether any token count is an estimate (no provider counted it)."""

    def __add__(self, other: Usage) -> Usage:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            usd,
            self.model_calls + other.model_calls,
            self.cells + other.cells,
            self.seconds + other.seconds,
            self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """What a call may cost, or has cost, in whole units, so that sums are exact."""

    tokens: int = 0
    nano_usd: int = 0
    """Billionths of a US dollar."""
    steps: int = 0
    millis: int = 0
    """Milliseconds of work."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.tokens + other.tokens,
            self.nano_usd + other.nano_usd,
            self.steps + other.steps,
            self.millis + other.millis,
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """An effect that stands although the namespace is as it was before it."""

    effect: str
    skill: str
    cell: int
    call: str
    """In words: `post(n=1)`."""
    digest: str = ""
    """SHA-256 of the encoded arguments: what the same call would have."""
    undo: str = ""
    """Name of the skill that compensates it; empty where there is none."""
    source: str = ""
    """The session that did it, where that is the one which this was forked from."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value on its way between a cell and a skill, as it is kept."""

    kind: str
    """The codec that made it."""
    sizes: tuple[int, ...]
    """Bytes of its header and of each buffer, which follow each other."""
    data: str = ""
    """All of them in base64, while they are few; else they are in `blob`."""
    blob: str = ""
    secrets: tuple[str, ...] = ()
    """The variables of the environment whose values have stand-ins in them."""


@dataclass(frozen=True, slots=True)
class SkillRef:
    """A skill as a session had it: what to look for when it is gone or another."""

    name: str
    module: str
    version: str
    hash: str
    """Of its source and declaration."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a cell was when a snapshot was taken in its midst: there it goes on."""

    cell: int
    statement: int
    """The statement that comes next (1 is the first), or the loop that is under way."""
    calls: int = 0
    """Calls of skills that its own lane had made."""
    forks: int = 0
    """Lanes that it had begun."""
    items: int | None = None
    """Of a loop over `cave.each`: how many of its items were done."""
    keys: dict[str, int] = field(default_factory=dict)
    """The same by key, where it has keys."""
    outputs: tuple[Output, ...] = ()
    """What had been put out."""
    variables: tuple[Variable, ...] = ()

    def __str__(self) -> str:
        item = "" if self.items is None else f", item {self.items + 1}"
        return f"statement {self.statement}{item}"

    def past(self, lane: str, ordinal: int) -> bool:
        """Whether a call at that place comes before."""
        if not lane:
            return ordinal <= self.calls
        number = lane.split("/")[1]
        return number.isdecimal() and int(number) <= self.forks


CheckKind = Literal["expression", "function", "sql", "file"]


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """A condition on the namespace, as it is journaled (see `cave.check.Check`)."""

    kind: CheckKind
    text: str
    """The expression, the name of the function, the query or the path."""
    name: str
    reward: float = 1.0
    on: str = ""
    """The variable with the database that a query is for."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a check came out."""

    name: str
    passed: bool
    reward: float = 0.0
    """What passing it was worth; 0 where it failed."""
    message: str = ""
    """Why it failed."""
