"""cave: a durable Python session that a language model operates.

    import cave

    s = cave.open("q3-close")
    s.put(df=df)
    turn = s.ask("Which region grew most?")
    s["top"]

Names are loaded at first use, so that `import cave` is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cave.approval import Approval
    from cave.check import Check
    from cave.each import each
    from cave.errors import (
        ApprovalDenied,
        ApprovalRequired,
        BudgetExceeded,
        CaveError,
        CellError,
        CellInterrupted,
        CellTimeout,
        ConfigError,
        Divergence,
        EffectInDoubt,
        JournalCorrupt,
        KernelDied,
        KernelStartError,
        LeaseLost,
        LoopStopped,
        NotPortable,
        OperatorError,
        PolicyViolation,
        PutError,
        SessionBusy,
        SessionNotFound,
        SkillError,
        SnapshotCorrupt,
        SnapshotError,
        SnapshotNotFound,
        StoreError,
        UnknownName,
    )
    from cave.facade import Session, approvals, delete, open, open_async, sessions
    from cave.observing import Inspection
    from cave.policy import Budget, Policy
    from cave.report import Diff, RestoreReport, Snapshot
    from cave.resources import persistent, resource
    from cave.session import AsyncSession
    from cave.skills import Skill, SkillContext, skill
    from cave.turn import Cell, Effect, Step, Turn, Usage

_HOMES = {
    "approval": ("Approval",),
    "check": ("Check",),
    "errors": (
        "ApprovalDenied",
        "ApprovalRequired",
        "BudgetExceeded",
        "CaveError",
        "CellError",
        "CellInterrupted",
        "CellTimeout",
        "ConfigError",
        "Divergence",
        "EffectInDoubt",
        "JournalCorrupt",
        "KernelDied",
        "KernelStartError",
        "LeaseLost",
        "LoopStopped",
        "NotPortable",
        "OperatorError",
        "PolicyViolation",
        "PutError",
        "SessionBusy",
        "SessionNotFound",
        "SkillError",
        "SnapshotCorrupt",
        "SnapshotError",
        "SnapshotNotFound",
        "StoreError",
        "UnknownName",
    ),
    "each": ("each",),
    "facade": ("Session", "approvals", "delete", "open", "open_async", "sessions"),
    "observing": ("Inspection",),
    "policy": ("Budget", "Policy"),
    "resources": ("persistent", "resource"),
    "report": ("Diff", "RestoreReport", "Snapshot"),
    "session": ("AsyncSession",),
    "skills": ("Skill", "SkillContext", "skill"),
    "turn": ("Cell", "Effect", "Step", "Turn", "Usage"),
}
_SUBMODULES = ("errors", "events", "policy", "skills", "testing")
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Approval",
    "ApprovalDenied",
    "ApprovalRequired",
    "AsyncSession",
    "Budget",
    "BudgetExceeded",
    "CaveError",
    "Cell",
    "CellError",
    "CellInterrupted",
    "CellTimeout",
    "Check",
    "ConfigError",
    "Diff",
    "Divergence",
    "Effect",
    "EffectInDoubt",
    "Inspection",
    "JournalCorrupt",
    "KernelDied",
    "KernelStartError",
    "LeaseLost",
    "LoopStopped",
    "NotPortable",
    "OperatorError",
    "Policy",
    "PolicyViolation",
    "PutError",
    "RestoreReport",
    "Session",
    "SessionBusy",
    "SessionNotFound",
    "Skill",
    "SkillContext",
    "SkillError",
    "Snapshot",
    "SnapshotCorrupt",
    "SnapshotError",
    "SnapshotNotFound",
    "Step",
    "StoreError",
    "Turn",
    "UnknownName",
    "Usage",
    "approvals",
    "delete",
    "each",
    "open",
    "open_async",
    "persistent",
    "resource",
    "sessions",
    "skill",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _SUBMODULES:
        return importlib.import_module(f"cave.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'cave' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"cave.{module}"), name)
    globals()[name] = value
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cave-runtime")
    except PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext cave`: the magics `%cave` and `%%ask`."""
    from cave.magics import register

    register(shell)
