"""Hosts in processes of their own, to be killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests._hosts import Host

__all__ = ["Host"]


@pytest.fixture
def host(forks: ForkServerContext, sessions: None) -> Iterator[Callable[..., Host]]:
    """Start hosts; whatever still runs at the end of the test is killed."""
    hosts: list[Host] = []

    def start(script: str, **environment: str) -> Host:
        hosts.append(Host(forks, script, **environment))
        return hosts[-1]

    yield start
    for one in hosts:
        if not one.ended:
            one.send(signal.SIGCONT)
            one.send(signal.SIGKILL)
        one.end()


@pytest.fixture
def marker(unconfined: None, tmp_path: Path) -> Path:
    """A file that a cell makes to say where it is, outside of its session's folder."""
    return tmp_path / "marker"


def wait_until(true: Callable[[], bool], timeout: float = 60) -> None:
    """Wait for a condition; fails when it does not come."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not true after {timeout} s"
        time.sleep(0.01)
