"""Reading a kernel's spool: every IOPub message that it wrote, in order.

The format is described in `cave/inkernel/spool.py`. The reader takes a spool that is still
being written, torn records, and garbage: what it cannot read it leaves out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cave.kernel.wire import LARGEST, Codec, Malformed, Message

_HEADER = struct.Struct("<4sIIQ")
_MAGIC = b"cave"
_LENGTH = struct.Struct("<I")
_BIGGEST = 1 << 30
_MOST = 10_000
"""Frames of one message."""
_PLAINLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a file is opened where a kernel may have put anything: no links, no waiting."""


def messages(
    folder: Path, codec: Codec, *, after: int = 0, upto: int | None = None
) -> Iterator[Message]:
    """The messages with `after < number <= upto`, in order; memory stays flat."""
    for number, body in _records(folder, after, upto):
        try:
            message = codec.decode(_frames(body), signed=False)  # the checksum was right
        except Malformed:
            continue
        yield dataclasses.replace(message, number=number)


def acknowledge(folder: Path, number: int) -> None:
    """Delete the segments that hold no message newer than `number`."""
    segments = _segments(folder)
    for segment, following in itertools.pairwise(segments):
        if _first(following) <= number + 1:
            with contextlib.suppress(OSError):  # a folder, or one that we may not change
                segment.unlink()


def size(folder: Path) -> int:
    """Bytes on disk."""
    return sum(segment.lstat().st_size for segment in _segments(folder))


def _segments(folder: Path) -> list[Path]:
    named = (path for path in folder.glob("*.spool") if path.stem.isdecimal())
    return sorted(path for path in named if path.stem.isascii())


def _first(segment: Path) -> int:
    return int(segment.stem)


def _records(folder: Path, after: int, upto: int | None) -> Iterator[tuple[int, bytes]]:
    segments = _segments(folder)
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        if following is not None and _first(following) <= after + 1:
            continue
        if upto is not None and _first(segment) > upto:
            return
        try:
            file = os.fdopen(os.open(segment, _PLAINLY), "rb")
        except OSError:
            continue
        with file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                yield from _in_segment(file, after, upto)


def _in_segment(file: BinaryIO, after: int, upto: int | None) -> Iterator[tuple[int, bytes]]:
    while len(head := file.read(_HEADER.size)) == _HEADER.size:
        magic, length, checksum, number = _HEADER.unpack(head)
        beyond = number >= LARGEST or (upto is not None and number > upto)
        if magic != _MAGIC or length > _BIGGEST or beyond:
            return
        if number <= after:
            file.seek(length, 1)
            continue
        body = file.read(length)
        if len(body) < length:
            return
        if zlib.crc32(body) == checksum:
            yield number, body


def _frames(body: bytes) -> list[bytes]:
    frames: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(body) and len(frames) < _MOST:
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        frames.append(body[at : at + length])
        at += length
    return frames
