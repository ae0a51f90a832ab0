"""Bytes in both directions between a client and a host, until one of them is done."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Protocol

_PIECE = 1 << 16
_LEFT = getattr(select, "POLLRDHUP", 0)
"""The other side will send nothing more."""
LINGER = 60.0
"""Seconds without a byte that a host may take when its client has sent all that it will."""


class Filter(Protocol):
    """What is passed on of what comes."""

    done: bool
    """Nothing more is read."""

    def feed(self, data: bytes) -> bytes:
        """What is passed on of the next bytes."""
        ...


class _Way:
    """One direction."""

    def __init__(
        self, source: socket.socket, target: socket.socket, what: Filter, begun: bytes = b""
    ) -> None:
        self.source, self.target, self.what = source, target, what
        self.waiting = begun
        """Bytes that the target has not taken yet; nothing is read as long as there are."""
        self.ended = False
        """Nothing more comes from the source."""

    @property
    def reads(self) -> bool:
        return not (self.waiting or self.ended or self.what.done)

    @property
    def over(self) -> bool:
        return self.ended and not self.waiting

    def go(self, ready: dict[int, int]) -> None:
        """Write, or read, what can be without waiting."""
        with contextlib.suppress(BlockingIOError):
            if self.waiting:
                if self.target.fileno() in ready:
                    self.waiting = self.waiting[self.target.send(self.waiting) :]
            elif self.reads and self.source.fileno() in ready:
                data = self.source.recv(_PIECE)
                self.ended = not data
                self.waiting = self.what.feed(data)
                if self.ended:
                    self.target.shutdown(socket.SHUT_WR)


def relay(
    client: socket.socket, host: socket.socket, up: Filter, down: Filter, begun: bytes
) -> None:
    """Pass on `begun` and what the client sends, through `up`, and what the host sends, through
    `down`. Returns when the host has ended, or the client will not hear it; raises `OSError`
    where a connection breaks, and what the filters raise."""
    for one in (client, host):
        one.settimeout(0)
    there = _Way(client, host, up, begun)
    back = _Way(host, client, down)
    while not back.over:
        ready = _ready(there, back)
        if not ready or (up.done and ready.get(client.fileno(), 0) & _LEFT):
            return
        there.go(ready)
        back.go(ready)


def _ready(there: _Way, back: _Way) -> dict[int, int]:
    """The sockets that something can be done with; nothing after too long a silence."""
    poll = select.poll()
    client = select.POLLIN * there.reads | select.POLLOUT * bool(back.waiting)
    host = select.POLLIN * back.reads | select.POLLOUT * bool(there.waiting)
    if there.what.done and not there.waiting:
        client |= _LEFT
    for one, wanted in ((there.source, client), (back.source, host)):
        if wanted:  # one that is not waited for would still wake us when it breaks
            poll.register(one, wanted)
    return dict(poll.poll(1000 * LINGER if there.ended else None))
