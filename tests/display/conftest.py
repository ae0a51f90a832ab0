"""The events of a session with faults, as the stream's golden files tell them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cave.events import CellFinished, CellOutput, Event, TurnFinished
from cave.history import History
from cave.records import decode

STORY = Path(__file__).parents[1] / "stream" / "golden" / "story.jsonl"


@pytest.fixture
def events() -> list[Event]:
    """The story with its outputs as they stream, and its last turn ended."""
    told: list[Event] = []
    for r in map(json.loads, STORY.read_text("utf-8").splitlines()):
        body = json.dumps(r["body"]).encode()
        event = decode(r["type"], body, seq=r["seq"], at=r["at"], session="q3")
        if isinstance(event, CellFinished):
            told += [CellOutput(cell=event.cell, output=o) for o in event.outputs]
        told.append(event)
    end = TurnFinished(turn=2, status="needs_attention", reason="go on with s.resume()")
    return [*told, replace(end, seq=told[-1].seq + 1)]


@pytest.fixture
def history(events: list[Event]) -> History:
    history = History()
    history.feed(e for e in events if e.durable)
    return history
