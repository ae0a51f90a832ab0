"""Requests to one kernel and their replies, whatever order they come in."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from cave.errors import CaveError, KernelDied, LeaseLost
from cave.kernel.cells import Cell
from cave.kernel.wire import Channel, Codec, Message, Wire

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """One ZMQ context per process: its threads serve all kernels."""
    pid = os.getpid()
    if pid not in _contexts:
        _contexts.clear()
        _contexts[pid] = zmq.Context()
        _contexts[pid].set(zmq.MAX_SOCKETS, 65_000)
    return _contexts[pid]


class Refused(CaveError):
    """The kernel answered a request with an error."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.name = str(content.get("ename", ""))
        self.text = str(content.get("evalue", ""))
        self.module = str(content.get("module") or "")
        """The module that the kernel lacks, when that is the cause."""
        super().__init__(f"{self.name}: {self.text}")


class Client:
    """Sends requests and hands replies to those who wait for them."""

    def __init__(self, base: str, codec: Codec) -> None:
        self._wire = Wire(context(), base, codec)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self.cells: dict[str, Cell] = {}
        """Cells that were sent and have not ended, by the id of their request."""
        self._died: KernelDied | None = None
        self._wire.on("shell", self._on_reply)
        self._wire.on("control", self._on_reply)

    @property
    def wire(self) -> Wire:
        return self._wire

    def start(self, run: Cell, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Send a cell."""
        self.cells[run.msg_id] = run
        self._wire.send("shell", "execute_request", content, msg_id=run.msg_id, metadata=metadata)

    async def request(
        self,
        channel: Channel,
        kind: str,
        content: Mapping[str, Any] | None = None,
        *,
        lease: int | None = None,
        buffers: Sequence[bytes | memoryview] = (),
    ) -> Message:
        """Ask and wait. Raises `KernelDied`, `LeaseLost`, `Refused`."""
        self.check()
        msg_id = secrets.token_hex(8)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[msg_id] = waiting
        metadata = {} if lease is None else {"cave": {"lease": lease}}
        try:
            self._wire.send(
                channel, kind, content or {}, msg_id=msg_id, metadata=metadata, buffers=buffers
            )
            message: Message = await waiting
        finally:
            del self._waiting[msg_id]
        return whole(message)

    def expect(self, msg_id: str) -> asyncio.Future[Message]:
        """The reply to a request that another message carries. Raises `KernelDied`."""
        self.check()
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[msg_id] = waiting
        waiting.add_done_callback(lambda _: self._waiting.pop(msg_id, None))
        return waiting

    def check(self) -> None:
        """Raises `KernelDied` when the kernel is known to be dead."""
        if self._died is not None:
            raise self._died

    def fail(self, error: KernelDied) -> None:
        """The kernel is dead: nobody waits any longer."""
        self._died = error
        for waiting in tuple(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(error)

    def close(self) -> None:
        self._wire.close()

    def _on_reply(self, message: Message) -> None:
        run = self.cells.get(message.parent)
        if run is not None and message.type == "execute_reply":
            run.reply(message)
        waiting = self._waiting.get(message.parent)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)


def whole(reply: Message) -> Message:
    """The reply, unless it tells of a fault. Raises `LeaseLost`, `Refused`."""
    if reply.content.get("status") == "error":
        raise fault(reply.content)
    return reply


def fault(content: Mapping[str, Any]) -> CaveError:
    """The error that a reply tells of."""
    if content.get("ename") == "LeaseLost":
        return LeaseLost(str(content.get("evalue")))
    return Refused(content)
