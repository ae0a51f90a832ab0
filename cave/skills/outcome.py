"""What a skill's function gives, until it is a value: awaitables, and generators of progress.

A generator yields what is shown while it works; its value is what `return` gives. An async
generator cannot return a value, so the last thing that it yields is its value, and of the
others the texts are shown.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any


def finish(outcome: Any, tell: Callable[[str], None]) -> Any:
    """The value of a synchronous call; `tell` is given each step of a generator."""
    if not inspect.isgenerator(outcome):
        return outcome
    work: Generator[Any, Any, Any] = outcome
    try:
        while True:
            tell(str(next(work)))
    except StopIteration as end:
        return end.value
    finally:
        work.close()


async def finish_async(outcome: Any, tell: Callable[[str], None]) -> Any:
    """The value of any call; `tell` is given each step of a generator."""
    if inspect.isasyncgen(outcome):
        return await _last(outcome, tell)
    if inspect.isawaitable(outcome):
        return await outcome
    return finish(outcome, tell)


async def _last(work: AsyncGenerator[Any, Any], tell: Callable[[str], None]) -> Any:
    last = None
    try:
        async for step in work:
            last = step
            if isinstance(step, str):
                tell(step)
    finally:
        await work.aclose()
    return last
