"""The host's requests for images: `cave_snapshot_request` and `cave_restore_request`.

They are served in the main thread between cells. Reading and writing objects runs code of
the user: each root is stopped when the host says so, and no other interrupt reaches it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import objects
from . import fill, load
from .take import Taker

if TYPE_CHECKING:
    from ..kernel import Kernel, Message


_PYTHON = platform.python_version()


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
        asked = parent["content"]
        with self._kernel.interrupts.only_aimed():
            taken = self.taker.take(asked["id"], asked["base"], verify=bool(asked["verify"]))
            content, parts = fill.describe(taken)
            settings = self._kernel.settings
            buffers = fill.hand_over(
                content, parts, settings.runtime, settings.door.hold,
                inline=bool(asked.get("inline")),
            )  # fmt: skip
        tracking = self.taker.buffers
        content |= {"tracking": tracking.tracking, "why": tracking.why, "python": _PYTHON}
        content["pause"] = round(time.perf_counter() - began, 6)
        return content, buffers

    def restore(self, parent: Message) -> tuple[Message, list[Any]]:
        """Comes back to an image; answers with notes, or with groups that cannot stay."""
        content = parent["content"]
        door = self._kernel.settings.door
        fds = [fd for token in content["tokens"] for fd in door.claim_all(token)]
        with load.given(content, _parts(content, parent["buffers"], door), fds) as wanted:
            try:
                with self._kernel.interrupts.only_aimed():
                    notes, stay = load.load(self.taker, self._kernel.shell, wanted)
            except load.Stale as stale:
                return {"stale": list(stale.ids), "notes": []}, []
        self._kernel.objects.namespace.restored(content["cells"], stay)
        told = [[n.kind, n.name, n.type, n.reason, n.path] for n in notes]
        return {"stale": [], "notes": told}, []


def _parts(content: Message, buffers: Sequence[Any], door: Any) -> list[memoryview]:
    layout = content["layout"]
    if content["token"]:
        return objects.arrive(door.claim(content["token"]), layout)
    blob = memoryview(b"".join(bytes(buffer) for buffer in buffers))
    return [blob[offset : offset + size] for offset, size in layout]
