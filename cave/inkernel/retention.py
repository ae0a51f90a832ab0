"""What `Out`, `_`, `__`, `___` and `In` keep alive: the newest result, and a little more."""

from __future__ import annotations

import sys
from typing import Any

KEEP = 64 << 20
"""Bytes of earlier results that stay beside the newest."""
_BIG = 1 << 20
_HISTORY = 100
_ITEMS = 50


def trim(shell: Any) -> None:
    """Let go of results that are too big to be kept for convenience."""
    out = shell.user_ns.get("_oh")
    if isinstance(out, dict) and out:
        for number in _too_old(out):
            _forget(shell, number, out.pop(number))
    history = shell.history_manager
    for kept in (history.outputs, history.exceptions, history.output_hist_reprs):
        for number in [n for n in kept if n <= shell.execution_count - _HISTORY]:
            del kept[number]


def _too_old(out: dict[int, Any]) -> list[int]:
    room, old = KEEP, []
    seen: set[int] = set()
    for age, number in enumerate(reversed(out)):
        if id(out[number]) in seen:
            continue
        seen.add(id(out[number]))
        size = size_of(out[number])
        if not age or size < _BIG:
            continue
        room -= size
        if room < 0:
            old.append(number)
    return old


def _forget(shell: Any, number: int, value: Any) -> None:
    for names in (shell.user_ns, shell.user_ns_hidden):
        if names.get(f"_{number}") is value:
            del names[f"_{number}"]
        for name in ("_", "__", "___"):
            if names.get(name) is value:
                names[name] = ""
    for name in ("_", "__", "___"):
        if getattr(shell.displayhook, name) is value:
            setattr(shell.displayhook, name, "")


def size_of(value: Any, *, depth: int = 1) -> int:
    """About how many bytes `value` holds; cheap, and never runs long."""
    try:
        if callable(usage := getattr(value, "memory_usage", None)):
            total = usage(deep=False)
            return int(total.sum() if hasattr(total, "sum") else total)
        if isinstance(size := getattr(value, "nbytes", None), int):
            return size
        if depth and isinstance(value, (list, tuple, dict, set)):
            items = list(value.values() if isinstance(value, dict) else value)[:_ITEMS]
            return sys.getsizeof(value) + sum(size_of(item, depth=0) for item in items)
        return sys.getsizeof(value)
    except Exception:
        return 0
