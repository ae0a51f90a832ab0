"""Hidden state of IPython's shell: extensions that were loaded, magics that cells made."""

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

from .hidden_kind import Kind
from .lost import Lost


def _shell() -> Any:
    found = sys.modules.get("IPython.core.getipython")
    return None if found is None else found.get_ipython()


class Extensions(Kind):
    """What `%load_ext` has loaded."""

    name = "extensions"
    _start: frozenset[str] = frozenset()

    def _now(self) -> frozenset[str]:
        shell = _shell()
        return frozenset(shell.extension_manager.loaded if shell is not None else ())

    def remember(self) -> None:
        self._start = self._now()

    def read(self) -> Any:
        return tuple(sorted(self._now() - self._start)) or None

    def apply(self, value: Any) -> None:
        shell = _shell()
        if shell is None:
            return
        for name in set(value or ()) - self._now():
            try:
                shell.extension_manager.load_extension(name)
            except Exception as exc:
                self.note("lost", name, f"the extension cannot be loaded: {exc!r}")


class Magics(Kind):
    """Magics that cells have registered: those that are functions."""

    name = "magics"
    mutable = True

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[tuple[str, str], Any] = {}
        self._all: list[Any] = []
        self._ids: list[int] = []

    def _every(self) -> list[Any]:
        """All magics there are, those of IPython too."""
        shell = _shell()
        kinds = shell.magics_manager.magics.values() if shell is not None else ()
        return list(itertools.chain.from_iterable(magics.values() for magics in kinds))

    def _now(self) -> dict[tuple[str, str], Any]:
        shell = _shell()
        if shell is None:
            return {}
        return {
            (kind, name): magic
            for kind, magics in shell.magics_manager.magics.items()
            for name, magic in magics.items()
            if type(magic) is types.FunctionType
        }

    def remember(self) -> None:
        self._start, self._all = self._now(), self._every()
        self._ids = list(map(id, self._all))

    def read(self) -> Any:
        if list(map(id, self._every())) == self._ids:
            return None
        found = {k: v for k, v in self._now().items() if self._start.get(k) is not v}
        return found or None

    def apply(self, value: Any) -> None:
        shell = _shell()
        if shell is None:
            return
        for kind, name in self.read() or ():
            del shell.magics_manager.magics[kind][name]
            if (kind, name) in self._start:
                shell.magics_manager.magics[kind][name] = self._start[kind, name]
        for (kind, name), magic in (value or {}).items():
            if not isinstance(magic, Lost):
                shell.magics_manager.magics[kind][name] = magic


KINDS: list[Kind] = [Extensions(), Magics()]
