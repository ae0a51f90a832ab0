"""A fixed journal, and a short way to write other ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cave.events import (
    CellFinished,
    CellOrigin,
    CellStarted,
    Event,
    StepReplied,
    StepStarted,
    TurnFinished,
    TurnStarted,
)
from cave.history import History
from cave.records import decode

GOLDEN = Path(__file__).parent / "golden"


def story() -> Iterator[Event]:
    """Events of a session with faults: a failed cell, a late output, two dead kernels."""
    for line in (GOLDEN / "story.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        body = json.dumps(record["body"]).encode()
        yield decode(record["type"], body, seq=record["seq"], at=record["at"], session="q3")


class Journal:
    """Events in the order in which a session writes them."""

    def __init__(self) -> None:
        self.history = History()
        self.turn = self.step = self.cell = 0

    def add(self, *events: Event) -> None:
        self.history.feed(events)

    def ask(self, prompt: str = "Do it.") -> None:
        self.turn, self.step = self.turn + 1, 0
        self.add(TurnStarted(turn=self.turn, prompt=prompt))
        self.call()

    def call(self) -> None:
        """The operator is asked for its next move."""
        self.step += 1
        self.add(StepStarted(turn=self.turn, step=self.step))

    def reply(self, **fields: object) -> None:
        """What the operator said to the last call."""
        self.add(StepReplied(turn=self.turn, step=self.step, **fields))

    def run(
        self,
        source: str = "x = 1",
        *,
        origin: CellOrigin = "operator",
        note: str = "",
        **end: object,
    ) -> None:
        """A cell, the operator's with its reply before it; `end` is what CellFinished says."""
        self.cell += 1
        own = origin == "operator"
        if own:
            self.reply(kind="cell", source=source, note=note)
        place = {"turn": self.turn, "step": self.step} if own else {}
        fields = {"status": "ok", "seconds": 0.1, **end}
        self.add(
            CellStarted(cell=self.cell, source=source, note=note, origin=origin, **place),
            CellFinished(cell=self.cell, **fields),
        )

    def finish(self, answer: str = "Done.") -> None:
        self.reply(kind="finish", text=answer)
        self.add(TurnFinished(turn=self.turn, status="done", answer=answer))


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def events() -> list[Event]:
    return list(story())


@pytest.fixture
def golden() -> Path:
    return GOLDEN
