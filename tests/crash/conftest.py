"""Hosts in processes of their own, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Host:
    """A Python process that runs a script against the test's home."""

    def __init__(self, script: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", f"import cave\n{script}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def wait_for(self, line: str, timeout: float = 60) -> None:
        """Read its output until `line` has come."""
        deadline = time.monotonic() + timeout
        assert self.process.stdout is not None
        while time.monotonic() < deadline:
            got = self.process.stdout.readline()
            if got.strip() == line:
                return
            if not got:
                assert self.process.stderr is not None
                raise AssertionError(f"the host ended first: {self.process.stderr.read()}")
        raise AssertionError(f"{line!r} did not come in {timeout} s")

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self, timeout: float = 60) -> int:
        """Wait for its end; the exit status."""
        code = self.process.wait(timeout)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


@pytest.fixture
def host(sessions: None) -> Iterator[Callable[..., Host]]:
    """Start hosts; whatever still runs at the end of the test is killed."""
    hosts: list[Host] = []

    def start(script: str, **environment: str) -> Host:
        hosts.append(Host(script, **environment))
        return hosts[-1]

    yield start
    for one in hosts:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGCONT)
            one.process.send_signal(signal.SIGKILL)
        one.end()


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that a cell makes to say where it is."""
    return tmp_path / "marker"


def wait_until(true: Callable[[], bool], timeout: float = 60) -> None:
    """Wait for a condition; fails when it does not come."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not true after {timeout} s"
        time.sleep(0.01)
