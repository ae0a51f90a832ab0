"""A person in the place of the model: asked at the terminal for each next cell."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio.to_thread

from cave.errors import OperatorError
from cave.events import Usage, clean
from cave.ports import Reply, View

Reader: TypeAlias = Callable[[str], Awaitable[str]]
"""Shows a prompt and gives one line. Raises EOFError when there are no more."""

COMMAND = "/finish"
FIRST, MORE = "cell> ", "....> "


class HumanOperator:
    """Reads cells from a person: lines until an empty one; `/finish TEXT` ends the turn.

    An empty line inside a cell is written as a line with a blank. An empty line at the
    start ends the turn with an empty answer, which stands for the text of the last cell.
    """

    name = "human"
    is_person = True

    def __init__(self, read: Reader | None = None) -> None:
        self._read = read or _terminal

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        lines: list[str] = []
        while True:
            try:
                line = await self._read(MORE if lines else FIRST)
            except EOFError:
                return self._ended(lines)
            if not lines and line.strip().partition(" ")[0] == COMMAND:
                return Reply("finish", text=clean(line.strip()[len(COMMAND) :].strip()))
            if not line:
                return self._ended(lines)
            lines.append(line)

    async def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _ended(lines: list[str]) -> Reply:
        if not lines:
            return Reply("finish")
        return Reply("cell", source=clean("\n".join(lines)), usage=Usage())


async def _terminal(prompt: str) -> str:
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        raise OperatorError(
            "operator 'human' needs a terminal to ask at, and there is none; name a model instead",
            reason="missing",
        )
    return await anyio.to_thread.run_sync(input, prompt, abandon_on_cancel=True)
