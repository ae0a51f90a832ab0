"""A running turn in a notebook: one output, updated in place about ten times a second."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any

from cave.display import html
from cave.display.progress import Progress
from cave.display.safe import visible
from cave.events import Event, TurnFinished
from cave.turn import clip

INTERVAL = 0.1
"""Seconds between two updates."""


class _Output:
    """What is displayed: the turn as it is now."""

    def __init__(self, shown: html.Shown) -> None:
        self._shown = shown

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        shown = self._shown
        said = "\n".join(filter(None, [shown.answer, shown.reason])) or shown.status
        plain = f"Turn {shown.n}: {visible(clip(said, html.TEXT))}"
        return {"text/plain": plain, "text/html": html.page(shown) or ""}


class NotebookFace:
    """Shows a turn by `display(..., display_id=True)` and updates of it.

    An update that comes too soon is made up for by a timer, so that the last output of a
    cell that then computes for long is seen.
    """

    def __init__(self) -> None:
        self._progress = Progress()
        self._handle: Any = None
        self._last = 0.0
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._context = contextvars.copy_context()
        self._closed = False

    def show(self, event: Event) -> None:
        with self._lock:
            self._progress.feed(event)
            if isinstance(event, TurnFinished):
                self._update()
            else:
                self._soon()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
                self._update()

    def _soon(self) -> None:
        wait = self._last + INTERVAL - time.monotonic()
        if wait <= 0:
            self._update()
        elif self._timer is None:
            self._timer = threading.Timer(wait, self._context.copy().run, [self._late])
            self._timer.daemon = True
            self._timer.start()

    def _late(self) -> None:
        with self._lock:
            if not self._closed and self._timer is not None:
                self._update()

    def _update(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last = time.monotonic()
        output = _Output(self._progress.shown)
        if self._handle is None:
            from IPython.display import display

            show: Any = display
            self._handle = show(output, display_id=True)
        else:
            self._handle.update(output)
