"""Starts the kernel: on the sockets of its host, or as an ordinary Jupyter kernel."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import gc
import io
import itertools
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from ipykernel.control import ControlThread
from ipykernel.heartbeat import Heartbeat
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.shellchannel import ShellChannelThread
from traitlets import Type
from traitlets.config import Config

from . import lent, refusals, threads
from .door import Door
from .idle import Idle
from .image import facade, hidden
from .kernel import Kernel
from .observed import Observer
from .output import Publisher, pack
from .spool import Spool

_PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "hb": 4, "control": 5}
_BANNER = "cave: an ordinary kernel; for a durable session type: import cave; cave.open(NAME)\n"


@dataclass(slots=True)
class Settings:
    """What the host passes beside the connection file."""

    fds: list[int]
    """Listening sockets: shell, iopub, stdin, heartbeat, control, door."""
    folder: str
    """Where this kernel's spool and notes are."""
    runtime: str
    idle_timeout: float | None
    pending_after: float | None
    """Seconds without a request for an image after which one is written; None: never."""
    door: Door

    def note_reason(self, reason: str) -> None:
        """Leave word why this kernel ends of itself."""
        path = Path(self.folder, "pending", "reason")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.with_suffix(".new").write_text(reason, encoding="utf-8")
        path.with_suffix(".new").replace(path)


class GivenHeartbeat(Heartbeat):
    """The heartbeat on a socket that is there already."""

    given = -1

    def _try_bind_socket(self) -> Any:
        self.socket.setsockopt(zmq.USE_FD, self.given)
        return self.socket.bind(f"ipc://{self.ip}-{self.port}")


