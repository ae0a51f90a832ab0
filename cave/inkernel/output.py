"""What leaves the kernel on IOPub: streams in order, numbered, spooled, capped on the wire.

Everything that is published passes `Publisher._really_send` in the IOPub thread. There it
gets its number, goes to the spool, and is sent unless its cell has put more than `CAP`
bytes on the wire; statuses, errors and replies always go out.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import math
import os
import re
import select
import struct
import termios
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread, OutStream
from jupyter_client.jsonutil import json_default

from .spool import Spool

CAP = 1 << 20
"""Bytes of output of one cell that go over the wire."""
CHUNK = 1 << 18
"""Characters of a stream per message, so that readers of the spool need little memory."""
BIND_FROM = 20_000
"""Characters from which a cell's text is bound as `_output_N`."""
BIND_UP_TO = 32 << 20
"""Characters up to which it is; longer text is only in the spool (and the host's blobs)."""
TOLD_EVERY = 1.0
"""Seconds between notes on late output that was not sent."""
_PARENTS = 256
_DRAIN = 100
_PATIENCE = 0.005
_ON_ITS_WAY = 0.05
_DELIMITER = b"<IDS|MSG>"
_MSG_ID = re.compile(rb'"msg_id": ?"([^"]*)"')
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    bad = error.object[error.start : error.end]
    return "".join(f"\\\\u{ord(char):04x}" for char in bad), error.end


codecs.register_error("cave-json", _escape)


def pack(value: Any) -> bytes:
    """JSON of a message part: lone surrogates become escapes that every client can show."""
    try:
        text = json.dumps(value, default=json_default, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(value), default=repr, ensure_ascii=False)
    return text.encode("utf-8", "cave-json")


