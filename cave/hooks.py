"""Code of the user's own that is called beside the work of a session: one after the other.

What is called `later` runs in order, in a task, and may use the session itself. What is called
`now` holds up the work that it was called in, so it cannot use the session: `inside` tells.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

from cave.errors import ConfigError

_LATER = "(later)"
_where: contextvars.ContextVar[str] = contextvars.ContextVar("cave_hook", default="")


class Hooks:
    """The calls of one session."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._waiting: deque[tuple[str, Callable[[], Any]]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def inside(self) -> str:
        """What holds up the work that runs now, by its name; "" outside of it."""
        found = _where.get()
        return "" if found == _LATER else found

    def check(self) -> None:
        """Raise `ConfigError` inside of what holds up the work: it would wait for itself."""
        if found := self.inside:
            raise ConfigError(
                f"the hook {found!r} holds up session {self._session!r} and cannot use it; use "
                f"what it is given, or @s.on(...), which runs beside the work"
            )

    def later(self, name: str, call: Callable[[], Any]) -> None:
        """Call it after all that already waits; what it raises is told to the loop."""
        self._waiting.append((name, call))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._drain(), context=contextvars.Context()
            )

    async def now(self, name: str, call: Callable[[], Any]) -> Any:
        """Call it and wait; raises what it raises."""
        token = _where.set(name)
        try:
            return await _result(call)
        finally:
            _where.reset(token)

    async def settled(self) -> None:
        """Until nothing waits; at once inside of what is called."""
        if self._task is not None and not _where.get():
            await asyncio.shield(self._task)

    async def _drain(self) -> None:
        _where.set(_LATER)
        while self._waiting:
            name, call = self._waiting.popleft()
            try:
                await _result(call)
            except Exception as fault:  # noqa: BLE001  the user's own: it must not tear the work
                self.tell(name, fault)

    def tell(self, name: str, fault: BaseException) -> None:
        """Say that a hook has failed."""
        text = f"the hook {name} of session {self._session!r} failed"
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": text, "exception": fault})


async def _result(call: Callable[[], Any]) -> Any:
    value = call()
    return await value if inspect.isawaitable(value) else value


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, called in a thread when it is no coroutine function: it may block."""
    if inspect.iscoroutinefunction(function):
        return function

    async def call(*args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    call.__name__ = name_of(function)
    return call


def name_of(function: Any) -> str:
    """What a hook is called in messages."""
    return getattr(function, "__name__", type(function).__name__)
