"""The spool: every IOPub message, numbered, on disk before it is sent.

A new owner of the session reads from it what the old one could not journal. It is a folder
of segments named by the number of their first record (`00000000000000000042.spool`);
segments that are acknowledged are deleted by the host.

A record is `HEADER` (magic, length of the body, CRC-32 of the body, number) and a body: the
frames of the message, each after its length (little-endian, 32 bits).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence

HEADER = struct.Struct("<4sIIQ")
MAGIC = b"cave"
SEGMENT = 8 << 20
LIMIT = 8 << 30
"""Bytes of unacknowledged messages after which the spool counts as full."""
_LENGTH = struct.Struct("<I")


class Spool:
    """Appends messages. A fault of the disk loses records, never a message on the wire."""

    def __init__(self, folder: str, *, segment: int = SEGMENT, limit: int = LIMIT) -> None:
        self._folder = folder
        self._segment = segment
        self._limit = limit
        self._fd = -1
        self._size = 0
        self._total = 0
        self.number = 0
        """Number of the newest message."""
        self.lost = 0
        """How many messages could not be kept."""

    def append(self, frames: Sequence[bytes]) -> int:
        """Keep one message; its number."""
        self.number += 1
        try:
            self._write(_record(self.number, frames))
        except OSError:
            self.lost += 1
        return self.number

    def _write(self, record: bytes) -> None:
        if self._fd < 0:
            self._open()
        if self._total > self._limit:
            self._measure()
        view = memoryview(record)
        done = 0
        try:
            while done < len(record):
                done += os.write(self._fd, view[done:])
        except OSError:
            self._take_back()
            raise
        self._size += done
        self._total += done
        if self._size >= self._segment:
            self._close()

    def _open(self) -> None:
        path = os.path.join(self._folder, f"{self.number:020d}.spool")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._size = 0

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._close()  # its torn end is skipped by readers; the next record starts anew

    def _measure(self) -> None:
        """What is really there: the host deletes segments behind our back."""
        with os.scandir(self._folder) as entries:
            self._total = sum(entry.stat().st_size for entry in entries)
        if self._total > self._limit:
            raise OSError("the spool is full")


def _record(number: int, frames: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    body = b"".join(parts)
    return HEADER.pack(MAGIC, len(body), zlib.crc32(body), number) + body
