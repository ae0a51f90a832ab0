"""Threads and forked children of cells: whose output it is, and what children must not touch."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ipykernel.iostream import OutStream

from . import lanes


def attribute() -> None:
    """What a thread prints and calls is of the cell that started it, not of the latest one."""
    start = threading.Thread.start
    submit = concurrent.futures.ThreadPoolExecutor.submit

    def start_in_context(self: threading.Thread) -> None:
        context, run = lanes.forked(), self.run
        if (target := getattr(self, "_target", None)) is not None:
            self._target, self._args = lanes.kept(context, target, tuple(self._args))  # type: ignore[attr-defined]

        def run_in_context() -> None:
            try:
                context.run(run)
            finally:
                del self.run  # the way back to the class; it would be a cycle

        self.run = run_in_context  # type: ignore[method-assign]
        start(self)

    def submit_in_context(
        self: concurrent.futures.ThreadPoolExecutor,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kw: Any,
    ) -> Any:
        context = lanes.forked()
        fn, args = lanes.kept(context, fn, args)
        with lanes.unseen():
            return submit(self, context.run, fn, *args, **kw)

    threading.Thread.start = start_in_context  # type: ignore[method-assign]
    concurrent.futures.ThreadPoolExecutor.submit = submit_in_context  # type: ignore[method-assign,assignment]
    lanes.follow_tasks()


def plain_output_in_children() -> None:
    """A child forked by a cell writes to the descriptors, which its parent reads."""

    def replace() -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, OutStream):
                fd = stream._original_stdstream_fd
                setattr(sys, name, open(fd, "w", buffering=1, closefd=False))  # noqa: SIM115

    os.register_at_fork(after_in_child=replace)


_ours: set[threading.Thread] = set()
_HELPERS = frozenset({"TMonitor", "GarbageCollectorThread"})
"""Threads by which tqdm looks at its bars, and ZMQ lets go of large messages that were sent."""


def remember_ours() -> None:
    """The threads that run now are the kernel's own."""
    _ours.update(threading.enumerate())


def is_ours(ident: int) -> bool:
    """Whether a live thread is one of the kernel's own."""
    return any(thread.ident == ident for thread in _ours)


def of_user() -> list[str]:
    """Names of the live threads that cells started and that do something."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]  # a cycle: all that our callers hold would stay alive
    return [
        thread.name
        for thread in threading.enumerate()
        if thread not in _ours and not _waits(thread, frames.get(thread.ident or 0))
    ]


def _waits(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Whether it is a helper that only waits for work: of a pool, of tqdm, of ZMQ, of `%%bash`."""
    if frame is not None and frame.f_code is concurrent.futures.thread._worker.__code__:
        return True
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(thread).__name__ in _HELPERS or owner in _script_loops()


def _script_loops() -> list[object]:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    registry = getattr(getattr(shell, "magics_manager", None), "registry", {})
    loops = [getattr(magics, "event_loop", None) for magics in registry.values()]
    return [loop for loop in loops if loop is not None]
