"""`cave.each` where no cell runs: plain iteration. In cells it is `cave/inkernel/each.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def each(items: Iterable[T], *, key: Callable[[T], Any] | None = None) -> Iterator[T]:
    """The items, in order. As a loop at the top of a cell, `for x in cave.each(items):`, it
    goes on with the next item after a death; `key(item)` tells items apart where their places
    may change."""
    if key is not None and not callable(key):
        raise TypeError(f"key={key!r} is no function of an item; give key=lambda item: item.id")
    return iter(items)
