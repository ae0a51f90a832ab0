"""The shell: cells run statement by statement, and say where they are."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import sys
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core import interactiveshell
from traitlets import Type

from . import lanes
from .image.touch import Touch
from .progress import Progress

CLIP = 100_000
"""Characters of an error's text and traceback that leave the kernel."""
FRAMES = 20
"""Calls that a traceback shows at its beginning and at its end."""


def _warn(message: Any, *args: Any, **kwargs: Any) -> None:
    if not str(message).startswith("To exit:"):  # one cannot, and `ask_exit` says so
        warnings.warn(message, *args, **kwargs)


interactiveshell.warn = _warn  # type: ignore[attr-defined]


@dataclass(slots=True)
class Place:
    """Where a cell is: the statement (1 is the first), of how many, and its line."""

    statement: int
    of: int
    line: int


class DisplayHook(ZMQShellDisplayHook):
    """Results of cells, counted into the cell's text."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        super().write_format_data(format_dict, md_dict)
        _capture(self, format_dict)


class DisplayPublisher(ZMQDisplayPublisher):
    """Displays of cells, counted into the cell's text."""

    def publish(self, data: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> None:
        super().publish(data, metadata, **kwargs)  # the third, `source`, is long deprecated
        _capture(self, data)


def _capture(source: Any, data: Any) -> None:
    text = data.get("text/plain") if isinstance(data, dict) else None
    if isinstance(text, str):
        publisher = source.pub_socket.io_thread
        publisher.capture.add(source.parent_header.get("msg_id"), text + "\n")


class Shell(ZMQInteractiveShell):
    """IPython's shell with a place, a window for interrupts, and an exit that does not."""

    displayhook_class = Type(DisplayHook)
    display_pub_class = Type(DisplayPublisher)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.places: list[Place] = []
        """The running cell's place; further ones are cells that it runs itself."""
        self.fault: BaseException | None = None
        """The exception whose traceback was shown last."""
        self._frames_cut = 0
        self.touched = Touch()
        """Names that cells have named."""
        super().__init__(*args, **kwargs)
        self.progress = Progress(self.kernel)
        """How far the running cell has come."""

    async def run_ast_nodes(
        self,
        nodelist: list[ast.stmt],
        cell_name: str,
        interactivity: str = "last_expr",
        compiler: Any = compile,
        result: Any = None,
    ) -> bool:
        """Run the statements one by one. True when one raised."""
        place = Place(0, len(nodelist), 0)
        self.places.append(place)
        try:
            with self._lane(), self.kernel.interrupts.window():
                for node in list(nodelist):
                    place.statement += 1
                    place.line = getattr(node, "lineno", 0)
                    outer = len(self.places) == 1
                    if outer and self.progress.skips(place.statement, node):
                        continue
                    last = place.statement == place.of
                    mode = interactivity if last or interactivity == "all" else "none"
                    if await super().run_ast_nodes([node], cell_name, mode, compiler, result):
                        self._stop_outer_cell(result)
                        return True
                    self.kernel.boundary()
                    if outer and not last:
                        self.progress.boundary()
        except KeyboardInterrupt as exc:  # between two statements
            result.error_in_exec = exc
            self.showtraceback()
            return True
        finally:
            self.places.remove(place)
            if not self.places:
                self.progress.end()
        return False

    def _lane(self) -> contextlib.AbstractContextManager[None]:
        """Calls of skills count from 1 in each cell; what a cell runs itself is part of it."""
        running = self.kernel.running
        if running is None or len(self.places) > 1:
            return contextlib.nullcontext()
        begins, base = self.kernel.begins, self.kernel.base
        calls, forks = self.progress.begin(running.cell, begins, base)
        return lanes.of_cell(running.cell, running.msg_id, calls, forks)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run one statement. True when it raised."""
        self.touched.ran(code_obj)
        return bool(await super().run_code(code_obj, result, async_=async_))

    def _stop_outer_cell(self, result: Any) -> None:
        interrupts = self.kernel.interrupts
        swallowed = isinstance(result.error_in_exec, KeyboardInterrupt) and interrupts.fired
        if swallowed and len(self.places) > 1:
            interrupts.again()

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        kind, value, trace = exc_tuple or sys.exc_info()
        if self.kernel.interrupts.fired and isinstance(value, asyncio.CancelledError):
            kind, value = KeyboardInterrupt, KeyboardInterrupt()
        self.kernel.mender.mend_builtins()
        self.kernel.mender.mend_streams()
        self.fault = value
        trace, self._frames_cut = shortened(_of_user_code(trace))
        try:
            super().showtraceback((kind, value, trace), *args, **kwargs)  # type: ignore[arg-type]
        except Exception:  # its text or its own formatter raised
            name = getattr(kind, "__name__", "Error")
            self._showtraceback(kind, value, [f"{name}: {Text(value)}"])

    def set_parent(self, parent: Any) -> None:
        """What comes is of this request; our streams learn it also while `sys` has others."""
        self.kernel.mender.mend_streams()
        super().set_parent(parent)
        self.kernel.mender.set_parent(parent)

    def show_usage_error(self, exc: BaseException) -> None:
        """An error of a magic is an error of the cell; IPython prints it, too."""
        self._showtraceback(type(exc), exc, [f"{type(exc).__name__}: {Text(exc)}"])

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        if self._frames_cut:
            note = f"[... {self._frames_cut:,} more calls in between are not shown ...]"
            stb = [*stb[:-1], note, *stb[-1:]]
            self._frames_cut = 0
        super()._showtraceback(etype, Text(evalue), clip(stb))

    def _format_exception_for_storage(self, exception: Any, *_: Any, **__: Any) -> Any:
        """For IPython's own history: without a second traceback, and without raising."""
        name = type(exception).__name__
        return {"ename": name, "evalue": str(Text(exception)), "traceback": []}

    def ask_exit(self) -> None:
        """What exit() does: it ends the client that typed it, never the kernel."""
        running = self.kernel.running
        if running is not None and running.foreign:
            payloads: Any = self.payload_manager
            payloads.write_payload({"source": "ask_exit", "keepkernel": True})
            return
        raise SystemExit(
            "exit() and quit() do not end a session's kernel; type s.close() in the session"
        )


def _of_user_code(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our own frames (what raises for SIGINT, what calls skills)."""
    trace = frame = _next_of_user_code(trace)
    while frame is not None:
        frame.tb_next = _next_of_user_code(frame.tb_next)
        frame = frame.tb_next
    return trace


def _next_of_user_code(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def shortened(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """A traceback of at most `FRAMES` calls at both ends, and how many are left out.

    IPython takes two milliseconds a call; the original is not changed.
    """
    calls = []
    while trace is not None:
        calls.append(trace)
        trace = trace.tb_next
    shown = calls if len(calls) <= 2 * FRAMES else [*calls[:FRAMES], *calls[-FRAMES:]]
    if len(shown) == len(calls):
        return (calls[0] if calls else None), 0
    short = None
    for call in reversed(shown):
        short = TracebackType(short, call.tb_frame, call.tb_lasti, call.tb_lineno)
    return short, len(calls) - len(shown)


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_globals.get("__package__") == __package__


class Text:
    """The text of an exception, safe to ask for: its own `__str__` may raise or be huge."""

    def __init__(self, value: object) -> None:
        try:
            self._text = str(value)[:CLIP]
        except Exception as exc:
            self._text = f"<its text raised {type(exc).__name__}>"

    def __str__(self) -> str:
        return self._text


def clip(lines: list[str]) -> list[str]:
    """A traceback of bearable length: its beginning and its end."""
    text = "\n".join(lines)
    if len(text) <= CLIP:
        return lines
    return [text[: CLIP // 2], "[...]", text[-CLIP // 2 :]]
