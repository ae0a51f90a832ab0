"""Whole messages on ZMQ sockets, frame by frame.

pyzmq's own `send_multipart` and `recv_multipart` make an enum for every frame, which takes
longer than the frame. Serves both sides: needs nothing but pyzmq.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

_MORE, _HAS_MORE = int(zmq.SNDMORE), int(zmq.RCVMORE)
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)


def send(socket: Any, frames: Sequence[bytes | memoryview]) -> None:
    """Send one message. Raises `zmq.ZMQError`."""
    *first, last = frames
    for frame in first:
        socket.send(frame, _MORE)
    socket.send(last)


def receive(socket: Any) -> list[bytes] | None:
    """The next message; None when there is none. Raises `zmq.ZMQError`."""
    if not socket.getsockopt(_EVENTS) & _POLLIN:
        return None
    frames = [socket.recv()]
    while socket.getsockopt(_HAS_MORE):
        frames.append(socket.recv())
    return frames
