"""The one background event loop of the sync API.

It works in scripts, in notebooks whose own loop runs, and from any thread; nothing patches
a loop. A call waits in the caller's thread, where its events are delivered and where
Ctrl-C arrives: the first asks the work to stop, the second gives up waiting.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from cave.errors import CaveError, ConfigError

T = TypeVar("T")


class Portal:
    """A daemon thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: list[threading.Thread] = []
        self._quiet = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="cave", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a task, whose caller is told; the loop serves the others
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop.

        Raises `ConfigError` on the loop's own thread, and when the interpreter is ending.
        """
        if self._stopped:
            work.close()
            raise ConfigError("the interpreter is ending: cave has let go of its sessions")
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigError(
                "the sync API cannot be called on cave's own event loop; use cave.open_async"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(
        self,
        work: Coroutine[Any, Any, T],
        *,
        inbox: queue.SimpleQueue[Any] | None = None,
        deliver: Callable[[Any], None] | None = None,
        on_interrupt: Callable[[], Coroutine[Any, Any, Any]] | None = None,
    ) -> T:
        """Run `work` and wait for it here, delivering what comes through `inbox` meanwhile.

        What `deliver` raises is raised when the work, asked to stop, has ended.
        """
        with self._counted():
            return self._call(work, inbox or queue.SimpleQueue(), deliver, on_interrupt)

    def _call(
        self,
        work: Coroutine[Any, Any, T],
        box: queue.SimpleQueue[Any],
        deliver: Callable[[Any], None] | None,
        on_interrupt: Callable[[], Coroutine[Any, Any, Any]] | None,
    ) -> T:
        future = self.submit(work)
        future.add_done_callback(box.put)
        interrupted = False
        fault: Exception | None = None
        while True:
            try:
                item = box.get()
                if item is future:
                    break
                if deliver is not None and fault is None:
                    deliver(item)
                continue
            except KeyboardInterrupt:
                if interrupted or on_interrupt is None or future.done():
                    future.cancel()
                    raise
            except Exception as raised:  # noqa: BLE001  the caller's own: raised below
                fault = raised
            interrupted = True
            if on_interrupt is not None and not future.done():
                self.submit(on_interrupt())
        if fault is not None:
            raise fault
        try:
            result: T = future.result()
        except CaveError as error:  # what the caller did wrong is not found in our frames
            raise error.with_traceback(None) from error.__cause__
        return result

    @contextmanager
    def _counted(self) -> Iterator[None]:
        thread = threading.current_thread()
        with self._quiet:
            self._waiting.append(thread)
        try:
            yield
        finally:
            with self._quiet:
                self._waiting.remove(thread)
                self._quiet.notify_all()

    def wait_for_callers(self) -> None:
        """Until no thread that keeps the interpreter alive waits in a call."""
        with self._quiet:
            self._quiet.wait_for(lambda: all(thread.daemon for thread in self._waiting))

    def stop(self) -> None:
        """End the loop's thread for good; what still runs is cancelled."""
        try:
            self.call(_cancel_rest())
        finally:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)


async def _cancel_rest() -> None:
    tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_portal: Portal | None = None
_lock = threading.Lock()
_at_exit: list[Callable[[], Coroutine[Any, Any, None]]] = []


def portal() -> Portal:
    """The process's portal, started at first use."""
    global _portal  # noqa: PLW0603 - one per process
    with _lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def at_exit(farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `farewell` on the loop before the interpreter ends."""
    _at_exit.append(farewell)


def _farewell() -> None:
    if _portal is None:
        return
    try:
        _portal.wait_for_callers()
        for farewell in reversed(_at_exit):
            _portal.call(farewell())
    finally:
        _portal.stop()


def _forget_after_fork() -> None:
    global _portal, _lock
    _portal, _lock = None, threading.Lock()
    _at_exit.clear()


# Ordinary atexit functions come after executors refuse work, and stores close in threads:
# this hook runs before that, newest first (it is what concurrent.futures uses itself, whose
# own is registered when its executor is imported).
importlib.import_module("concurrent.futures.thread")
threading._register_atexit(_farewell)  # type: ignore[attr-defined]  # noqa: SLF001
os.register_at_fork(after_in_child=_forget_after_fork)
