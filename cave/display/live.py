"""A turn while it runs: fed events, it shows them where the person is.

In a notebook that is one output, updated in place, which ends as a clean saved one. In a
terminal it is plain lines. Where neither is there, nothing is written at all.
"""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from cave.events import Event


class Face(Protocol):
    """A place where events are shown."""

    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


class LiveTurn:
    """Shows events as they come: `live(event)` for each one, `live.close()` at the end."""

    def __init__(self, face: Face | None = None) -> None:
        self._face = face

    @classmethod
    def for_environment(cls, stream: TextIO | None = None, *, answer: bool = True) -> LiveTurn:
        """One that suits the place: lines on `stream` when it is given, an output in a
        notebook, lines on stderr in a terminal, else none.

        `answer=False` leaves the answer to the caller, who prints it on stdout.
        """
        if stream is None and in_notebook():
            from cave.display.notebook import NotebookFace

            return cls(NotebookFace())
        if stream is None:
            stream = sys.stderr
            if stream is None or not stream.isatty():
                return cls()
        from cave.display.terminal import TerminalFace

        return cls(TerminalFace(stream, answer=answer))

    @property
    def shows(self) -> bool:
        """Whether anybody sees it."""
        return self._face is not None

    def __call__(self, event: Event) -> None:
        if self._face is not None:
            self._face.show(event)

    def close(self) -> None:
        """Show the final state. It may be called more than once."""
        face, self._face = self._face, None
        if face is not None:
            face.close()


def in_notebook() -> bool:
    """Whether a Jupyter front end shows what this process displays."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
