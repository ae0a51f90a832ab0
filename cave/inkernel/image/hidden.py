"""State that is no variable and that cells rely on all the same: random, cwd, options, ...

Each kind is a small class. `capture` gives a value that pickle carries as it is, or None
for a state that is as it was when the kernel started (there is no root then); equal states
give equal values, where that is cheap the same object. `apply` brings a value back, None
meaning the state of this kernel's start. Nothing is imported for it: a library that is not
loaded has no state.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from . import hidden_libraries, hidden_process, hidden_shell, modules, patched, remarks
from .hidden_kind import Kind
from .lost import Lost

FIRST = ("hidden:home", "hidden:environ", "hidden:cwd", "hidden:path")
"""What reading depends on: where modules and files are found."""
KINDS: list[Kind] = [
    *hidden_process.KINDS,
    *hidden_libraries.KINDS,
    *hidden_shell.KINDS,
    patched.PATCHED,
]
FIXED = frozenset(f"hidden:{kind.name}" for kind in KINDS if not kind.mutable)
"""Roots whose value is the same object as long as the state is the same."""
_state = {"remembered": False}


def remember() -> None:
    """Note how things are before the first cell; what differs later is the user's doing."""
    if not _state["remembered"]:
        _state["remembered"] = True
        for kind in KINDS:
            kind.remember()
        modules.remember(list(sys.path), os.getcwd())


def capture() -> dict[str, Any]:
    """All hidden state that is not as it was at the start, by root."""
    remember()
    found = {}
    for kind in KINDS:
        try:
            value = kind.capture()
        except Exception as exc:
            remarks.remark("lost", f"hidden:{kind.name}", kind.name, f"it cannot be read: {exc!r}")
            continue
        if value is not None:
            found[f"hidden:{kind.name}"] = value
    return found


def apply(
    loaded: Mapping[str, Any], stay: Collection[str], *, only: Collection[str] | None = None
) -> list[Any]:
    """Bring back what is in `loaded`; what is neither there nor in `stay` is as at the start."""
    remember()
    for kind, root in _kinds(only):
        value = loaded.get(root)
        if root in stay or isinstance(value, Lost):
            continue
        try:
            kind.apply(value)
            kind.forget()
        except Exception as exc:
            remarks.remark("lost", root, kind.name, f"it cannot be brought back: {exc!r}")
    return []


def _kinds(only: Collection[str] | None) -> Iterator[tuple[Kind, str]]:
    for kind in KINDS:
        root = f"hidden:{kind.name}"
        if only is None or root in only:
            yield kind, root
