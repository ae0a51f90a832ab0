"""Calls of skills go to the host and come back: the one owner of the stdin channel.

All that is sent or received there passes the loop of the shell channel's thread, so any
thread may call while cells run. A call is known until it is answered: what waits when a host
goes away is sent again to the next one, which says `cave_serve_request` under its lease.
Clients that are asked for input are told apart by their identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hmac
import json
import os
import queue
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_client.session import DELIM

from . import frames, objects

if TYPE_CHECKING:
    from .kernel import Kernel, Message

_EOF = "\x04"
_pack = json.JSONEncoder(separators=(",", ":")).encode
_unpack = json.JSONDecoder().decode


class Call:
    """One message to the host that wants an answer."""

    def __init__(self, content: Message, frames: Sequence[bytes]) -> None:
        self.content = content
        self.frames = frames
        self.answered: Callable[[Message], None] = _forget
        self.sent = 0
        """To which of the hosts that served, counted from 1; 0 is none yet."""

    @property
    def id(self) -> tuple[str, str]:
        return self.content["call"], self.content["phase"]


def parts_of(message: Message) -> list[Any]:
    """The parts of a parcel that the host sent, in memory that is writable."""
    if lost := message["content"].get("lost"):
        raise OSError(lost)
    arrived = message["content"].get("token")
    return list(message["buffers"]) if arrived else [*map(bytearray, message["buffers"])]


def _forget(_: Message) -> None:
    """Nobody waits for it."""


class Calls:
    """The stdin channel of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._loop: asyncio.AbstractEventLoop = kernel.shell_channel_thread.io_loop.asyncio_loop
        self._socket: Any = kernel.stdin_socket
        self._host: bytes | None = None
        self._hosts = 0
        """How many have said that they serve."""
        self._inline = False
        """Whether the door is gone: all goes through the channel."""
        self._open: dict[tuple[str, str], Call] = {}
        self._left: set[str] = set()
        """Effects that were interrupted while they waited for leave."""
        self._asked: dict[bytes, queue.SimpleQueue[str]] = {}
        self._loop.call_soon_threadsafe(self._attach)

    def _attach(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._arrive)
        self._arrive()

    # -- asking the host ---------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether a call has not been answered yet."""
        return bool(self._open)

    def make(self, content: Message, parts: Sequence[Any] = ()) -> Call:
        """A call with its parcel, which does not change any more."""
        return Call(content, self._packed(content, parts, self._kernel.settings.door.lend))

    def _packed(
        self, content: Message, parts: Sequence[Any], keep: Callable[[str, int], None]
    ) -> list[bytes]:
        """The frames of a parcel; what is large lies behind the door instead."""
        views = [memoryview(part).cast("B") for part in parts]
        if sum(view.nbytes for view in views) < objects.INLINE:
            return [bytes(view) for view in views]
        if self._inline:
            content["layout"] = [[0, view.nbytes] for view in views]
            return objects.slices(views)
        fd, content["layout"] = objects.depart(views, self._kernel.settings.runtime)
        content["token"] = secrets.token_hex(8)
        keep(content["token"], fd)
        return []

    def wait(self, call: Call) -> Message:
        """Send and wait for the answer, in any thread but the loop's."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        call.answered = inbox.put
        try:
            self.tell(call)
            while (message := inbox.get())["msg_type"] != "cave_call_reply":
                self._serve(call, message)
        except BaseException:
            self._leave(call)
            raise
        return message

    async def reply(self, call: Call) -> Message:
        """Send, and wait on the running loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Message] = loop.create_future()
        context = contextvars.copy_context()

        def take(message: Message) -> None:
            if message["msg_type"] != "cave_call_reply":
                self._serve(call, message)
            elif not done.done():
                done.set_result(message)

        def answered(message: Message) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(take, message, context=context)

        call.answered = answered
        try:
            self.tell(call)
            return await done
        except BaseException:
            self._leave(call)
            raise

    def tell(self, call: Call) -> None:
        """Send without waiting; it is sent again until a host has answered."""
        self._open[call.id] = call
        self._loop.call_soon_threadsafe(self._send_call, call)

    def _leave(self, call: Call) -> None:
        """Nobody waits for the answer any more."""
        call.answered = _forget
        phase = call.content["phase"]
        if phase == "end":
            return  # what an effect has done is to be known in any case
        if phase == "begin":
            self._left.add(call.content["call"])
        self._close(call)
        self._loop.call_soon_threadsafe(
            self._send, "cave_call_cancel", {"call": call.content["call"]}
        )

    def _close(self, call: Call) -> None:
        self._open.pop(call.id, None)
        if token := call.content.get("token"):
            self._kernel.settings.door.withdraw(token)

    # -- on the loop -------------------------------------------------------------------------

    def _send_call(self, call: Call) -> None:
        if self._host is not None and call.id in self._open and call.sent < self._hosts:
            call.sent = self._hosts
            self._send("cave_call", call.content, call.frames)

    def _send(self, kind: str, content: Message, buffers: Sequence[bytes] = ()) -> None:
        if self._host is None:
            return
        header = {"msg_type": kind, "msg_id": secrets.token_hex(8)}
        parts = [_pack(header).encode(), b"{}", b"{}", _pack(content).encode()]
        signature = self._kernel.session.sign(parts)
        frames.send(self._socket, [self._host, DELIM, signature, *parts, *buffers])
        self._arrive()  # sending may use up the edge that announced a message

    def _arrive(self) -> None:
        """Take in what has come, without Jupyter's `Session`, which is ten times slower."""
        while (arrived := frames.receive(self._socket)) is not None:
            try:
                ident, message = self._read(arrived)
            except (ValueError, KeyError, TypeError, RecursionError) as exc:
                self._kernel.log.warning("a message on stdin cannot be read: %r", exc)
                continue
            self._receive(ident, message)

    def _read(self, arrived: list[bytes]) -> tuple[bytes, Message]:
        at = arrived.index(DELIM)
        signature, *parts = arrived[at + 1 : at + 6]
        if not hmac.compare_digest(signature, self._kernel.session.sign(parts)):
            raise ValueError("bad signature")
        header, _, metadata, content = (_unpack(str(part, "utf-8")) for part in parts)
        kind, buffers = header["msg_type"], arrived[at + 6 :]
        if not isinstance(content, dict) or not isinstance(metadata, dict):
            raise TypeError("a part is not an object")
        made = {"msg_type": kind, "metadata": metadata, "content": content, "buffers": buffers}
        return arrived[0], made

    def _receive(self, ident: bytes, message: Message) -> None:
        kind = message["msg_type"]
        if kind == "input_reply":
            if (asked := self._asked.pop(ident, None)) is not None:
                asked.put(str(message["content"].get("value", "")))
        elif kind == "cave_serve_request":
            self._serve_from_now_on(ident, message)
        elif ident == self._host and self._kernel.heeds(message):
            self._take(message)

    def _serve_from_now_on(self, ident: bytes, message: Message) -> None:
        if not self._kernel.heeds(message):
            return
        self._host = ident
        self._hosts += 1
        self._inline = bool(message["content"].get("inline"))
        for call in list(self._open.values()):
            self._send_call(call)

    def _take(self, message: Message) -> None:
        """Give a message to the code that waits for it."""
        content = message["content"]
        key = content.get("call"), content.get("phase")
        call = self._open.get(key)
        if call is None:
            self._too_late(message)
            return
        self._claim(message)
        if message["msg_type"] == "cave_call_reply":
            self._close(call)
        call.answered(message)

    def _claim(self, message: Message) -> None:
        """Fetch the parcel that lies behind the door."""
        content = message["content"]
        if not content.get("token"):
            return
        try:
            fd = self._kernel.settings.door.claim(content["token"])
            message["buffers"] = objects.arrive(fd, content["layout"])
        except (LookupError, OSError) as exc:
            message["buffers"] = []
            content["lost"] = f"what the host sent did not arrive: {exc}"

    def _too_late(self, message: Message) -> None:
        content = message["content"]
        if content.get("token"):
            with contextlib.suppress(LookupError):
                os.close(self._kernel.settings.door.claim(content["token"]))
        if message["msg_type"] == "cave_call_visit":
            gone = {"ename": "RuntimeError", "evalue": "the call is over"}
            self._visited(message, {"status": "error", **gone})
        elif content.get("call") in self._left:
            self._left.discard(content["call"])
            if content.get("status") == "go":
                self._not_run(content)

    def _not_run(self, content: Message) -> None:
        """Leave came for an effect that was interrupted: say that it was not run."""
        why = {"name": "KeyboardInterrupt", "message": "interrupted before the skill began"}
        end = {
            **{key: content.get(key) for key in ("call", "key", "attempt")},
            "phase": "end",
            "status": "error",
            "error": {**why, "traceback": "", "bases": ["KeyboardInterrupt"]},
            "ran": False,
        }
        self.tell(Call(end, ()))

    # -- notes and visits, in the thread that waits ------------------------------------------

    def _serve(self, call: Call, message: Message) -> None:
        content = message["content"]
        if message["msg_type"] == "cave_call_note":
            print(str(content.get("text", "")))
            return
        try:
            reply, parts = self._visit(message)
            packed = self._packed(reply, parts, self._kernel.settings.door.hold)
        except Exception as exc:
            fault = {"ename": type(exc).__name__, "evalue": objects.text_of(exc)}
            self._visited(message, {"status": "error", **fault})
        else:
            self._visited(message, {"status": "ok", **reply}, packed)

    def _visit(self, message: Message) -> tuple[Message, Sequence[Any]]:
        from . import values

        content, shell = message["content"], self._kernel.shell
        if content["op"] == "get":
            if content["name"] not in shell.user_ns:
                raise KeyError(content["name"])
            kind, header, buffers = values.dump(
                content["name"], shell.user_ns[content["name"]], allow_pickle=False
            )
            return {"kind": kind}, (header, *buffers)
        header, *buffers = parts_of(message)
        bound = values.load(content["kind"], bytes(header), buffers)
        shell.user_ns.update(bound)
        shell.touched.add(bound)
        return {}, ()

    def _visited(self, message: Message, reply: Message, packed: Sequence[bytes] = ()) -> None:
        asked = {key: message["content"].get(key) for key in ("call", "phase", "visit")}
        self._loop.call_soon_threadsafe(self._send, "cave_call_visited", {**asked, **reply}, packed)

    # -- asking a person ---------------------------------------------------------------------

    def input(self, prompt: str, ident: Any, parent: Message, *, password: bool) -> str:
        """What the client that runs this cell types."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        client = bytes(ident[0] if isinstance(ident, list) else ident)
        typed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked[client] = typed
        content = {"prompt": prompt, "password": password}

        def send() -> None:
            session = self._kernel.session
            session.send(self._socket, "input_request", content, parent, ident=[client])
            self._arrive()

        self._loop.call_soon_threadsafe(send)
        try:
            value = typed.get()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted by user") from None
        finally:
            self._asked.pop(client, None)
        if value == _EOF:
            raise EOFError
        return value
