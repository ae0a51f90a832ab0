"""Hooks, and steering a turn, for code without a loop. A part of `cave.facade.Session`.

Plain functions are called in threads of their own, one after the other: they may block.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cave.events import Event
from cave.hooks import in_thread
from cave.observing import Inspector, Trigger
from cave.session import AsyncSession
from cave.wishes import Interruption

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Directing:
    """What user code hears of a session, and how it steers it."""

    _inner: AsyncSession

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def on(self, kind: type[Event]) -> Callable[[F], F]:
        """Decorator: have a function called with every event of a type, in order, beside the
        work: `@s.on(cave.events.CellFinished)`. It may use the session. `run` and `ask` return
        when it has been called; what it raises is told on stderr and tears nothing."""
        register = self._inner.on(kind)

        def registered(function: F) -> F:
            register(in_thread(function))
            return function

        return registered

    def post_process(self, function: F) -> F:
        """Decorator: let a function rewrite each turn's answer before it is journaled. It is
        given the text and gives another; None leaves it as it is. It cannot use the session."""
        self._inner.post_process(in_thread(function))
        return function

    def attach_inspector(self, trigger: Trigger, callback: Inspector) -> Callable[[], None]:
        """Have `callback(Inspection)` called at a trigger; gives a function that detaches it.

        `pre_execute`: a cell is about to run, raising denies it. `post_execute`: it has ended,
        and nothing goes on before the callback returns; both cannot use the session. `snapshot`,
        `restore`: beside the work. Raises `ConfigError` for another trigger.
        """
        return self._inner.attach_inspector(trigger, in_thread(callback))

    def pause(self, reason: str = "") -> Interruption:
        """Let the turn that runs end after its present step; `resume()` goes on with it."""
        return self._wait(self._inner.pause(reason))

    def cancel(self, reason: str = "") -> Interruption:
        """End the turn that runs or waits for good: `resume()` does not go on with it."""
        return self._wait(self._inner.cancel(reason))

    def hand_to(self, who: str, reason: str = "") -> Interruption:
        """Let the turn that runs end after its step and wait for a person: `hand_to("human")`.
        `resume()` gives it back to the operator, who is told what was done meanwhile."""
        return self._wait(self._inner.hand_to(who, reason))
