"""The kernel of a session: ipykernel's, with a fence, cell numbers and messages of our own."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipykernel.ipkernel import IPythonKernel
from IPython.core.error import StdinNotImplementedError
from traitlets import Type

from . import facts, retention
from .interrupts import Interrupts, signal_main_thread
from .mend import Mender
from .objects import Objects
from .observed import Observer
from .output import Publisher, Stream
from .shell import CLIP, Place, Shell, Text, clip

if TYPE_CHECKING:
    from jupyter_client.session import Session

    from .app import Settings

Message = dict[str, Any]

_FOREIGN = {
    "kernel_info_request",
    "complete_request",
    "inspect_request",
    "is_complete_request",
    "history_request",
    "comm_info_request",
    "connect_request",
}
_ON_CONTROL = {"kernel_info_request", "connect_request", "interrupt_request", "usage_request"}
_FREE = {"cave_hello_request", "cave_status_request", "cave_interrupt_request"}
"""Requests on the control channel that need no lease."""
_RUNS_CODE = {"comm_open", "comm_msg", "comm_close", "complete_request", "inspect_request"}
"""Requests that may run code of the user outside of cells."""
_BOUND = 10
"""How many long outputs stay bound as `_output_N`."""
_HINT = (
    "this kernel belongs to a cave session, which alone may run code in it; "
    "to let other clients in, type s.attach() in the session"
)
_NO_STDIN = (
    "this session has no stdin, so nobody can answer; put the value in with s.put(name=value), "
    "or write it into the cell"
)


@dataclass(slots=True)
class Running:
    """The cell that runs now."""

    cell: int | None
    msg_id: str
    since: float
    foreign: bool


class Kernel(IPythonKernel):
    """Serves one session's host, and whom it admits."""

    shell_class = Type(Shell)
    if TYPE_CHECKING:  # ours are always there
        session: Session
        shell: Shell
    _execute_sleep = 0  # output is in order without it

    def __init__(self, **kwargs: Any) -> None:
        self.settings: Settings = kwargs["parent"].settings
        self.publisher: Publisher = kwargs["iopub_thread"]
        self.running: Running | None = None
        self.writing: Any = None
        """What an image writes or reads now (`image.serve.Writing`)."""
        self.interrupts = Interrupts(lambda: self.running or self.writing)
        self.lease = 0
        self.admitted = False
        self._fence = threading.Lock()
        self._master = os.getpid()
        self._ended: dict[str, Any] = {}
        self._behind: tuple[Any, Any, Message] | None = None
        """The request for a cell that asks for an image, too."""
        self.begins: Message = {}
        """Where the cell that runs goes on, when an earlier run of it was cut."""
        self.base: str | None = None
        """The image that the host had on disk when it sent that cell."""
        self._bound: list[str] = []
        self._calls: Any = None
        self.observer: Observer | None = None
        """Notes what cells do to the world; from the kernel's start on."""
        self.skills: Any = None
        """What the host, and cells, have defined (`skills.Skills`); None before the first."""
        super().__init__(**kwargs)
        self.objects = Objects(self)
        self.mender = Mender(self.shell)
        self.shell_handlers.update(self.objects.handlers)
        keep = {name: self.control_handlers[name] for name in _ON_CONTROL}
        self.control_handlers = {
            **keep,
            "cave_hello_request": self._answer(self._hello),
            "cave_status_request": self._answer(self._status),
            "cave_interrupt_request": self._answer(self._interrupt),
            "cave_admit_request": self._answer(self._admit),
            "cave_end_request": self._answer(self._end),
            "shutdown_request": self._answer(self._end),
        }

    # -- the fence ---------------------------------------------------------------------------

    def should_handle(self, stream: Any, msg: Message, idents: Any) -> bool:
        """Whether a shell request may be served; if not, it is answered here."""
        kind = msg["header"]["msg_type"]
        cave = _cave(msg)
        self.publisher.activity()
        with self._fence:
            refusal = self._refusal(kind, cave)
            if refusal is None and kind == "execute_request":
                number = cave.get("cell")
                msg_id = msg["header"]["msg_id"]
                self.interrupts.reset()  # before it can be aimed at
                self.running = Running(number, msg_id, time.time(), foreign=number is None)
        if refusal is None:
            if kind in _RUNS_CODE:
                self.shell.touched.everything()
            return True
        reply = {"status": "error", "traceback": [], **refusal}
        if kind == "execute_request":
            reply["traceback"] = [f"{reply['ename']}: {reply['evalue']}"]
            self._publish("error", {k: reply[k] for k in ("ename", "evalue", "traceback")}, msg)
        self.session.send(stream, kind.replace("_request", "_reply"), reply, msg, idents)
        return False

    def _refusal(self, kind: str, cave: Message) -> dict[str, str] | None:
        if "lease" in cave:
            return self._fenced(cave["lease"])
        if self.admitted or kind in _FOREIGN:
            return None
        return {"ename": "NotAttached", "evalue": _HINT}

    def heeds(self, message: Message) -> bool:
        """Whether a message of a host on stdin is under the lease that counts."""
        lease = _cave(message).get("lease")
        with self._fence:
            return lease is not None and self._fenced(lease) is None

    def _fenced(self, lease: int) -> dict[str, str] | None:
        if lease < self.lease:
            return {
                "ename": "LeaseLost",
                "evalue": f"lease {lease} is over; the session is operated under {self.lease}",
            }
        self.lease = lease
        return None

    # -- control channel ---------------------------------------------------------------------

    def _answer(self, handle: Callable[[Message], Message]) -> Callable[..., Awaitable[None]]:
        """A control handler that checks the lease and sends what `handle` returns."""

        async def handler(stream: Any, ident: Any, parent: Message) -> None:
            kind = parent["header"]["msg_type"]
            lease = _cave(parent).get("lease")
            with self._fence:
                if lease is None and kind not in _FREE:
                    refusal: dict[str, str] | None = {"ename": "NotAttached", "evalue": _HINT}
                else:
                    refusal = self._fenced(lease) if lease is not None else None
                content = handle(parent["content"]) if refusal is None else refusal
            content = {"status": "ok" if refusal is None else "error", **content}
            reply = kind.replace("_request", "_reply")
            self.session.send(stream, reply, content, parent, ident)

        return handler

    def _hello(self, content: Message) -> Message:
        names = [str(name) for name in content.get("modules", ())]
        return {**facts.of_process(), "versions": facts.versions(names), **self._state()}

    def _status(self, _content: Message) -> Message:
        self.interrupts.kick()
        return self._state()

    def _interrupt(self, content: Message) -> Message:
        if "child" in content:
            self.objects.images.copier.kill()
            return {}
        if "image" in content:
            return self._interrupt_image(float(content["image"]))
        running, wanted = self.running, content.get("cell")
        if running is None or (wanted is not None and running.cell != wanted):
            return {"msg_id": None}
        self.interrupts.aim(running)
        return {"msg_id": running.msg_id}

    def _interrupt_image(self, longer: float) -> Message:
        """Stop what an image has been writing for `longer` seconds."""
        writing = self.writing
        if writing is None or time.monotonic() - writing.since < longer:
            return {"name": None}
        self.interrupts.aim(writing)
        return {"name": writing.name}

    def _admit(self, content: Message) -> Message:
        self.admitted = bool(content.get("admit", True))
        return {}

    def _end(self, content: Message) -> Message:
        self.finish(str(content.get("reason", "")))
        return {"restart": False}

    def _state(self) -> Message:
        spool = self.publisher.spool
        running = None
        if (now := self.running) is not None:
            place = next(iter(self.shell.places[-1:]), Place(0, 0, 0))
            running = {
                "cell": now.cell,
                "msg_id": now.msg_id,
                "since": now.since,
                **dataclasses.asdict(place),
            }
        return {
            "number": spool.number,
            "lost": spool.lost,
            "lease": self.lease,
            "admitted": self.admitted,
            "running": running,
        }

    def finish_idle(self) -> None:
        """Nobody uses this kernel: leave what no host has taken, and end; from any thread."""

        def end() -> None:
            if self.objects.imaged:
                self.objects.images.pending.write()
            self.finish("idle")

        self.io_loop.add_callback(end)

    def finish(self, reason: str = "") -> None:
        """Leave the main loop as soon as it is free; from any thread."""
        if reason:
            self.settings.note_reason(reason)
        self.io_loop.add_callback(self.io_loop.stop)

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        message = parent or self.get_parent(channel)
        if message and message["header"]["msg_type"].startswith("cave_"):
            return  # the host awaits the reply alone
        super()._publish_status(status, channel, parent)

    def _publish(self, kind: str, content: Message, parent: Message) -> None:
        topic = self._topic(kind)
        self.session.send(self.iopub_socket, kind, content, parent=parent, ident=topic)

    @property
    def kernel_info(self) -> Message:
        return {**super().kernel_info, "supported_features": []}

    async def poll_stopped_queue(self) -> None:
        """There is no debugger to poll: it would need a socket of its own."""

    def _send_interrupt_children(self) -> None:
        signal_main_thread()

    # -- cells -------------------------------------------------------------------------------

    def pre_handler_hook(self) -> None:
        if self.running is None:
            self.interrupts.reset()
        self.interrupts.install()

    def post_handler_hook(self) -> None:
        """Our SIGINT handler stays; outside its window it does nothing."""

    def boundary(self) -> None:
        """Between two statements of a cell: what was printed is on its way."""
        self.mender.between()
        self.interrupts.check()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Stream):
                stream.settle()

    async def dispatch_shell(self, *args: Any, **kwargs: Any) -> None:
        """As ipykernel's; then the image that a cell's request has asked for is taken, before
        any other request, and when all that the cell has put out is on its way."""
        await super().dispatch_shell(*args, **kwargs)
        behind, self._behind = self._behind, None
        if behind is not None:
            self.publisher.settle()
            with self._fence:
                refusal = self._refusal("cave_snapshot_request", _cave(behind[2]))
            await self.objects.image_behind(*behind, refusal)

    async def execute_request(self, stream: Any, ident: Any, parent: Message) -> None:
        running = self.running
        assert running is not None
        self._ended = {"status": "error", "ename": "Lost", "evalue": "the kernel lost the cell"}
        self.publisher.capture.begin(running.msg_id)
        self.publisher.follow(running.msg_id)
        begin, image = _cave(parent).get("begin"), _cave(parent).get("image")
        self.begins = begin if isinstance(begin, dict) else {}
        self.base = image.get("base") if isinstance(image, dict) else None
        if running.cell is not None:
            self._number(running.cell)
        if self.observer is not None:
            self.observer.begin(running.msg_id)
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            self._end_cell(running, parent)
            if isinstance(image, dict):
                self._behind = stream, ident, parent

    def _number(self, cell: int) -> None:
        """Let In and Out count as the session does."""
        self.shell.execution_count = cell
        history = self.shell.history_manager
        assert history is not None
        for inputs in (history.input_hist_parsed, history.input_hist_raw):
            del inputs[cell:]
            inputs.extend([""] * (cell - len(inputs)))

    def _end_cell(self, running: Running, parent: Message) -> None:
        content = {
            "cell": running.cell,
            "seconds": round(time.time() - running.since, 6),
            "interrupted": self.interrupts.fired,
            **self._ended,
            "observed": [] if self.observer is None else self.observer.end(),
        }
        publisher = self.publisher

        def publish() -> None:
            # in the IOPub thread, behind all output of the cell
            capped = publisher.quota.capped(running.msg_id)
            message = self.session.msg("cave_reply", {**content, "capped": capped}, parent=parent)
            frames = self.session.serialize(message, ident=self._topic("cave_reply"))
            publisher._really_send(frames)

        publisher.schedule(publish)
        publisher.follow(None)
        self.running = None
        if self.objects.imaged:
            self.objects.images.pending.cell_ended()

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> Message:  # noqa: FBT001
        self.mender.mend()
        try:
            reply: Message = await super().do_execute(code, silent, *args, **kwargs)
        except BaseException as exc:
            self.mender.mend_builtins()
            reply = self._broken(exc)
        self.mender.mend()
        self._show_payload(reply)
        if reply["status"] == "error":
            if reply["ename"] == "NoneType":  # raised by the `__repr__` of the result
                fault = self.shell.fault
                reply.update(ename=type(fault).__name__, evalue=Text(fault))
            reply["evalue"] = str(reply["evalue"])[:CLIP]
            reply["traceback"] = clip(list(reply["traceback"]))
            reply["hint"] = self._hint(str(reply["ename"]))
        self._leave_if_forked()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Stream):
                stream.drain()
                stream.settle()
        running = self.running
        delta, bound = self._observe(running.cell if running else None)
        self._ended = {
            "status": reply["status"],
            **{k: reply[k] for k in ("ename", "evalue", "traceback", "hint") if k in reply},
            "delta": delta,
            "bound": bound,
        }
        return reply

    def _hint(self, name: str) -> str:
        """What the namespace knows about the cell's fault."""
        from . import hints

        fault = self.shell.fault
        if type(fault).__name__ != name:
            return ""
        try:
            with self.interrupts.window():
                return hints.of(fault, self.shell.user_ns)
        except KeyboardInterrupt:
            return ""

    def _show_payload(self, reply: Message) -> None:
        """What IPython gives to a pager or to the next cell is text of this one: no one pages."""
        if self.running is None or self.running.foreign:
            return
        for part in reply.get("payload", ()):
            text = part.get("text")
            data = part.get("data") or ({"text/plain": text} if isinstance(text, str) else {})
            if data and part.get("source") in {"page", "set_next_input"}:
                self.shell.display_pub.publish(data)

    def _broken(self, exc: BaseException) -> Message:
        """The reply of a cell whose own exception could not even be told."""
        error = self.shell.last_execution_result and self.shell.last_execution_result.error_in_exec
        fault = error or exc
        return {
            "status": "error",
            "ename": type(fault).__name__,
            "evalue": str(Text(fault)),
            "traceback": clip(list(self.shell._last_traceback or [])),
            "execution_count": self.shell.execution_count - 1,
            "user_expressions": {},
            "payload": [],
            "engine_info": {},
        }

    def _observe(self, cell: int | None) -> tuple[Message, str]:
        """What the cell did to the namespace, and the name of its long text."""
        bound = self._bind_output()
        names = self.shell.touched.cell(self.shell)
        retention.trim(self.shell)
        try:
            with self.interrupts.window():
                return self.objects.namespace.delta(cell, names), bound
        except BaseException as exc:  # an interrupt, or an object that cannot be looked at
            self.log.warning("the namespace could not be compared: %r", exc)
            return {}, bound

    def _bind_output(self) -> str:
        text = self.publisher.capture.end()
        if text is None or self.running is None or self.running.cell is None:
            return ""
        name = f"_output_{self.running.cell}"
        self._bound.append(name)
        spaces = (self.shell.user_ns, self.shell.user_ns_hidden)
        for names in spaces:
            names[name] = text
        while len(self._bound) > _BOUND:
            old = self._bound.pop(0)
            for names in spaces:
                names.pop(old, None)
        return name

    def restored(self) -> None:
        """The namespace is that of a snapshot: long texts that it has bound are ours again."""
        names = [n for n in self.shell.user_ns if n[:8] == "_output_" and n[8:].isdecimal()]
        self._bound = sorted(names, key=lambda name: int(name[8:]))
        if self.observer is not None:
            self.observer.moved()

    def _leave_if_forked(self) -> None:
        if self.forked:  # a child of os.fork() that ran off the cell's end
            sys.stdout.flush()
            os._exit(0)

    @contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        with self.interrupts.awaiting(future):
            yield

    # -- stdin -------------------------------------------------------------------------------

    def raw_input(self, prompt: str = "") -> str:
        self._require_stdin()
        return str(super().raw_input(prompt))

    def getpass(self, prompt: str = "", stream: Any = None, **kwargs: Any) -> str:
        self._require_stdin()
        return str(super().getpass(prompt, stream, **kwargs))

    def _input_request(self, prompt: str, ident: Any, parent: Any, password: bool = False) -> str:  # noqa: FBT001, FBT002
        return str(self.calls.input(str(prompt), ident, parent, password=password))

    @property
    def calls(self) -> Any:
        """The owner of the stdin channel, from its first use on."""
        with self._fence:
            if self._calls is None:
                from .calls import Calls

                self._calls = Calls(self)
            return self._calls

    @property
    def forked(self) -> bool:
        """Whether this is a child that a cell has made."""
        return os.getpid() != self._master

    def _require_stdin(self) -> None:
        if not self._allow_stdin or self.running is None or not self.running.foreign:
            raise StdinNotImplementedError(_NO_STDIN)


def _cave(message: Message) -> Message:
    cave = message.get("metadata", {}).get("cave", {})
    return cave if isinstance(cave, dict) and isinstance(cave.get("lease", 0), int) else {}
