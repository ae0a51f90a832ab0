"""A broker over a real journal, and calls as a kernel would make them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cave.broker import Asking, Broker, Codec, Rules
from cave.broker.pen import Pen
from cave.errors import NotPortable
from cave.events import SessionOpened
from cave.history import History
from cave.journal import Journal
from cave.ports import CallPhase, Encoded, SkillAnswer, SkillCall, SystemClock
from cave.skills import Skill
from cave.snapshot import Reserve
from cave.store import SQLStore, this_process
from cave.store.blobs import FolderBlobs


def encode(value: Any) -> Encoded:
    """A value as JSON; what JSON cannot say cannot be sent."""
    try:
        return Encoded("safe", json.dumps(value).encode())
    except TypeError as error:
        raise NotPortable(str(error)) from error


def digest(encoded: Encoded) -> str:
    """SHA-256 of a value as it crosses."""
    return hashlib.sha256(encoded.header).hexdigest()


def decode(answer: SkillAnswer) -> Any:
    """The value of an answer."""
    assert answer.status == "ok", answer
    return None if answer.value is None else json.loads(answer.value.header)


class Cell:
    """The caller: keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.variables: dict[str, Any] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def get(self, name: str) -> Any:
        return self.variables[name]

    async def put(self, values: Mapping[str, Any]) -> None:
        self.variables.update(values)


@dataclass
class Offer:
    """Skills by name."""

    skills: dict[str, Skill] = field(default_factory=dict)

    def find(self, name: str, hash: str) -> Skill | None:
        return self.skills.get(name)


class Session:
    """What one process has of a session."""

    def __init__(self, home: Path, *skills: Skill, clock: Any = None) -> None:
        self.clock = clock or SystemClock()
        self.store = SQLStore(home / "cave.db", clock=self.clock)
        self.owner = this_process()
        history = History(
            None, lambda stored: json.loads(__import__("base64").b64decode(stored.data))
        )
        self.journal = Journal(self.store, "q3", self.owner, history, self.clock)
        self.kernel = 1
        pen = Pen(
            self.journal,
            FolderBlobs(home / "blobs"),
            owner=self.owner,
            kernel=lambda: self.kernel,
            encode=encode,
            reserve=Reserve(home / "reserve", size=1 << 20),
        )
        self.offer = Offer({skill.name: skill for skill in skills})
        self.rules = Rules()
        codec = Codec(encode, lambda value: json.loads(value.header), digest)
        find = self.offer.skills.get
        self.asking = Asking(pen, lambda: self.rules, codec, find)
        self.broker = Broker(pen, self.offer, self.asking)
        self.cell = Cell()

    @asynccontextmanager
    async def operation(self) -> AsyncIterator[None]:
        await self.store.create("q3")
        async with self.journal.operation():
            if self.journal.history.opened is None:
                await self.journal.append(SessionOpened(version="0", uid="u1"))
            yield

    async def call(
        self,
        skill: str,
        place: tuple[int, str, int] = (1, "", 1),
        phase: CallPhase = "call",
        **arguments: Any,
    ) -> SkillAnswer:
        """One call of a cell at a place."""
        cell, lane, ordinal = place
        digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        return await self.broker.answer(
            SkillCall(
                f"{cell}{lane}:{ordinal}",
                skill,
                "",
                cell,
                lane,
                ordinal,
                phase,
                arguments,
                digest,
            ),
            self.cell,
        )

    @property
    def states(self) -> list[str]:
        """The state of each effect, in their order."""
        return [entry.state for entry in self.journal.history.ledger.entries.values()]


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    """Makes what one process has; called again, what another one would have."""

    def make(*skills: Skill, clock: Any = None) -> Session:
        return Session(tmp_path, *skills, clock=clock)

    return make