class App(IPKernelApp):
    """ipykernel's application on given sockets: it never calls `socket()`."""

    settings: Settings
    kernel_class = Type(Kernel)

    def _try_bind_socket(self, s: Any, port: int) -> int:
        s.setsockopt(zmq.USE_FD, self.settings.fds[port - 1])
        s.setsockopt(zmq.SNDHWM, 0)
        s.setsockopt(zmq.RCVHWM, 0)
        s.bind(f"ipc://{self.ip}-{port}")
        return port

    def write_connection_file(self, **kwargs: Any) -> None:
        """The host wrote it."""

    def init_poller(self) -> None:
        """The keeper sees to it that none is left over."""

    def excepthook(self, etype: Any, evalue: Any, tb: Any) -> None:
        """A fault that ends the kernel must reach the log, not a pipe that dies with it."""
        lines = traceback.format_exception(etype, evalue, tb)
        fd = getattr(sys.stderr, "_original_stdstream_copy", 2)
        os.write(fd, "".join(lines).encode("utf-8", "backslashreplace"))

    def log_connection_info(self) -> None:
        self._ports = dict(_PORTS)

    def init_sockets(self) -> None:
        super().init_sockets()
        atexit.unregister(self.close)
        self.session.pack = pack

    def init_control(self, context: Any) -> None:
        self.control_socket = context.socket(zmq.ROUTER)
        self.control_socket.linger = 1000
        self.control_socket.router_handover = 1
        self._bind_socket(self.control_socket, self.control_port)
        self.debugpy_socket = context.socket(zmq.STREAM)
        self.debug_shell_socket = context.socket(zmq.DEALER)  # never connected: that needs socket()
        self.control_thread = ControlThread(daemon=True)
        self.shell_channel_thread = ShellChannelThread(context, daemon=True)

    def init_iopub(self, context: Any) -> None:
        self.iopub_socket = context.socket(zmq.XPUB)
        self.iopub_socket.linger = 1000
        # without it only the first subscriber ever gets iopub_welcome
        self.iopub_socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._bind_socket(self.iopub_socket, self.iopub_port)
        self.configure_tornado_logger()
        spool = Path(self.settings.folder, "spool")
        spool.mkdir(mode=0o700, exist_ok=True)
        self.iopub_thread = Publisher(
            self.iopub_socket, session=self.session, spool=Spool(str(spool))
        )
        self.iopub_thread.start()
        atexit.unregister(self.iopub_thread.stop)
        self.iopub_socket = self.iopub_thread.background_socket

    def init_heartbeat(self) -> None:
        self.heartbeat = GivenHeartbeat(zmq.Context(), ("ipc", self.ip, self.hb_port))
        self.heartbeat.given = self.settings.fds[self.hb_port - 1]
        self.heartbeat.start()

    def init_io(self) -> None:
        super().init_io()
        # as `excepthook`: to the log
        faulthandler.enable(file=sys.stderr._original_stdstream_copy)  # type: ignore[union-attr]

    def init_signal(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def start(self) -> None:
        """Serve until told to end; exceptions of the user's tasks do not end it."""
        self.kernel.start()
        self.kernel.interrupts.install()
        self.io_loop = self.kernel.io_loop
        self.settings.door.open(self.control_thread.io_loop.asyncio_loop)
        threads.remember_ours()
        threads.attribute()
        threads.plain_output_in_children()
        self.kernel.observer = Observer(self.kernel)
        hidden.remember()
        facade.install()
        self._watch_idle()
        if self.settings.pending_after is not None:
            self.io_loop.call_later(_QUIET, self._prepare_images)
        while True:
            try:
                self.io_loop.start()
            except (SystemExit, KeyboardInterrupt) as exc:
                self.log.warning("a task of a cell raised %r", exc)
            else:
                break

    def _prepare_images(self) -> None:
        """Import what the first image needs, if nobody waits for anything."""
        if self.kernel.running is None:
            from .image import ready, serve  # noqa: F401

            ready.load()

    def _watch_idle(self) -> None:
        if not self.settings.idle_timeout:
            return
        kernel = self.kernel
        idle = Idle(
            self.settings.idle_timeout,
            busy=lambda: kernel.running is not None or kernel._main_asyncio_lock.locked(),
            end=kernel.finish_idle,
        )
        self.iopub_thread.activity = idle.touch
        loop = self.control_thread.io_loop.asyncio_loop

        def look() -> None:
            if not idle.check():
                loop.call_later(idle.period, look)

        loop.call_soon_threadsafe(look)


class OrdinaryKernel(IPythonKernel):
    """What JupyterLab gets when it starts the kernelspec itself."""

    @property
    def banner(self) -> str:  # type: ignore[override]
        return _BANNER + str(super().banner)


def main(argv: list[str]) -> None:
    """Run a kernel until it is told to end. Does not return for a session's kernel."""
    parser = argparse.ArgumentParser(prog="cave.inkernel", add_help=False, allow_abbrev=False)
    parser.add_argument("--cave")
    options, rest = parser.parse_known_args(argv)
    if options.cave is None:
        IPKernelApp.launch_instance(argv=rest, kernel_class=OrdinaryKernel)
        return
    _serve(json.loads(options.cave), rest)


def _serve(given: dict[str, Any], argv: list[str]) -> None:
    settings = Settings(
        fds=given["fds"],
        folder=given["folder"],
        runtime=given["runtime"],
        idle_timeout=given["idle_timeout"],
        pending_after=given.get("pending_after"),
        door=Door(given["fds"][5]),
    )
    refusals.remember(given.get("held"))
    lent.remember()
    for fd in settings.fds:
        os.set_inheritable(fd, False)  # noqa: FBT003
    without_debugger()
    app = App.instance()
    app.settings = settings
    app.update_config(Config({"HistoryManager": {"enabled": False}, "IPKernelApp": _APP}))
    sys.argv = ["cave"]
    app.initialize(argv)
    app.start()
    _leave(app)


_QUIET = 0.05
"""Seconds after which a kernel that was started waits for its first cell."""
_APP = {"outstream_class": f"{__package__}.output.Stream", "parent_handle": 0}


def without_debugger() -> None:
    """Keep debugpy out: it costs start time and opens TCP sockets."""
    sys.modules["debugpy.server"] = None  # type: ignore[assignment]
    import ipykernel.debugger  # noqa: F401

    del sys.modules["debugpy.server"]


def _leave(app: App) -> None:
    """End as an interpreter does: exit functions, files flushed; but never hang in ZMQ."""
    app.kernel.shell.restore_sys_module_state()
    atexit._run_exitfuncs()
    app.kernel.shell.user_ns.clear()
    gc.collect()
    for file in _files():
        with contextlib.suppress(Exception):  # closed, read-only, broken
            file.flush()
    os._exit(0)


def _files() -> list[io.IOBase]:
    """What the collector knows of files. Only the bases of types are looked at, by the slots of
    `type` itself: a metaclass may do anything when it is asked or hashed."""
    objects, bases = gc.get_objects(), type.__dict__["__mro__"].__get__
    numbers = list(map(id, map(type, objects)))
    kinds = dict(zip(numbers, map(type, objects), strict=True))
    files = {number for number, kind in kinds.items() if any(b is _FILE for b in bases(kind))}
    return list(itertools.compress(objects, map(files.__contains__, numbers)))


_FILE = io.IOBase.__base__
"""The base of all files, those in C as well."""
