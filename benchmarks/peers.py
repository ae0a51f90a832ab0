"""The peers of `snapshots.py`: dill and cloudpickle here, Kishu in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

FAILED = (RecursionError, MemoryError, pickle.PicklingError)


def dumped(library: ModuleType, value: Any, path: Path) -> float:
    """Seconds until a library has a value on disk."""
    began = time.perf_counter()
    with path.open("wb") as file:
        library.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def loaded(library: ModuleType, path: Path, use: Callable[[Any], Any]) -> float:
    began = time.perf_counter()
    with path.open("rb") as file:
        use(library.load(file))
    return time.perf_counter() - began


class Kishu:
    """IPython with Kishu in a process of its own; without an interpreter it answers nothing."""

    def __init__(self, python: str | None, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.kept = True
        """Whether its database grew by the last cell."""
        self.start()

    def start(self) -> None:
        """Begin anew; nothing where no interpreter was named."""
        self.stop()
        if self._python is None:
            return
        self._folder.mkdir(exist_ok=True)
        script = Path(__file__).with_name("peer_kishu.py")
        self._process = subprocess.Popen(
            [str(self._python), str(script), str(self._folder)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, **request: Any) -> float | str:
        """Seconds beside the cell itself, or why there are none."""
        if self._process is None:
            return "" if self._python is None else "ended"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process = None
            return "crashed"
        found = json.loads(line)
        self.kept = bool(found.get("written"))
        return found["seconds"] if "seconds" in found else str(found["fault"])

    def cell(self, source: str) -> float | str:
        return self.ask(cell=source)

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None
