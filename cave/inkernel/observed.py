"""What a cell does to the world outside of the namespace, noted before it does it.

An audit hook sees what Python code is about to do (`deeds`). The first time that a cell does
a thing, one line of it goes to the spool, and only then the thing is done: whoever owns the
session next finds it there when the kernel died in the middle. What the hook cannot see
(writes of C code, what is still open) is looked for when the cell has ended (`held`).

What counts is the code of cells, also in threads and tasks that they started: not what the
kernel itself does, not what libraries do while they are imported, and not what a skill does
whose calls are recorded.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import deeds, lanes, threads
from .held import Held

if TYPE_CHECKING:
    from .kernel import Kernel

MOST = 50
"""Notes of one cell."""
_WAIT = 10.0
"""Seconds that an act waits for its note to be in the spool."""
_FAR = ("socket.connect", "socket.sendto", "socket.sendmsg", "urllib.", "webbrowser.")
"""Events that count also while a library is imported."""

_recorded: contextvars.ContextVar[bool] = contextvars.ContextVar("cave_recorded", default=False)


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """What the block does is known by the record of a skill's call."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)


class Notes:
    """What one cell did, in order."""

    def __init__(self, msg_id: str) -> None:
        self.msg_id = msg_id
        self.texts: dict[str, None] = {}
        self.excused = False
        """Whether a library ran a program of which there is no note."""


class Observer:
    """Notes what cells do. One for each process: hooks cannot be taken off again."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._notes: Notes | None = None
        self._ours = {thread.ident for thread in threading.enumerate()}
        settings = kernel.settings
        deeds.place(os.getcwd())
        deeds.ignore(settings.folder, settings.runtime, *deeds.caches())
        self._held = Held(kernel)
        sys.addaudithook(_hook(self))

    def begin(self, msg_id: str) -> None:
        """A cell begins."""
        self._notes = Notes(msg_id)
        self._held.begin()

    def end(self) -> list[str]:
        """The cell has ended: what it did, and what goes on or is still open."""
        notes, self._notes = self._notes, None
        if notes is None:
            return []
        try:
            found = self._held.end(notes.texts, excused=notes.excused)
        except Exception as exc:
            self._kernel.log.warning("what the cell left open could not be looked at: %r", exc)
            found = ["what it left open is not known"]
        return [deeds.clip(text) for text in (*notes.texts, *found)][: 2 * MOST]

    def moved(self) -> None:
        """Something else than a cell has changed the namespace."""
        self._held.stale = True

    def notice(self, event: str, args: deeds.Args) -> None:
        """One event that may be a deed."""
        if event == "mmap.__new__":
            self._held.maps = self._held.maps or _is_shared(args)
            return
        notes = self._notes
        if notes is None or self._kernel.forked or not self._is_of_cell(notes):
            return
        text = deeds.DEEDS[event](args)
        if text is None and event == "subprocess.Popen":
            notes.excused = True
        if text is None or text in notes.texts or len(notes.texts) >= MOST:
            return
        if _is_of_library(event, sys._getframe(3)):
            notes.excused = notes.excused or event == "subprocess.Popen"
            return
        notes.texts[text] = None
        self._publish(notes, text)

    def _is_of_cell(self, notes: Notes) -> bool:
        """Whether code of this cell is running here."""
        if _recorded.get():
            return False
        if lanes.running() is None:
            ident = threading.get_ident()
            return ident not in self._ours and not threads.is_ours(ident)
        parent = self._kernel.get_parent("shell")
        return bool(parent) and parent["header"]["msg_id"] == notes.msg_id

    def _publish(self, notes: Notes, text: str) -> None:
        """Have it in the spool before the act."""
        kernel, done = self._kernel, threading.Event()
        running = kernel.running
        content = {"cell": running.cell if running else None, "text": deeds.clip(text)}
        parent = kernel.get_parent("shell")
        message = kernel.session.msg("cave_observed", content, parent=parent)
        frames = kernel.session.serialize(message, ident=kernel._topic("cave_observed"))

        def send() -> None:
            try:
                kernel.publisher._really_send(frames)
            finally:
                done.set()

        kernel.publisher.schedule(send)
        done.wait(_WAIT)


def _hook(observer: Observer) -> Any:
    watched = {*deeds.DEEDS, "mmap.__new__"}

    def hook(event: str, args: Any) -> None:
        if event in watched:
            try:
                observer.notice(event, args)
            except Exception as exc:
                observer._kernel.log.warning("%s was not noted: %r", event, exc)

    return hook


def _is_shared(args: deeds.Args) -> bool:
    """Whether a mapping of a file may be written through."""
    return args[0] != -1 and args[2] in {0, 2}


# -- whose code it is ------------------------------------------------------------------------

_places = sysconfig.get_paths()
_LIBRARIES = tuple(
    {os.path.join(_places[key], "") for key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_FROZEN = "<frozen importlib"
_CTYPES = os.path.join(os.path.dirname(os.__file__), "ctypes", "")
_PROBES = {
    (tempfile.__file__, "_get_default_tempdir"),
    (os.path.join(_CTYPES, "util.py"), "find_library"),
}
"""Functions that write and remove a file, or run programs, to find something out."""


def _is_of_library(event: str, frame: FrameType | None) -> bool:
    """Whether a library does it for itself: at its import, or to call C code of its own."""
    if event.startswith(_FAR):
        return False
    own = event.startswith("ctypes.")
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_FROZEN) or (file, code.co_name) in _PROBES:
            return True
        if not file.startswith(_LIBRARIES):
            return False
        if own and not file.startswith(_CTYPES):
            return True
        frame = frame.f_back
    return True
