"""What a person gets back: Turn, Step, Cell, and the Usage of each.

All are values: a Cell is what the journal says of one execution, a Turn what it says of one
request. Their HTML and terminal faces are in `cave.display`, found at display time so that
a value knows nothing of how it is shown.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, overload

from cave.errors import CellError, CellInterrupted, CellTimeout, KernelDied
from cave.events import (
    CellOrigin,
    CellStatus,
    CheckResult,
    Delta,
    EffectState,
    Output,
    TurnStatus,
    Usage,
    Variable,
    clean,
)

__all__ = [
    "Cell",
    "Effect",
    "Numbered",
    "Output",
    "Step",
    "Turn",
    "Usage",
    "Variable",
    "also",
    "clip",
    "plain",
    "text_of",
]

TEXT_LIMIT = 1_000_000
"""Characters that `Cell.text` shows at most; the rest is in `full_text()`."""

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~]?)"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
)
"""Control sequences of ECMA-48: CSI, OSC, strings, and two-character escapes; cut ones too."""


def plain(text: str) -> str:
    """`text` as a terminal would leave it: no escape sequences, rewritten lines as last seen."""
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text


def clip(text: str, limit: int, *, total: int | None = None) -> str:
    """`text` cut to about `limit` characters: head, a marker naming the size, tail.

    `total` is the size to name when `text` was cut before.
    """
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    whole = len(text) if total is None else total
    marker = f"[... {whole - limit:,} of {whole:,} characters left out ...]"
    return f"{text[:head]}\n{marker}\n{text[-tail:]}"


def text_of(outputs: tuple[Output, ...], error: CellError | None = None) -> str:
    """Streams and text/plain of `outputs` in order, the error's last line at the end."""
    parts: list[str] = []
    for output in outputs:
        match output.kind:
            case "stream":
                parts.append(output.text)
            case "error":
                continue
            case _:
                plain = output.data.get("text/plain", "")
                parts.append(plain if isinstance(plain, str) else "".join(plain))
                parts.append("\n")
    return ended("".join(parts), error)


def also(observed: Sequence[str], most: int = 8) -> str:
    """One line on what a cell did outside of the namespace; empty when nothing was seen.

    What was open or running before, and still is, is no news and left out.
    """
    told = [" ".join(text.split()) for text in observed if not text.startswith("still ")]
    if not told:
        return ""
    more = len(told) - most
    return "it also: " + ", ".join(told[:most]) + (f" and {more} more" if more > 0 else "")


def ended(text: str, error: CellError | None) -> str:
    """The text of a cell without control sequences, with its error's last line."""
    text = plain(text)
    if error is not None:
        text += ("" if not text or text.endswith("\n") else "\n") + str(error)
    return text.removesuffix("\n")


T = TypeVar("T")


class Numbered(Sequence[T]):
    """Things by their numbers, which begin at 1 and may have gaps: `history[7]` is cell 7,
    `history[-1]` the last one. Raises `IndexError` for a number that is not there."""

    def __init__(self, noun: str, items: Mapping[int, T]) -> None:
        self._noun = noun
        self._items = dict(sorted(items.items()))

    @overload
    def __getitem__(self, n: int) -> T: ...
    @overload
    def __getitem__(self, n: slice) -> list[T]: ...

    def __getitem__(self, n: int | slice) -> T | list[T]:
        if isinstance(n, slice):
            return list(self._items.values())[n]
        if n < 0:
            return list(self._items.values())[n]
        if n not in self._items:
            there = f"there are {min(self._items)} to {max(self._items)}" if self._items else "none"
            raise IndexError(f"no {self._noun} {n}; {there}")
        return self._items[n]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._items.values())) or f"no {self._noun}s yet"


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A value that `cave.display` knows how to show."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        display = importlib.import_module("cave.display")
        return cast("dict[str, str]", display.mimebundle(self))


@dataclass(frozen=True, slots=True, eq=False)
class Effect(Shown):
    """One recorded call of a skill that touches the world."""

    id: str
    skill: str
    arguments: dict[str, str]
    """As short texts."""
    key: str
    """The idempotency key: the same for every attempt."""
    state: EffectState
    cell: int
    attempt: int = 1
    kind: str = "write"
    """`read` or `write`."""
    reason: str = ""
    """Of one in doubt or failed: what is known."""
    at: float = 0.0
    """When it was first about to be called (Unix seconds)."""
    seconds: float = 0.0
    undone: str = ""
    """The effect that has compensated it."""
    undoes: str = ""
    """The effect that this one compensates."""
    repeats: str = ""
    """The effect that stands and is the same: it is not called before a person agrees."""
    _value: Callable[[], Any] | None = field(default=None, repr=False)

    @property
    def result(self) -> Any:
        """What the call gave; None while it has not ended, and for what only a cell can hold."""
        return None if self._value is None else self._value()

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={text}" for name, text in self.arguments.items())
        undone = f", undone by {self.undone}" if self.undone else ""
        return f"<Effect {self.id} {self.state}{undone}: {self.skill}({said})>"


