"""The host's requests for images: `cave_snapshot_request` and `cave_restore_request`.

They are served in the main thread between cells. Reading and writing objects runs code of
the user: each root is stopped when the host says so, and no other interrupt reaches it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import objects
from . import fill, load, touch
from .copier import Copier
from .pending import Pending
from .take import Taker

if TYPE_CHECKING:
    from ..kernel import Kernel, Message


_REAP = 0.5
_PYTHON = platform.python_version()


class Moved(RuntimeError):
    """An image that could be asked for again no longer is that of the namespace."""


class Writing:
    """One root (or group of roots) that is being written or read now."""

    __slots__ = ("name", "since")

    def __init__(self, name: str) -> None:
        self.name = name
        self.since = time.monotonic()


class Images:
    """Images of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._master = os.getpid()
        self.taker = Taker(kernel.shell, kernel.shell.touched)
        self.taker.guard = self._guard
        self.copier = Copier()
        self._after: list[Callable[[], None]] = []
        self.pending = Pending(kernel, kernel.settings.pending_after)
        self.python = platform.python_version()
        self.at: tuple[str, int] = ("", -1)
        """The image that was taken last, and when."""
        self._unheard = ""
        """That image, when the request for it came with a cell: its host may have died since."""

    @contextlib.contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """While a root is written, an interrupt that is aimed at it raises."""
        kernel = self._kernel
        kernel.writing = Writing(name)
        try:
            with kernel.interrupts.window():
                yield
        finally:
            kernel.writing = None

    def snapshot(self, parent: Message) -> tuple[Message, list[Any]]:
        """Answers with an image."""
        began = time.perf_counter()
        asked, touched = parent["content"], self._kernel.shell.touched
        self._unheard = asked["id"] if "request" in asked else ""
        if not self._unheard:
            self.pending.cancel()
        with self._kernel.interrupts.only_aimed():
            if asked.get("again") and self.at != (asked["id"], touched.version):
                raise Moved("cells have run since that image was begun")
            taken = self.taker.take(asked["id"], asked["base"], verify=bool(asked["verify"]))
            self.at = asked["id"], touched.version
            content, parts = fill.describe(taken, brief=bool(asked.get("brief")))
            settings = self._kernel.settings
            buffers = fill.hand_over(
                content, parts, settings.runtime, settings.door.hold,
                inline=bool(asked.get("inline")),
                copier=self.copier if asked["background"] else None,
            )  # fmt: skip
            self._reap()
        tracking = self.taker.buffers
        content |= {"tracking": tracking.tracking, "why": tracking.why, "python": self.python}
        content["pause"] = round(time.perf_counter() - began, 6)
        return content, buffers

    @property
    def latest(self) -> int:
        """The version of the namespace of which a host has the image."""
        if self._unheard and self._unheard != self._heard():
            return -1
        return self.at[1]

    def _heard(self) -> str:
        """The image that the host said had come."""
        try:
            with open(os.path.join(self._kernel.settings.folder, "taken"), "rb") as file:
                return file.read(64).decode("ascii", "replace")
        except OSError:
            return ""

    def settle(self) -> None:
        """What the host need not wait for, and the next cell must."""
        while self._after:
            self._after.pop(0)()

    def _reap(self) -> None:
        if not self.copier.reap():
            self._kernel.io_loop.call_later(_REAP, self._reap)

    def restore(self, parent: Message) -> tuple[Message, list[Any]]:
        """Comes back to an image; answers with notes, or with groups that cannot stay."""
        content, space = parent["content"], self._kernel.objects.namespace
        door = self._kernel.settings.door
        fds = [fd for token in content["tokens"] for fd in door.claim_all(token)]
        with load.given(content, _parts(content, parent["buffers"], door), fds) as wanted:
            try:
                with self._kernel.interrupts.only_aimed():
                    tell = load.telling(fds[content["progress"] :])
                    notes, stay, watch = load.load(
                        self.taker, self._kernel.shell, wanted, tell, space.let_go
                    )
            except load.Stale as stale:
                return {"stale": list(stale.ids), "notes": []}, []
        self._after.append(watch)
        if touch.active(self._kernel.shell):
            self.settle()
        self._kernel.restored()
        space.restored(content["cells"], stay)
        self.at = content["id"], self._kernel.shell.touched.version
        told = [[n.kind, n.name, n.type, n.reason, n.path] for n in notes]
        return {"stale": [], "notes": told}, []


def _parts(content: Message, buffers: Sequence[Any], door: Any) -> list[memoryview]:
    layout = content["layout"]
    if content["token"]:
        return objects.arrive(door.claim(content["token"]), layout)
    blob = memoryview(b"".join(bytes(buffer) for buffer in buffers))
    return [blob[offset : offset + size] for offset, size in layout]
