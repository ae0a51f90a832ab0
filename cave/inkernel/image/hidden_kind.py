"""What every kind of hidden state is (see `hidden`)."""

from __future__ import annotations

from typing import Any

from . import remarks


class Kind:
    """A kind of hidden state. `remember` is called once, before any cell has run."""

    name = ""
    mutable = False
    """Whether a value holds objects that may change while the value is still equal."""

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
        if now is None or self.mutable:
            return now
        if now != self._last:
            self._last = now
        return self._last

    def forget(self) -> None:
        """A state was brought back: the next value is a new one."""
        self._last = None

    def note(self, kind: str, type: str, reason: str) -> None:
        """Say of this state that it does not come back as it was."""
        remarks.remark(kind, f"hidden:{self.name}", type, reason)