@dataclass(frozen=True, slots=True, eq=False)
class Cell(Shown):
    """One execution: its source, what it put out, and how it ended."""

    n: int
    """Its number in the session; never used again."""
    source: str
    note: str = ""
    """The operator's one-line intent."""
    origin: CellOrigin = "person"
    status: CellStatus = "ok"
    outputs: tuple[Output, ...] = ()
    error: CellError | None = None
    seconds: float = 0.0
    kept: bool = True
    """Whether the namespace survived this cell."""
    durable: bool = False
    """Whether a snapshot that holds the namespace after this cell is committed."""
    effects: tuple[Effect, ...] = ()
    """Recorded calls of skills that this cell made."""
    delta: Delta = Delta()
    """What it did to the namespace."""
    full_size: int = 0
    """Characters of all its text, when `outputs` holds only head and tail; else 0."""
    bound: str = ""
    """Name of the variable in the kernel that holds all its text (`_output_7`)."""
    late: int = 0
    """How many of `outputs`, at their end, came after it had ended."""
    observed: tuple[str, ...] = ()
    """What it was seen to do to files, processes, the network, and what it left open."""
    _full: Callable[[], str] | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether it ran to its end without a fault."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """Its text: stdout, stderr and text/plain results in order, the error's last line
        at the end, without ANSI colours; head, marker and tail above 1 MB."""
        return clip(text_of(self.outputs, self.error), TEXT_LIMIT, total=self.full_size or None)

    def full_text(self) -> str:
        """All of its text, from the blob where `text` is cut. Raises `StoreError`."""
        return text_of(self.outputs, self.error) if self._full is None else self._full()

    def raise_for_error(self) -> Cell:
        """Itself when it is ok; else raises its `CellError`, or what stopped it
        (`CellTimeout`, `CellInterrupted`, `KernelDied`)."""
        if self.ok:
            return self
        reason = str(self.error) if self.error else self.status
        match self.status:
            case "timeout":
                raise CellTimeout(f"cell {self.n}: {reason}")
            case "interrupted":
                raise CellInterrupted(f"cell {self.n}: {reason}")
            case "died":
                raise KernelDied(f"cell {self.n}: {reason}")
            case _:
                raise self.error or CellError("Error", reason)

    def __repr__(self) -> str:
        head = clean(self.source.strip().split("\n", 1)[0][:60])
        return f"<Cell {self.n} {self.status} {self.seconds:.1f}s: {head}>"


@dataclass(frozen=True, slots=True, eq=False)
class Step(Shown):
    """One call of the operator and the cell that it led to (None for the last words)."""

    n: int
    note: str
    cell: Cell | None
    usage: Usage = Usage()

    def __repr__(self) -> str:
        return f"<Step {self.n}: {self.note or (repr(self.cell) if self.cell else 'answer')}>"


@dataclass(frozen=True, slots=True, eq=False)
class Turn(Shown):
    """One request by a person, until its answer."""

    n: int
    prompt: str
    answer: str = ""
    value: Any = None
    """The variable that `returns=` asked for."""
    status: TurnStatus = "done"
    steps: tuple[Step, ...] = ()
    usage: Usage = Usage()
    checks: tuple[CheckResult, ...] = ()
    """How `done_when` came out when the operator finished last."""
    reward: float | None = None
    """The sum of what the checks that passed are worth; None where there were none."""
    reason: str = ""
    """Why it did not end as `done`, or why `value` could not be had; what to type."""
    streamed: bool = field(default=False, repr=False)
    """Whether it was shown while it ran (then its repr is one line)."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of its steps, in order."""
        return tuple(step.cell for step in self.steps if step.cell is not None)

    @property
    def ok(self) -> bool:
        """Whether it ended with an answer."""
        return self.status == "done"

    def __repr__(self) -> str:
        cells = len(self.cells)
        head = self.answer.strip().split("\n", 1)[0] or self.reason
        more = "" if len(head) <= 80 else "..."
        return f"<Turn {self.n} {self.status}, {cells} cell{'s' * (cells != 1)}: {head[:80]}{more}>"
