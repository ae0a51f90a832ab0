"""What a call is about: the skill's terms, the call's place and key, what is known of it."""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cave.errors import CaveError
from cave.events import Fault
from cave.ledger import Entry, Place
from cave.ports import Caller, Encoded, SkillAnswer, SkillCall
from cave.skills import Skill

Kind = Literal["none", "read", "write"]
Doubt = Literal["ask", "retry", "probe"]

_TEXT = 200
_MESSAGE = 2_000
_FRAMES = 10
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Terms:
    """What a skill's declaration says of its calls."""

    name: str
    kind: Kind
    runs: Literal["host", "kernel"]
    doubt: Doubt = "ask"
    retries: int = 0
    timeout: float | None = None
    version: str = ""
    hash: str = ""
    module: str = ""
    undo: str = ""
    """Name of what compensates a call."""
    approval: Any = "never"
    """`never`, `always`, or a function of the call."""

    @classmethod
    def of(cls, skill: Skill) -> Terms:
        """Those of a skill of the session."""
        return cls(
            name=skill.name,
            kind=skill.effect,
            runs=skill.runs,
            doubt="probe" if callable(skill.in_doubt) else skill.in_doubt,
            retries=skill.retries,
            timeout=skill.timeout,
            version=skill.version,
            hash=skill.hash,
            module=skill.module,
            undo=named(skill.undo),
            approval=skill.approval,
        )

    @classmethod
    def told(cls, call: SkillCall, said: Mapping[str, Any]) -> Terms:
        """Those of a skill that a cell defined; its probe would be code of the kernel."""
        limit = said.get("timeout")
        return cls(
            name=call.skill,
            kind="read" if said.get("effect") == "read" else "write",
            runs="kernel",
            doubt="retry" if said.get("in_doubt") == "retry" else "ask",
            timeout=float(limit) if isinstance(limit, int | float) and limit > 0 else None,
            version=str(said.get("version", "")),
            hash=call.hash,
            module="__main__",
            approval="always" if said.get("approval") == "always" else "never",
        )


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """The call that a probe is asked about."""

    skill: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    attempt: int
    cell: int


@dataclass(slots=True)
class Work:
    """One call that is being answered."""

    call: SkillCall
    caller: Caller
    terms: Terms
    skill: Skill | None
    """None for one that a cell defined."""
    arguments: Mapping[str, Any]
    place: Place
    key: str
    entry: Entry | None = None
    """What the ledger knows of this place."""
    undoes: str = ""
    """The effect that this call compensates."""
    changed: Encoded | None = None
    """The arguments, where the answer to an approval changed them."""

    @property
    def attempt(self) -> int:
        """The attempt that comes next."""
        return 1 if self.entry is None else self.entry.intent.attempt + 1


def named(undo: Any) -> str:
    """The name of a compensation, however it was declared."""
    if undo is None or isinstance(undo, str):
        return undo or ""
    return str(getattr(undo, "name", None) or getattr(undo, "__name__", type(undo).__name__))


def refusal(error: CaveError) -> SkillAnswer:
    """The answer that raises `error` in the cell."""
    return SkillAnswer("error", fault=Fault(type(error).__name__, str(error)))


def fault_of(error: BaseException) -> Fault:
    """What a skill raised, with its own frames and none of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    lines = "".join(traceback.format_list(own[-_FRAMES:]))
    key = error.args[0] if isinstance(error, KeyError) and len(error.args) == 1 else None
    text = key if isinstance(key, str) else str(error)  # the text of a KeyError is a repr
    return Fault(type(error).__name__, text[:_MESSAGE], lines)


def said(fault: Fault) -> str:
    """A fault in a line."""
    return f"{fault.name}: {fault.message}" if fault.message else fault.name


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _TEXT


def short(value: Any) -> str:
    """A value in a line, without asking large objects for their whole text."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} {'x'.join(map(str, shape))}"
    return " ".join(_repr.repr(value).split())[:_TEXT]
