"""The door: descriptors come and go beside the messages.

The host connects to a SOCK_SEQPACKET socket that it bound itself and handed to us, so a new
host reaches the kernel by path also when no new socket can be made here.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
import time
from typing import Any

_WAIT = 10.0
_FORGOTTEN = 60.0
"""Seconds after which nobody comes for what was given: its host has died."""
MOST = 250
"""Descriptors that one message carries; Linux takes 253."""


class Door:
    """Descriptors that were given and not yet used, or wait to be taken."""

    def __init__(self, fd: int) -> None:
        self._listener = socket.socket(fileno=fd)
        self._listener.setblocking(False)  # noqa: FBT003
        self._given: dict[str, tuple[float, list[int]]] = {}
        self._lent: dict[str, int] = {}
        self._changed = threading.Condition()

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve on `loop` (the control thread's, free while cells run)."""
        loop.call_soon_threadsafe(loop.add_reader, self._listener.fileno(), self._accept)

    def hold(self, token: str, *fds: int) -> None:
        """Keep `fds` (ours from now on) under `token`."""
        now = time.monotonic()
        with self._changed:
            for old in [t for t, (since, _) in self._given.items() if now - since > _FORGOTTEN]:
                _close(self._given.pop(old)[1])
            self._given[token] = now, list(fds)
            self._changed.notify_all()

    def lend(self, token: str, fd: int) -> None:
        """Let hosts take `fd` (ours from now on), as often as they come, until `withdraw`."""
        self._lent[token] = fd

    def withdraw(self, token: str) -> None:
        """It is not needed any more."""
        if (fd := self._lent.pop(token, None)) is not None:
            os.close(fd)

    def claim(self, token: str) -> int:
        """The one descriptor given under `token`; the caller closes it."""
        first, *more = self.claim_all(token)
        _close(more)
        return first

    def claim_all(self, token: str) -> list[int]:
        """The descriptors given under `token`; the caller closes them."""
        with self._changed:
            self._changed.wait_for(lambda: token in self._given, _WAIT)
            if token not in self._given:
                raise LookupError(f"no descriptor came through the door for {token!r}")
            return self._given.pop(token)[1]

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(_WAIT)
            try:
                self._serve(connection)
            except (OSError, ValueError, LookupError):
                return

    def _serve(self, connection: socket.socket) -> None:
        fds: list[int]
        data, fds, _, _ = socket.recv_fds(connection, 4096, MOST)
        if not _same_user(connection):
            _close(fds)
            return
        request: dict[str, Any] = json.loads(data)
        token = str(request["token"])
        if request["op"] == "give" and len(fds) == request.get("count", 1):
            self.hold(token, *fds)
            connection.send(b'{"status": "ok"}')
            return
        _close(fds)
        if request["op"] == "take" and token in self._lent:
            fd = os.dup(self._lent[token])
            try:
                socket.send_fds(connection, [b'{"status": "ok"}'], [fd])
            finally:
                os.close(fd)
        elif request["op"] == "take":
            held = self.claim_all(token)
            try:
                socket.send_fds(connection, [b'{"status": "ok"}'], held)
            finally:
                _close(held)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _same_user(connection: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder's mode keeps others out
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in {0, os.getuid()}
