"""Real kernels for the tests: one shared per module, and a maker of fresh ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel._host import Host


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with a running kernel, shared by the tests of a module."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        host = Host(Path(folder))
        try:
            host.start()
            yield host
        finally:
            host.close()


@pytest.fixture
def make_host() -> Iterator[Callable[..., Host]]:
    """Makes hosts without a kernel; what they start is ended."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        hosts: list[Host] = []

        def make(**options: Any) -> Host:
            root = Path(folder, str(len(hosts)))
            root.mkdir()
            hosts.append(Host(root, **options))
            return hosts[-1]

        try:
            yield make
        finally:
            for host in hosts:
                host.close()
