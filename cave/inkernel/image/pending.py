"""An image that nobody asked for: the host is gone, and the namespace must not go with us.

When no host has asked for an image for a while after a cell, or when the kernel ends itself
because nobody uses it, all of the namespace is written to `pending/image` in the kernel's
folder, under another name first. Whoever takes the session over next checks it like a
message and commits or discards it. Only the newest is kept, and none when the disk is full.

The file: `MAGIC`, the length of the description (8 bytes, little endian), the CRC-32 of all
that follows (4 bytes), the description (JSON, as in the reply to `cave_snapshot_request`),
zeros up to a page, the parts.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..output import pack
from . import fill
from .aside import Aside

if TYPE_CHECKING:
    from ..kernel import Kernel

MAGIC = b"CAVEIMG2"
_HEAD = len(MAGIC) + 8 + 4
_PAGE = 4096
_RESERVE = 64 << 20
"""Bytes that stay free on the disk."""
_PATIENCE = 60.0
"""Seconds that a variable may take to be written; then it is lost."""
_LOOK = 5.0


class Pending:
    """When such an image is written, and where."""

    def __init__(self, kernel: Kernel, after: float | None) -> None:
        self._kernel = kernel
        self._after = after
        self._folder = os.path.join(kernel.settings.folder, "pending")
        self._version = -1
        self._timer: Any = None
        self._progress = False
        """Whether the progress of a cell has been written."""

    def cell_ended(self) -> None:
        """If no image is asked for in time, one is written."""
        self.cancel()
        if self._after is not None:
            self._timer = self._kernel.io_loop.call_later(self._after, self._write_if_free)

    def cancel(self) -> None:
        """A host has asked for an image."""
        if self._timer is not None:
            self._kernel.io_loop.remove_timeout(self._timer)
            self._timer = None

    def _write_if_free(self) -> None:
        self._timer = None
        kernel = self._kernel
        if kernel.running is None and not kernel._main_asyncio_lock.locked():
            self.write()

    def write(self) -> bool:
        """Write what no image has yet; whether there is one now. Never raises for a cell."""
        kernel = self._kernel
        if self._after is None:
            return False
        version = kernel.shell.touched.version
        if version in {self._version, kernel.objects.images.latest}:
            return False
        self._watch()
        try:
            with kernel.interrupts.only_aimed():
                self._put(*self._described())
        except Exception as exc:
            kernel.log.warning("the namespace could not be left for the next host: %r", exc)
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, "new"))
            return False
        self._version = version
        return True

    def write_progress(
        self,
        place: Callable[[], dict[str, Any]],
        base: str | None,
        may_be: Callable[[int], bool],
    ) -> tuple[int, bool]:
        """Write the namespace in the midst of a cell, which is at that place, as a difference
        from `base` if that is the last image; if it `may_be` so large. Its size in bytes, and
        whether it was written. The disk is not waited for: it is for deaths of processes, and
        what a power cut has torn is seen by its checksum."""
        kernel = self._kernel
        self._watch()
        try:
            with kernel.interrupts.held():
                told, parts, alive = self._described(base, {"progress": place()})
                if not may_be(parts.size):
                    return parts.size, False
                self._put(told, parts, alive, "progress", sync=False)
        except Exception as exc:
            kernel.log.warning("the progress of the cell could not be kept: %r", exc)
            return 0, False
        self._progress = True
        return parts.size, True

    def discard_progress(self) -> None:
        """The cell has ended."""
        if self._progress:
            self._progress = False
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, "progress"))

    def _described(
        self, base: str | None = None, more: dict[str, Any] | None = None
    ) -> tuple[bytes, fill.Parts, Any]:
        images = self._kernel.objects.images
        taker = Aside(images.taker, base)
        began = time.perf_counter()
        taken = taker.image_of_all(f"pending-{os.getpid()}-{time.time_ns()}")
        content, parts = fill.describe(taken)
        content |= {
            "python": images.python,
            "pause": time.perf_counter() - began,
            "tracking": taker.buffers.tracking,
            "why": taker.buffers.why,
            **(more or {}),
        }
        return pack(content), parts, taken

    def _put(
        self, told: bytes, parts: fill.Parts, _alive: Any, name: str = "image", *, sync: bool = True
    ) -> None:
        start = -(-(_HEAD + len(told)) // _PAGE) * _PAGE
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < start + parts.end + _RESERVE:
            raise OSError("the disk is full")
        new = os.path.join(self._folder, "new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            parts.write(fd, start=start)
            os.pwrite(fd, told, _HEAD)
            head = MAGIC + len(told).to_bytes(8, "little")
            os.pwrite(fd, head + _checksum(fd).to_bytes(4, "little"), 0)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(new, os.path.join(self._folder, name))
        if sync:
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _watch(self) -> None:
        """Stop what hangs, as a host would."""
        kernel = self._kernel
        loop = kernel.control_thread.io_loop

        def look() -> None:
            writing = kernel.writing
            if writing is None:
                return
            if time.monotonic() - writing.since > _PATIENCE:
                kernel.interrupts.aim(writing)
            loop.call_later(_LOOK, look)

        loop.add_callback(lambda: loop.call_later(_LOOK, look))


def _checksum(fd: int) -> int:
    with (
        mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        view[_HEAD:] as rest,
    ):
        return zlib.crc32(rest)
