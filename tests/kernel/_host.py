"""A host for the tests of kernels, and what they look at."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from cave.kernel import Confinement, Kernel, Launch, processes, start
from cave.ports import Executed

T = TypeVar("T")
DEADLINE = 90.0
CONFINED = os.environ.get("CAVE_TEST_PROFILE") == "confined"
"""Whether all kernels of these tests are confined."""
WARM = os.environ.get("CAVE_TEST_TEMPLATES")
"""Folder of templates that fork all kernels of these tests, as soon as there is one."""


class Host:
    """A host with an event loop of its own, which commands one kernel."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.options = options
        self.loop = asyncio.new_event_loop()
        self.lease = 1
        self.numbers = itertools.count(1)
        self.kernels: list[Kernel] = []
        (root / "work").mkdir(exist_ok=True)

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end on the host's loop, with a deadline."""
        return self.loop.run_until_complete(asyncio.wait_for(work, DEADLINE))

    def launch(self, number: int = 1, **options: Any) -> Launch:
        return Launch(
            "test",
            self.root / "session",
            self.root / "work",
            self.root / "run",
            number,
            **{
                "confinement": Confinement() if CONFINED else None,
                "pending_after": None,  # most ask for no image: they prepare none
                **({"templates": Path(WARM), "hash_seed": 7} if WARM else {}),
                **self.options,
                **options,
            },
        )

    def start(self, number: int = 1, **options: Any) -> Kernel:
        kernel = self(start(self.launch(number, **options)))
        self.kernels.append(kernel)
        return kernel

    @property
    def kernel(self) -> Kernel:
        return self.kernels[-1]

    def send(self, source: str, **options: Any) -> Coroutine[Any, Any, Executed]:
        """One cell with the next number, as a coroutine."""
        options.setdefault("cell", next(self.numbers))
        options.setdefault("lease", self.lease)
        return self.kernel.execute(source, **options)

    def run(self, source: str, **options: Any) -> Executed:
        """One cell with the next number, to its end."""
        return self(self.send(source, **options))

    def close(self) -> None:
        for kernel in self.kernels:
            if not kernel._process._fd < 0:
                self(kernel.end(reason="closed"))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def text(executed: Executed) -> str:
    """Streams and plain texts of a cell, in order."""
    return "".join(out.text or out.data.get("text/plain", "") for out in executed.outputs)


def alive(pid: int) -> bool:
    return processes.started(pid) != 0


def leftovers(host: Host) -> list[str]:
    """Sockets and connection files that are still there."""
    run = host.root / "run"
    return [os.fspath(path) for path in run.glob("*/*")] if run.exists() else []
