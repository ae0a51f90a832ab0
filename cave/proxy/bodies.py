"""What of a connection belongs to a message: nothing behind its end is passed on."""

from __future__ import annotations

import re

from . import heads
from .heads import Refused

_LONGEST_LINE = 1 << 12


class Body:
    """The body of one request; what a client sends behind it goes nowhere."""

    def __init__(self, length: int | None) -> None:
        """`length` in bytes; None: in chunks."""
        self._left = length or 0
        self._chunks = length is None
        self._line = b""
        self._expects = "size" if length is None else "data"
        self.done = length == 0

    def feed(self, data: bytes) -> bytes:
        """What of the data is passed on. Raises `Refused`."""
        passed = b""
        while data and not self.done:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                passed += part
                self.done = not self._chunks and not self._left
                continue
            taken, data = self._read_line(data)
            passed += taken
        return passed

    def _read_line(self, data: bytes) -> tuple[bytes, bytes]:
        """The rest of a line between chunks, and what is behind it."""
        end = data.find(b"\n") + 1 or len(data)
        part, data = data[:end], data[end:]
        self._line += part
        if len(self._line) > _LONGEST_LINE:
            raise Refused(400, "a chunk's head is too long")
        if self._line.endswith(b"\n"):
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
                raise Refused(400, "a chunk's head is none")
            self._expects = self._after(line[:-2])
        return part, data

    def _after(self, line: bytes) -> str:
        """What is expected behind this line."""
        if self._expects == "end":  # of a chunk
            if line:
                raise Refused(400, "a chunk is longer than it says")
            return "size"
        if self._expects == "trailer":
            self.done = not line
            return "trailer"
        size = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e]*)?", line)
        if size is None:
            raise Refused(400, "a chunk's head is none")
        self._left = int(size[1], 16)
        return "end" if self._left else "trailer"


class Answer:
    """The answer to one request: its head is written anew, all behind it is passed on."""

    def __init__(self) -> None:
        self._head = b""
        self._rest = False
        self.begun = False
        """Whether anything was passed on."""
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """What of the data is passed on. Raises `Refused`."""
        if self._rest:
            return data
        self._head += data
        passed = b""
        while not self._rest and (end := self._head.find(b"\r\n\r\n") + 4) > 3:
            head, self._head = self._head[:end], self._head[end:]
            said, more = heads.answer(head)
            passed += said
            self.begun, self._rest = True, not more
        if self._rest:
            passed, self._head = passed + self._head, b""
        elif len(self._head) > heads.LONGEST:
            raise Refused(502, "the head of the host's answer is too long")
        return passed


class Tunnel:
    """Both directions of a CONNECT: all is passed on."""

    done = False

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        return data
