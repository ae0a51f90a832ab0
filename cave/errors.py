"""The exceptions of cave: what went wrong, in one tree.

Every class derives from `CaveError` and, where Python has a word for the fault, from that
natural builtin too, so that callers may catch whichever they know.

::

    CaveError
    ├── ConfigError (ValueError)          a setting, an argument or a name that cannot be
    ├── SessionNotFound (KeyError)        no session of that name
    ├── SessionBusy (RuntimeError)        another process operates the session now
    ├── LeaseLost (RuntimeError)          another process took the session over
    ├── KernelStartError (RuntimeError)   the kernel did not come up
    ├── KernelDied (RuntimeError)         the kernel's process ended
    │   └── DiedReading                   while it read variables of a snapshot
    ├── CellError (RuntimeError)          an exception raised by a cell, as a value
    ├── CellTimeout (TimeoutError)        a cell passed its time limit
    ├── CellInterrupted (RuntimeError)    a cell was interrupted before it ended
    ├── UnknownName (KeyError)            no variable of that name
    ├── NotPortable (TypeError)           the safe codecs do not carry that object
    ├── PutError (TypeError)              an object that cannot go into the kernel
    ├── OperatorError (RuntimeError)      the model client cannot be had, or failed
    ├── BudgetExceeded (RuntimeError)     a limit of the budget is spent
    ├── PolicyViolation (PermissionError) a rule of the policy does not allow it
    │   └── ApprovalDenied                nor did the person who was asked
    ├── ApprovalRequired (RuntimeError)   a person has to approve it first
    ├── SkillError (ValueError)           a skill that cannot be: its declaration, its arguments
    ├── EffectInDoubt (RuntimeError)      nobody knows whether an effect was done
    ├── Divergence (RuntimeError)         a cell that ran again called something else
    ├── LoopStopped (RuntimeError)        an item of `cave.each` has ended the kernel twice
    └── StoreError (OSError)              the journal cannot be read or written
        ├── JournalCorrupt                a record differs from its hash
        └── SnapshotError                 a snapshot cannot be written or used
            ├── StaleImage                    what was to stay in the kernel has changed
            ├── SnapshotCorrupt           it is damaged, or not signed by this home
            └── SnapshotNotFound (KeyError)   no snapshot of that id

A message says what happened, to which name, and what to type next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence


class CaveError(Exception):
    """Root of everything that cave raises."""


class _KeyLike(CaveError, KeyError):
    """A `KeyError` whose `str()` is the sentence, not its repr."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ConfigError(CaveError, ValueError):
    """A setting, an argument or a name that cannot be."""


class SessionNotFound(_KeyLike):
    """No session of that name; the message proposes the nearest one."""


class SessionBusy(CaveError, RuntimeError):
    """Another process operates the session; reading and interrupting still work."""

    def __init__(self, name: str, holder: str, pid: int, since: float) -> None:
        seconds = max(0.0, time.time() - since)
        super().__init__(
            f"session {name!r} is operated by {holder} (pid {pid}) for {seconds:.0f} s now; "
            f"wait with cave.open({name!r}, wait=60) or --wait 60, or stop it with "
            f"`cave interrupt {name}`"
        )
        self.holder = holder
        self.pid = pid
        self.since = since


class LeaseLost(CaveError, RuntimeError):
    """Another process took the session over; this one may only read it."""


class KernelStartError(CaveError, RuntimeError):
    """The kernel did not come up; the message ends with what it printed."""


class KernelDied(CaveError, RuntimeError):
    """The kernel's process ended. `signal` or `status` says how, where it is known."""

    def __init__(
        self, message: str, *, signal: int | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.signal = signal
        self.status = status


class DiedReading(KernelDied):
    """The kernel's process ended while it read variables that are stored together."""

    def __init__(self, died: KernelDied, group: str, names: Sequence[str]) -> None:
        super().__init__(
            f"{died}, when it read {', '.join(names)}", signal=died.signal, status=died.status
        )
        self.group = group


class CellError(CaveError, RuntimeError):
    """The exception that a cell ended with: a value in `Cell.error`, raised on request.

    `name` is the exception's class, `message` its text, `traceback` the lines that the
    kernel printed (without ANSI colours), `hint` what the live namespace knows about it.
    """

    def __init__(self, name: str, message: str, traceback: str = "", hint: str = "") -> None:
        super().__init__(name, message, traceback)
        self.name = name
        self.message = message
        self.traceback = traceback
        self.hint = hint
        if hint:
            self.add_note(hint)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class CellTimeout(CaveError, TimeoutError):
    """A cell passed its time limit and was stopped."""


class CellInterrupted(CaveError, RuntimeError):
    """A cell was interrupted before it ended."""


class UnknownName(_KeyLike):
    """No variable of that name in the session."""


class NotPortable(CaveError, TypeError):
    """The safe codecs do not carry that object, or what came of it cannot be read; the message
    says what to type instead."""


class PutError(CaveError, TypeError):
    """An object that cannot go into the kernel; names the variable."""


class OperatorError(CaveError, RuntimeError):
    """The model client cannot be had, or the provider failed for good.

    `reason` is one word for programs: `missing`, `key`, `model`, `rate`, `overloaded`,
    `connection`, `timeout`, `context` (the prompt is too long), `refused`, `request`, or
    nothing where none fits.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class BudgetExceeded(CaveError, RuntimeError):
    """A limit of the budget is spent; the session stays and can be resumed."""


class PolicyViolation(CaveError, PermissionError):
    """A rule of the policy does not allow it; nothing was done."""


class ApprovalDenied(PolicyViolation):
    """Who was asked has said no, or nobody has said yes in time; nothing was done."""


class ApprovalRequired(CaveError, RuntimeError):
    """A person has to approve it first; nothing was done, and the session can be resumed."""


class SkillError(CaveError, ValueError):
    """A skill that cannot be used: its declaration, its arguments, its result, or it is gone."""


class EffectInDoubt(CaveError, RuntimeError):
    """Nobody knows whether an effect was done; it is not done again before a person says so."""


class Divergence(CaveError, RuntimeError):
    """A cell that ran again called another skill, or with other arguments; nothing was called."""


class LoopStopped(CaveError, RuntimeError):
    """An item of `cave.each` has ended the kernel twice; the loop stopped before it."""


class StoreError(CaveError, OSError):
    """The journal cannot be read or written."""

    def __str__(self) -> str:
        return " ".join(str(a) for a in self.args)


class JournalCorrupt(StoreError):
    """A record of the journal differs from its hash."""


class SnapshotError(StoreError):
    """A snapshot cannot be written or used."""


class SnapshotCorrupt(SnapshotError):
    """A snapshot is damaged, or was not signed with the key of this home; it is not used."""


class SnapshotNotFound(SnapshotError, KeyError):
    """No snapshot of that id."""


class StaleImage(SnapshotError):
    """Variables that were to stay in the kernel have changed; nothing was restored."""