def _plain(value: Any) -> Any:
    """JSON that every client can read of what an object gave as its representation."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    try:
        return value if isinstance(value, (str, int, float, type(None))) else json_default(value)
    except TypeError:
        return repr(value)


class Capture:
    """The whole text that the running cell puts out, for `_output_N`."""

    def __init__(self) -> None:
        self._cell: str | None = None
        self._parts: list[str] = []
        self._size = 0

    def begin(self, msg_id: str) -> None:
        self._cell, self._parts, self._size = msg_id, [], 0

    def add(self, msg_id: str | None, text: str) -> None:
        if msg_id != self._cell or self._size > BIND_UP_TO:
            return
        if "\r" in text:
            text = _OVERWRITTEN.sub("", text)
        self._size += len(text)
        if self._size <= BIND_UP_TO:
            self._parts.append(text)
        else:
            self._parts.clear()

    def end(self) -> str | None:
        """The text, when it is long enough to be worth a name and short enough to keep."""
        parts, size = self._parts, self._size
        self._cell, self._parts, self._size = None, [], 0
        return "".join(parts) if BIND_FROM < size <= BIND_UP_TO else None


class Quota:
    """How much output each cell (by the id of its request) has put on the wire."""

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, int] = OrderedDict()

    def admits(self, topic: bytes, header: bytes, size: int) -> bool:
        """Whether a message of that topic, parent header and size may go out; counts it."""
        if not _is_output(topic):
            return True
        found = _MSG_ID.search(header)
        parent = found[1] if found else b""
        sent = self._sent.pop(parent, 0) + size
        self._sent[parent] = sent
        if len(self._sent) > _PARENTS:
            self._sent.popitem(last=False)
        return sent <= CAP

    def capped(self, msg_id: str) -> bool:
        return self._sent.get(msg_id.encode(), 0) > CAP


def _is_output(topic: bytes) -> bool:
    return (
        topic.startswith((b"stream.", b"comm"))
        or topic == b"display_data"
        or topic.endswith(b".execute_result")
    )


class Publisher(IOPubThread):
    """The IOPub thread: numbers, spools and sends."""

    def __init__(self, socket: zmq.Socket[bytes], *, session: Any, spool: Spool) -> None:
        # pipe=True would bind a TCP socket for output of forked children
        super().__init__(socket, pipe=False, session=session)
        self.spool = spool
        self.quota = Quota()
        self.capture = Capture()
        self._running: str | None = None
        self._withheld: dict[str, tuple[dict[str, Any], int]] = {}
        self.activity: Callable[[], None] = lambda: None
        self.forked = False
        os.register_at_fork(after_in_child=self._fork)

    def _fork(self) -> None:
        self.forked = True

    def _really_send(self, msg: list[bytes], *args: Any, **kwargs: Any) -> None:
        if self.forked or self.closed:
            return
        self.activity()
        number = self.spool.append(msg)
        at = msg.index(_DELIMITER)
        topic = msg[0] if at else b""
        size = sum(map(len, msg[at + 5 :]))
        if self.quota.admits(topic, msg[at + 3], size):
            super()._really_send([*msg[:at], b"%d" % number, *msg[at:]], *args, **kwargs)
            self._welcome()
        else:
            self._withhold(msg[at + 3], size)

    def _welcome(self) -> None:
        """Sending may use up the edge that announced a subscriber: see to those who wait."""
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._handle_subscription(self.socket.recv_multipart())

    def settle(self) -> None:
        """Wait, not long, until all that was published so far is on the wire."""
        sent = threading.Event()
        self.schedule(sent.set)
        sent.wait(_ON_ITS_WAY)

    def follow(self, msg_id: str | None) -> None:
        """From here on in the queue the cell of that request runs."""
        self.schedule(lambda: setattr(self, "_running", msg_id))

    def _withhold(self, header: bytes, size: int) -> None:
        """Above the cap; the host reads that from the spool when the cell ends, if it will."""
        parent = json.loads(header)
        if parent.get("msg_id") == self._running:
            return
        msg_id = str(parent.get("msg_id"))
        if not self._withheld:
            self.io_loop.call_later(TOLD_EVERY, self._tell_withheld)
        _, before = self._withheld.get(msg_id, (parent, 0))
        self._withheld[msg_id] = (parent, before + size)

    def _tell_withheld(self) -> None:
        """Output of cells that have ended, and have used their cap, is named if not sent."""
        withheld, self._withheld = self._withheld, {}
        for parent, size in withheld.values():
            text = f"\n[... {size:,} bytes of late output are in the kernel's spool only ...]\n"
            content = {"name": "stdout", "text": text}
            note = self.session.msg("stream", content, parent=parent, metadata={"cave": "note"})
            # not a topic of output: the cap does not count it
            self._really_send(self.session.serialize(note, ident=b"cave.note"))


class Stream(OutStream):
    """stdout or stderr of cells.

    All text goes through the publisher's queue, so that it keeps its place among displays.
    `flush` waits until the text is in the spool, but not more often than every `_PATIENCE`
    seconds: a flood of small flushes is gathered.
    """

    flush_timeout = 600
    flush_interval = 0.1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._reading = threading.Lock()
        self._parent: dict[str, Any] | None = None
        self._key: frozenset[tuple[str, Any]] = frozenset()
        self._settled = 0.0
        self._flush_queued = False
        # "force": ipykernel would not watch the descriptors below a test runner
        super().__init__(*args, **{**kwargs, "watchfd": "force"})

    def write(self, string: str) -> int:
        """As ipykernel's, but the key of the parent is made once per cell, not per write."""
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        parent = self.parent_header
        with self._buffer_lock:
            if parent is not self._parent:
                self._parent, self._key = parent, frozenset(parent.items())
            self._buffers[self._key].write(string)
        self._schedule_flush()
        return len(string)

    def _schedule_flush(self) -> None:
        if self._flush_pending:
            return
        self._flush_pending = True
        later = lambda: self.pub_thread.schedule(self._flush)  # noqa: E731
        self.pub_thread.schedule(lambda: self._io_loop.call_later(self.flush_interval, later))

    def flush(self) -> None:
        if not self._buffers:
            return
        if time.monotonic() - self._settled > _PATIENCE:
            self.settle()
        elif not self._flush_queued:
            self._flush_queued = True
            self.pub_thread.schedule(self._flush)

    def settle(self) -> None:
        """Wait until all text so far is in the spool."""
        if self._buffers:
            super().flush()
            self._settled = time.monotonic()

    def _flush(self) -> None:
        self._flush_pending = self._flush_queued = False
        for parent, text in self._flush_buffers():
            for start in range(0, len(text), CHUNK):
                self._publish(parent, text[start : start + CHUNK])

    def _publish(self, parent: dict[str, Any], text: str) -> None:
        publisher = self.pub_thread
        publisher.capture.add(parent.get("msg_id"), text)
        content = {"name": self.name, "text": text}
        message = self.session.msg("stream", content, parent=parent)
        publisher._really_send(self.session.serialize(message, ident=self.topic))

    def _watch_pipe_fd(self) -> None:
        """Take what processes and C code write to the descriptor."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        fd, poll = self._fid, select.poll()
        assert fd is not None
        poll.register(fd, select.POLLIN)
        while self._should_watch:
            poll.poll()
            with self._reading:
                data = os.read(fd, 1 << 16)
                if not data:
                    return
                self.write(decode(data))

    def close(self) -> None:
        """What a cell that closes `sys.stdout` gets: all is written, and later cells can print."""
        self.settle()

    def drain(self) -> None:
        """Wait until what is in the pipe has become output of the cell that ends."""
        if self._fid is None:
            return
        for _ in range(_DRAIN):  # not longer: a process may write without end
            with self._reading:
                waiting = fcntl.ioctl(self._fid, termios.FIONREAD, b"\0\0\0\0")
            if not struct.unpack("i", waiting)[0]:
                return
            threading.Event().wait(0.0005)
