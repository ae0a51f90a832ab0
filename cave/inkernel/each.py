"""`cave.each`: a loop that goes on with its next item after a death.

    for document in cave.each(documents, key=lambda d: d.id):
        ...

As a statement of its own at the top of a cell, what is done is part of the progress that is
kept (see `progress`): after a death the items are made anew, those that were done are skipped,
and the variables are as they were. Without `key` an item is known by its place. Of items with
equal keys as many are skipped as were done. `break`, `continue` and `else` do as ever; an item
whose body ended in `continue` is done, one that `break` or an exception left is not.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import lanes

_LONGEST = 64
_KEYS = (str, int, float, bool, bytes, type(None))


def each(items: Iterable[Any], *, key: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """The items, in order; after a death those that are not done yet.

    `key(item)` tells items apart where their places may change: a text, a number, bytes, or a
    tuple of such.
    """
    from IPython.core.getipython import get_ipython

    found = iter(items)
    if key is not None and not callable(key):
        raise TypeError(f"key={key!r} is no function of an item; give key=lambda item: item.id")
    progress = getattr(get_ipython(), "progress", None)
    if progress is None:
        return found
    if not progress.enters(sys._getframe(1)) or (found is items and _is_bound(found)):
        progress.plain()
        return found
    return Each(progress, found, key)


def _is_bound(iterator: Iterator[Any]) -> bool:
    """Whether a variable holds the iterator, so that it comes back half used up."""
    from IPython.core.getipython import get_ipython

    space = getattr(get_ipython(), "user_ns", {})
    return any(value is iterator for value in space.values())


class Each(Iterator[Any]):
    """The iterator of such a loop."""

    def __init__(
        self, progress: Any, items: Iterator[Any], key: Callable[[Any], Any] | None
    ) -> None:
        self._progress = progress
        self._items = items
        self._key = key
        self.count, done = progress.entered(self)
        self.done: Counter[str] = Counter(done)
        """By key: how many items are done; without keys only `count` counts."""
        self._skip = Counter(done)
        self._seen = 0
        self._skipped = self.count
        self._now: str | None = None

    def __next__(self) -> Any:
        """The next item that is not done."""
        if self._now is not None:
            self._finish(self._now)
        while True:
            try:
                item, key = self._made()
            except StopIteration:
                self._progress.left()
                raise
            if not self._is_done(key):
                break
        self._progress.item(key, self._seen)
        self._now = key
        return item

    def _finish(self, key: str) -> None:
        self._now = None
        self.count += 1
        if self._key is not None:
            self.done[key] += 1
        self._progress.item_done()

    def _made(self) -> tuple[Any, str]:
        lane = lanes.running()
        before = None if lane is None else lane.calls
        item = next(self._items)
        key = "" if self._key is None else said(self._key(item))
        self._seen += 1
        if lane is not None and lane.calls != before:
            self._progress.shifts()
        return item, key

    def _is_done(self, key: str) -> bool:
        if self._key is None:
            return bool(self._seen <= self._skipped)
        if self._skip[key] <= 0:
            return False
        self._skip[key] -= 1
        return True


def said(key: Any) -> str:
    """A key as text. Raises `TypeError` for one that another process would not find equal."""
    if not _is_plain(key):
        raise TypeError(
            f"key gave {key!r:.100} ({type(key).__name__}); it must give a text, a number, bytes "
            f"or a tuple of such, which are the same in another process"
        )
    text = repr(key)
    return text if len(text) <= _LONGEST else hashlib.sha256(text.encode()).hexdigest()


def _is_plain(key: Any) -> bool:
    return type(key) in _KEYS or (type(key) is tuple and all(map(_is_plain, key)))
