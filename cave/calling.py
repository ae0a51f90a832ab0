"""What crosses between a cell that calls a skill and the host that answers.

The values of the port `cave.ports.Kernel`, where they can be had from, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cave.facts import Fault


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as it crosses to the kernel: journaled, put into a blob and sent as it is."""

    kind: str
    """`safe` (read anywhere) or `pickle` (made by a host, read by kernels alone)."""
    header: bytes
    buffers: tuple[Any, ...] = ()
    """Anything flat with the buffer protocol; not to change any more."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.header) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class Declared:
    """A skill as a kernel is to have it."""

    declaration: Mapping[str, Any]
    """Name, doc, signature, parameters, effect, runs, hash, version, module, is_async ..."""
    function: Callable[..., Any] | None = None
    """What the kernel runs itself; None when calls come to the host."""


CallPhase = Literal["call", "begin", "end"]


@dataclass(frozen=True, slots=True)
class SkillCall:
    """What a cell wants of its host. All of it is the word of a process that is not trusted.

    `call`: run the skill, and answer with its result. `begin`: the kernel wants leave to run
    the skill itself; the answer is `go`, or `ok` with the result that is known already.
    `end`: the kernel has run it; the answer is `ok` when that is recorded, or `go` to have it
    run once more.
    """

    id: str
    """The same in every phase, and when the call comes again after a takeover."""
    skill: str
    hash: str
    cell: int | None
    lane: str
    """`""` is the cell's own; `/2/1` the first code that the second submitted code submitted.
    Calls that belong to no cell of the session have lanes of their own, which begin with `@`."""
    ordinal: int
    """Counts the calls of its lane, from 1."""
    phase: CallPhase
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """By name; decoded. Empty for `end`."""
    digest: str = ""
    """SHA-256 (hex) of the encoded arguments."""
    result: Encoded | None = None
    fault: Fault | None = None
    bases: tuple[str, ...] = ()
    """Names of the classes that the fault is an instance of, the nearest first."""
    key: str = ""
    """For `end`: what `go` gave the kernel."""
    attempt: int = 0
    """For `end`: which attempt it was."""
    ran: bool = True
    """For `end`: False when it was interrupted before `go` came, and has not run."""
    done: bool = False
    """Of an `end` with a fault: whether it did what it was to do, and only gave what cannot be
    recorded."""
    over: bool = False
    """Of an `end` with a fault: whether it was stopped because its time was over."""
    cut: bool = False
    """Of an `end` with a fault: whether an interrupt or its cell's end stopped it in its midst."""
    declaration: Mapping[str, Any] | None = None
    """What a skill that a cell defined says of itself; None for the session's skills."""


@dataclass(frozen=True, slots=True)
class SkillAnswer:
    """What comes of a call."""

    status: Literal["ok", "error", "go"]
    value: Encoded | None = None
    """None for `ok` is None in the cell, or after `end` what the skill itself gave."""
    fault: Fault | None = None
    key: str = ""
    attempt: int = 1


class Caller(Protocol):
    """The cell whose call is being answered: what a skill's context needs of it."""

    def note(self, text: str) -> None:
        """Show a line as output of the cell."""

    async def get(self, name: str) -> Any:
        """A variable of the session. Raises `UnknownName`, `NotPortable`."""

    async def put(self, values: Mapping[str, Any]) -> None:
        """Bind variables in the session. Raises `PutError`."""


OnCall = Callable[[SkillCall, Caller], Awaitable[SkillAnswer]]
