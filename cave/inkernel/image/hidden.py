"""State that is no variable and that cells rely on all the same: random, cwd, options, ...

Each kind is a small class. `capture` gives a value that pickle carries as it is, or None
for a state that is as it was when the kernel started (there is no root then); equal states
give equal values, where that is cheap the same object. `apply` brings a value back, None
meaning the state of this kernel's start. Nothing is imported for it: a library that is not
loaded has no state.
"""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from . import remarks
from .lost import Lost


class Kind:
    """A kind of hidden state. `remember` is called once, before any cell has run."""

    name = ""

    def __init__(self) -> None:
        self._last: Any = None

    def remember(self) -> None:
        """Note how things are before the first cell."""

    def read(self) -> Any:
        """The state as a value, None where it is as at the start."""
        raise NotImplementedError

    def apply(self, value: Any) -> None:
        """Bring a state back. May raise: the note then says so."""
        raise NotImplementedError

    def capture(self) -> Any:
        """As `read`; the same object as long as the state is the same."""
        now = self.read()
        if now != self._last:
            self._last = now
        return self._last

    def note(self, kind: str, type: str, reason: str) -> None:
        """Say of this state that it does not come back as it was."""
        remarks.remark(kind, f"hidden:{self.name}", type, reason)


class Random(Kind):
    """The generator behind `random.random()`."""

    name = "random"

    def read(self) -> Any:
        version, words, gauss = random.getstate()
        return version, array("I", words).tobytes(), gauss

    def apply(self, value: Any) -> None:
        if value is not None:
            version, words, gauss = value
            random.setstate((version, tuple(array("I", words)), gauss))


class WorkingDirectory(Kind):
    """Where relative paths start."""

    name = "cwd"
    _start = ""

    def remember(self) -> None:
        self._start = os.getcwd()

    def read(self) -> Any:
        try:
            now = os.getcwd()
        except FileNotFoundError:
            return None
        return None if now == self._start else now

    def apply(self, value: Any) -> None:
        wanted = value or self._start
        try:
            if not wanted or os.getcwd() == wanted:
                return
        except FileNotFoundError:
            pass
        try:
            os.chdir(wanted)
        except OSError as exc:
            self.note("lost", "cwd", f"the folder {wanted!r} cannot be entered: {exc.strerror}")


KINDS: list[Kind] = [WorkingDirectory(), Random()]
FIRST = ("hidden:environ", "hidden:cwd", "hidden:path", "hidden:modules")
_state = {"remembered": False}


def remember() -> None:
    """Note how things are before the first cell; what differs later is the user's doing."""
    if not _state["remembered"]:
        _state["remembered"] = True
        for kind in KINDS:
            kind.remember()


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
            kind._last = None
        except Exception as exc:
            remarks.remark("lost", root, kind.name, f"it cannot be brought back: {exc!r}")
    return []


def _kinds(only: Collection[str] | None) -> Iterator[tuple[Kind, str]]:
    for kind in KINDS:
        root = f"hidden:{kind.name}"
        if only is None or root in only:
            yield kind, root
