"""What the functions that rebuild objects know of the reading that calls them."""

from __future__ import annotations

import contextvars
import sys
from typing import Any

from .definitions import MAIN, Definitions


class Reading:
    """One call of `read`: where definitions are found and put."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self.made: dict[str, Any] = {}
        """Definitions that this stream itself has brought."""
        self.numbered: dict[int, Any] = {}
        """Objects of records, by number (see `deep`)."""
        self.nans: dict[int, float] = {}
        """NaN that no module has, by number (see `nans`)."""
        self.stubs: dict[Any, str] = {}
        """Code that stands for code of another version of Python, and why."""
        self.main: dict[str, Any] = sys.modules[MAIN].__dict__
        self._lent: dict[str, Any] = {}
        self.lends = False
        """Whether somebody takes back what is lent."""

    def lend(self, name: str, made: Any) -> None:
        """What was just made is in the namespace until all is read, where its name is free: a
        constructor that is called for something else may name it."""
        if self.lends and name.isidentifier() and name not in self.main:
            self.main[name] = self._lent[name] = made

    def take_back(self) -> None:
        """Nothing is lent any more."""
        for name, made in self._lent.items():
            if self.main.get(name) is made:
                del self.main[name]
        self._lent.clear()


_current: contextvars.ContextVar[Reading] = contextvars.ContextVar("reading")


def current() -> Reading:
    """The reading that goes on; plain unpicklers get one that knows nothing."""
    found = _current.get(None)
    return Reading(Definitions()) if found is None else found


class reading:  # noqa: N801 (used as a word of a `with` statement)
    """Within this block streams are read."""

    def __init__(self, state: Reading) -> None:
        self._state = state

    def __enter__(self) -> Reading:
        self._token = _current.set(self._state)
        self._state.lends = True
        return self._state

    def __exit__(self, *_: object) -> None:
        self._state.lends = False
        self._state.take_back()
        _current.reset(self._token)
