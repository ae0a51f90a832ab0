"""What may act, how much it may spend, who has to be asked, and what must not be seen.

Pure: these modules decide and reckon; the layers above call them, and the confinement
of the kernel enforces what `Policy` says. Names are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cave.policy.answering import Answer
    from cave.policy.budget import Budget
    from cave.policy.redaction import Masker, Redactor
    from cave.policy.rules import Policy, Profile, Rule

_HOMES = {
    "Answer": "answering",
    "Budget": "budget",
    "Masker": "redaction",
    "Policy": "rules",
    "Profile": "rules",
    "Redactor": "redaction",
    "Rule": "rules",
}

__all__ = [
    "Answer",
    "Budget",
    "Masker",
    "Policy",
    "Profile",
    "Redactor",
    "Rule",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
