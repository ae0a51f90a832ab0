from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("worker.py")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the store of a test lives."""
    return tmp_path / "home" / "cave.db"


@pytest.fixture
def start(database: Path) -> Iterator[Start]:
    """Starts `worker.py VERB` on the test's database; all of them are ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(verb: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(WORKER), verb, str(database), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=20)
