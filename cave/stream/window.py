"""What of the prompt is shown in full and what is shortened when it is long."""

from __future__ import annotations

from dataclasses import dataclass, field

from cave.ports import Message
from cave.stream.tokens import estimate

FRAME = 4
"""Tokens that a message costs besides its text."""


def cost(message: Message) -> int:
    """About how many tokens a message has."""
    return estimate(message.text) + estimate(message.note) + FRAME


@dataclass(slots=True)
class Unit:
    """Messages that belong together (a turn, a step), and the line that may stand for them."""

    messages: list[Message]
    line: str
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = sum(map(cost, self.messages))


@dataclass(slots=True)
class Window:
    """What is shown, as decided so far, in the order of the journal.

    Decisions are kept: when `limit` would be passed, the oldest units are shortened until
    half of it is free, so that the beginning of the prompt then stays as it is for long.
    """

    limit: int
    fixed: int = 0
    """Tokens that are never shortened."""
    turns: list[Unit] = field(default_factory=list)
    steps: list[Unit] = field(default_factory=list)
    old_turns: list[str] = field(default_factory=list)
    old_steps: list[str] = field(default_factory=list)

    def copy(self) -> Window:
        """The same state, to go on from without changing this one."""
        return Window(
            self.limit,
            self.fixed,
            list(self.turns),
            list(self.steps),
            list(self.old_turns),
            list(self.old_steps),
        )

    @property
    def tokens(self) -> int:
        """About how many tokens all of it has."""
        units = sum(u.tokens for u in self.turns) + sum(u.tokens for u in self.steps)
        return self.fixed + units + self._lines(self.old_turns) + self._lines(self.old_steps)

    def _lines(self, lines: list[str]) -> int:
        return min(sum(map(estimate, lines)), self.limit // 8) if lines else 0

    def shorten(self, coming: int = 0) -> bool:
        """Make room for `coming` tokens when there is too little; whether anything changed.

        The oldest turns go first, then the oldest steps; the last step stays.
        """
        excess = self.tokens + coming
        if excess <= self.limit:
            return False
        excess -= self.limit // 2
        before = len(self.turns) + len(self.steps)
        excess -= _drop(self.turns, self.old_turns, 0, excess)
        _drop(self.steps, self.old_steps, 1, excess)
        return len(self.turns) + len(self.steps) < before


def _drop(units: list[Unit], lines: list[str], keep: int, excess: int) -> int:
    """Shorten the first of `units`, all but `keep`, by `excess`; how many tokens that freed."""
    freed = 0
    while freed < excess and len(units) > keep:
        unit = units.pop(0)
        lines.append(unit.line)
        freed += unit.tokens - estimate(unit.line)
    return freed


def shortened(what: str, lines: list[str], limit: int) -> str:
    """The lines that stand for old units, the latest of them when even these are many."""
    kept: list[str] = []
    tokens = 0
    for line in reversed(lines):
        tokens += estimate(line)
        if tokens > limit // 8 and kept:
            break
        kept.append(line)
    gone = len(lines) - len(kept)
    left_out = [f"({gone} earlier ones are left out)"] if gone else []
    return "\n".join([f"Earlier {what}, shortened to fit:", *left_out, *reversed(kept)])
