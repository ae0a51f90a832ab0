"""What a skill's function gives, until it is a value: awaitables, and generators of progress.

A generator yields what is shown while it works; its value is what `return` gives. An async
generator cannot return a value, so the last thing that it yields is its value, and of the
others the texts are shown. The host reads outcomes with this file too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def finish(made: Any, tell: Callable[[str], None]) -> Any:
    """The value of a synchronous call; `tell` is given each step of a generator."""
    if not inspect.isgenerator(made):
        return made
    try:
        while True:
            tell(str(next(made)))
    except StopIteration as end:
        return end.value
    finally:
        made.close()


async def finish_async(made: Any, tell: Callable[[str], None]) -> Any:
    """The value of any call; `tell` is given each step of a generator."""
    if not inspect.isasyncgen(made):
        return await made if inspect.isawaitable(made) else finish(made, tell)
    last = None
    try:
        async for last in made:
            if isinstance(last, str):
                tell(last)
    finally:
        await made.aclose()
    return last
