"""Jupyter messages as frames, on ZMQ sockets that an asyncio loop watches.

Only what a host needs of the protocol: building and signing requests, and taking replies
apart without trusting them. Nothing that arrives can raise in the reader: a frame that is
malformed, badly signed or too deep is skipped and counted, and so is a message that its
receiver cannot use. What shows something and is too deep becomes a line that says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import zmq

from cave.inkernel import frames

DELIMITER = b"<IDS|MSG>"
MAX_MESSAGE = 64 << 20
"""Bytes of one frame that libzmq takes in; a peer that sends more is disconnected."""
DEPTH = 100
"""How deep a message may be nested: whoever walks through it needs frames for each level."""
LARGEST = 1 << 53
"""Numbers from a kernel are below it: any JSON and any database holds them."""
_BATCH = 100
"""Messages taken in before the loop may do something else."""
_QUEUED = 100
"""Messages that wait for us here; more wait in the kernel, in its own memory."""

_text = json.JSONEncoder(separators=(",", ":")).encode  # made once, not for every message
_value = json.JSONDecoder().decode

_SHOWN = {
    "display_data": "display_data",
    "execute_result": "execute_result",
    "update_display_data": "display_data",
}
"""Kinds of messages that show something, and as what they do when nothing is left of it."""

Channel = Literal["shell", "iopub", "stdin", "control"]
_KINDS = {
    "shell": (1, zmq.DEALER),
    "iopub": (2, zmq.SUB),
    "stdin": (3, zmq.DEALER),
    "control": (5, zmq.DEALER),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message, verified."""

    type: str
    id: str
    parent: str
    """The id of the request that it belongs to, or ''."""
    content: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    buffers: Sequence[bytes | memoryview] = ()
    number: int = 0
    """Of IOPub messages of our kernels: their place in the order of all."""


class Malformed(ValueError):
    """Frames that are not a message of ours."""


class TooDeep(Malformed):
    """Frames whose JSON is nested deeper than `DEPTH`."""


class Codec:
    """Messages to frames and back, with the connection's key."""

    def __init__(self, key: str) -> None:
        self._auth = hmac.new(key.encode(), digestmod=hashlib.sha256)
        self.session = secrets.token_hex(8)

    def encode(
        self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any], msg_id: str
    ) -> list[bytes]:
        header = {
            "msg_id": msg_id,
            "msg_type": kind,
            "session": self.session,
            "username": "cave",
            "date": datetime.now(UTC).isoformat(),
            "version": "5.4",
        }
        parts = [_pack(part) for part in (header, {}, metadata, content)]
        return [DELIMITER, self._sign(parts), *parts]

    def decode(self, frames: Sequence[bytes], *, signed: bool = True) -> Message:
        """Take a message apart. Raises `Malformed`."""
        try:
            at = frames.index(DELIMITER)
            signature, *parts = frames[at + 1 : at + 6]
            if signed and not hmac.compare_digest(signature, self._sign(parts)):
                raise Malformed("bad signature")
            header, parent, metadata = (_unpack(part) for part in parts[:3])
            kind, content = _content(str(header["msg_type"]), *parts[3:])
            number = int(frames[at - 1]) if at > 1 else 0
            if not 0 <= number < LARGEST:
                raise Malformed("a number that no message has")
            return Message(
                kind,
                str(header["msg_id"]),
                str(parent.get("msg_id", "")),
                content,
                metadata,
                frames[at + 6 :],
                number,
            )
        except Malformed:
            raise
        except (ValueError, KeyError, RecursionError, TypeError, AttributeError) as exc:
            raise Malformed(f"{type(exc).__name__}: {exc}"[:200]) from exc

    def _sign(self, parts: Sequence[bytes]) -> bytes:
        mac = self._auth.copy()
        for part in parts:
            mac.update(part)
        return mac.hexdigest().encode()


def _pack(value: Mapping[str, Any]) -> bytes:
    return _text(value).encode() if value else b"{}"


def _unpack(part: bytes) -> dict[str, Any]:
    if part == b"{}":
        return {}
    value = parsed(part)
    if not isinstance(value, dict):
        raise Malformed("a part of a message is not an object")
    return value


def _content(kind: str, part: bytes) -> tuple[str, dict[str, Any]]:
    """What a message says, and its kind: a display that is too deep says that it was one."""
    try:
        return kind, _unpack(part)
    except TooDeep:
        if kind not in _SHOWN:
            raise
        told = f"[an output was left out: its data is nested more than {DEPTH} levels deep]"
        return _SHOWN[kind], {"data": {"text/plain": told}, "metadata": {}}


def parsed(text: bytes) -> Any:
    """A value from JSON that a kernel made. Raises `ValueError`, also when it is too deep."""
    try:
        value = _value(str(text, "utf-8"))
    except RecursionError as exc:
        raise TooDeep("nested too deep") from exc
    if text.count(b"[") + text.count(b"{") > DEPTH and _deep(value):
        raise TooDeep("nested too deep")
    return value


def _deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for part in inner for one in part if isinstance(one, dict | list)]
        if not level:
            return False
    return True


class Wire:
    """The channels of one kernel, read on the running loop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], base: str, codec: Codec) -> None:
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._receivers: dict[str, Callable[[Message], None]] = {}
        self._again: set[str] = set()
        self.skipped = 0
        """How many frames were not messages of ours."""
        for name, (port, kind) in _KINDS.items():
            socket = context.socket(kind)
            socket.linger = 0
            socket.set_hwm(0)
            socket.rcvhwm = _QUEUED
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
            socket.connect(f"ipc://{base}-{port}")
            self._sockets[name] = socket

    def on(self, channel: Channel, receive: Callable[[Message], None]) -> None:
        """Call `receive` with each message of the channel from now on."""
        self._receivers[channel] = receive
        self._loop.add_reader(self._sockets[channel].fileno(), self._take, channel)
        self._take(channel)

    def subscribe(self) -> None:
        self._sockets["iopub"].subscribe(b"")

    def send(
        self,
        channel: Channel,
        kind: str,
        content: Mapping[str, Any],
        *,
        msg_id: str,
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes | memoryview] = (),
    ) -> None:
        told = self._codec.encode(kind, content, metadata or {}, msg_id)
        frames.send(self._sockets[channel], [*told, *buffers])
        self._take(channel)  # sending may use up the edge that announced a message

    def close(self) -> None:
        for name, socket in self._sockets.items():
            if name in self._receivers and not self._loop.is_closed():
                self._loop.remove_reader(socket.fileno())
            socket.close(linger=0)
        self._sockets.clear()

    def _take(self, channel: str) -> None:
        self._again.discard(channel)
        if channel not in self._receivers:
            return
        for _ in range(_BATCH):
            if (socket := self._sockets.get(channel)) is None:
                return
            if (arrived := frames.receive(socket)) is None:
                return
            self.take_in(channel, arrived)
        if channel not in self._again:
            self._again.add(channel)
            self._loop.call_soon(self._take, channel)

    def take_in(self, channel: str, arrived: Sequence[bytes]) -> None:
        """Hand one message to its receiver; the next is read whatever becomes of this."""
        try:
            message = self._codec.decode(arrived)
        except Malformed:
            self.skipped += 1
            return
        try:
            self._receivers[channel](message)
        except Exception as exc:  # noqa: BLE001 -- told below
            self.skipped += 1
            told = f"a message from a kernel cannot be used: {message.type[:40]!r}"
            self._loop.call_exception_handler({"message": told, "exception": exc})
