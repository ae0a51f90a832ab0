from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests._hosts import Program

WORKER = Path(__file__).with_name("worker.py")

Start = Callable[..., Program]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the store of a test lives."""
    return tmp_path / "home" / "cave.db"


@pytest.fixture
def start(database: Path, forks: ForkServerContext) -> Iterator[Start]:
    """Starts `worker.py VERB` on the test's database; all of them are ended after the test."""
    started: list[Program] = []

    def start(verb: str, *arguments: object, **environment: str) -> Program:
        started.append(Program(forks, WORKER, verb, database, *arguments, **environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=20)
