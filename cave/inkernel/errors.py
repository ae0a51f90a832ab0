"""What cells catch: the errors of calls, by the names that they have on the host.

Each also derives from the builtin that its host twin derives from.
"""

from __future__ import annotations

import builtins
import importlib
from typing import Any


class CaveError(Exception):
    """Root of everything that cave raises."""


class SkillError(CaveError, ValueError):
    """A skill that cannot be called so, or that failed."""


class EffectInDoubt(CaveError, RuntimeError):
    """Nobody knows whether an effect was done; a person settles it."""


class Divergence(CaveError, RuntimeError):
    """A cell that ran again called something else than before."""


class LoopStopped(CaveError, RuntimeError):
    """An item of `cave.each` has ended the kernel twice."""


class PolicyViolation(CaveError, PermissionError):
    """The policy does not allow it."""


class ApprovalRequired(CaveError, RuntimeError):
    """A person has to approve it first."""


class ApprovalDenied(PolicyViolation):
    """A person has said no."""


class BudgetExceeded(CaveError, RuntimeError):
    """A limit of the budget is spent."""


class CellTimeout(CaveError, TimeoutError):
    """A limit of time has passed."""


class NotPortable(CaveError, TypeError):
    """The safe codecs do not carry that object."""


class UnknownName(CaveError, KeyError):
    """No variable of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def _as_installed() -> dict[str, type[Exception]]:
    """The classes by name: those of an installed cave, so that cells meet one of each."""
    try:
        installed: Any = importlib.import_module("cave.errors")
    except ImportError:
        installed = None
    own = {name: kind for name, kind in globals().items() if isinstance(kind, type)}
    return {name: getattr(installed, name, kind) for name, kind in own.items()}


OURS = _as_installed()
globals().update(OURS)


def raised(skill: str, name: str, message: str) -> Exception:
    """The exception of this class name, or a `SkillError` that tells of it."""
    if (kind := OURS.get(name)) is not None:
        return kind(message)
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, Exception):
        try:
            made = builtin(message)
        except TypeError:  # it wants more than a text
            pass
        else:
            return made
    told = f"{name}: {message}" if message else name
    return SkillError(f"{skill} raised {told}")
