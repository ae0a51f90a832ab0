"""What cells break without meaning to, put right before it hurts: streams, names, builtins.

A cell may redirect `sys.stdout` to any file that works, and replace builtins by others that
can be called; both stay. Only what would break every later cell is put back.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

_OF_MAIN = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtin__",
            "__builtins__")  # fmt: skip
_COME_AND_GO = {"exit", "quit", "copyright", "credits", "license", "help", "_", "display",
                "get_ipython", "__IPYTHON__"}  # fmt: skip
_KEPT_BY_IPYTHON = {"_ih": list, "_oh": dict, "_dh": list, "In": object, "Out": object,
                    "get_ipython": object, "exit": object, "quit": object,
                    "open": object}  # fmt: skip


class Mender:
    """Knows how the shell's surroundings were at the start."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._streams: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._builtins = {k: v for k, v in vars(builtins).items() if k not in _COME_AND_GO}
        self._main = {name: shell.user_ns[name] for name in _OF_MAIN if name in shell.user_ns}

    def mend(self) -> None:
        """All of it; some microseconds when nothing is broken."""
        self.mend_builtins()
        self.mend_streams()
        self._mend_names()

    def between(self) -> None:
        """What cannot wait for the cell's end; less than a statement costs."""
        if not self._builtins.keys() <= vars(builtins).keys():
            self.mend_builtins()

    def mend_builtins(self) -> None:
        """Names that are gone from builtins, or cannot be called any more, are back."""
        now = vars(builtins)
        for name, value in self._builtins.items():
            if name not in now or (callable(value) and not callable(now[name])):
                now[name] = value
                self._streams["stderr"].write(
                    f"cave: builtins.{name} is back as it was; the kernel cannot do without it\n"
                )

    def mend_streams(self) -> None:
        """Our streams are back where `sys` has none that can be written to."""
        for name, ours in self._streams.items():
            if not _works(getattr(sys, name, None)):
                setattr(sys, name, ours)

    def set_parent(self, parent: Any) -> None:
        """What our streams are given from now on belongs to the request `parent`."""
        for name, ours in self._streams.items():
            if getattr(sys, name, None) is not ours:
                ours.set_parent(parent)

    def _mend_names(self) -> None:
        """Names that IPython's own code reads from the namespace of cells."""
        space = self._shell.user_ns
        if "__name__" not in space:
            for name, value in self._main.items():
                space.setdefault(name, value)
        for name, kind in _KEPT_BY_IPYTHON.items():
            if name not in space or not isinstance(space[name], kind):
                mine = {key: space[key] for key in _KEPT_BY_IPYTHON if key in space}
                self._shell.init_user_ns()
                space.update((k, v) for k, v in mine.items() if isinstance(v, _KEPT_BY_IPYTHON[k]))
                return


def _works(stream: object) -> bool:
    try:
        return (
            callable(getattr(stream, "write", None))
            and callable(getattr(stream, "flush", None))
            and not getattr(stream, "closed", False)
        )
    except Exception:  # its own __getattr__ raised
        return False
