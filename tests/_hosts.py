"""Hosts in processes of their own, forked off one that has imported cave."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests import _forked


class Host:
    """A process that runs a script against the test's home.

    It is forked off one that has imported cave, and is otherwise a program like any other.
    """

    def __init__(
        self,
        forks: ForkServerContext,
        script: str,
        given: Connection | None = None,
        **environment: str,
    ) -> None:
        reader, writer = forks.Pipe(duplex=False)
        self._output = os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace")
        self._process = forks.Process(
            target=_forked.run,
            args=(
                f"import cave\n{script}",
                {**os.environ, **environment},
                str(Path.cwd()),
                writer,
                given,
            ),
        )
        self._process.start()
        reader.close()
        writer.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._code: int | None = None

    @property
    def ended(self) -> bool:
        return self._code is not None or self._process.exitcode is not None

    def wait_for(self, line: str | Callable[[str], bool], timeout: float = 60) -> None:
        """Read its output until `line` has come, or one of which it is true."""
        deadline = time.monotonic() + timeout
        read: list[str] = []
        while time.monotonic() < deadline:
            got = self._output.readline()
            if got and (line(got) if callable(line) else got.strip() == line):
                return
            if not got:
                raise AssertionError(f"the host ended first: {''.join(read)}")
            read.append(got)
        raise AssertionError(f"{line!r} did not come in {timeout} s: {''.join(read)}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.end()

    def end(self, timeout: float = 60, *, keep: bool = False) -> int:
        """Wait for its end; the exit status. `keep` leaves its output to `rest`."""
        if self._code is None:
            self._process.join(timeout)
            self._code = self._process.exitcode
            assert self._code is not None, f"the host still runs after {timeout} s"
            self._process.close()  # a sweep ends thousands, and each has files open here
        if not keep:
            self._output.close()
        return self._code

    def rest(self) -> str:
        """What it put out and nobody has read."""
        return self._output.read()


class Program(Host):
    """A program file with its arguments, forked; used like a `subprocess.Popen` with text pipes."""

    def __init__(
        self, forks: ForkServerContext, path: Path, *arguments: object, **environment: str
    ) -> None:
        reader, writer = forks.Pipe(duplex=False)
        self.stdin = os.fdopen(os.dup(writer.fileno()), "w", encoding="utf-8")
        script = (
            "import runpy, sys, warnings\n"
            "from cave import failpoints; failpoints._arm_from_environment()\n"
            f"warnings.simplefilter('error')\nsys.argv = {[str(path), *map(str, arguments)]!r}\n"
            f"runpy.run_path({str(path)!r}, run_name='__main__')"
        )
        super().__init__(forks, script, reader, **environment)
        reader.close()
        writer.close()
        self.stdout = self._output

    @property
    def returncode(self) -> int | None:
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        self.send(number)

    def kill(self) -> None:
        """kill -9; `wait` waits."""
        if not self.ended:
            self.send(signal.SIGKILL)

    def wait(self, timeout: float = 60) -> int:
        """The exit status of its end."""
        return self.end(timeout, keep=True)

    def communicate(self, timeout: float = 60) -> tuple[str, None]:
        """What it still puts out until its end, when its input is closed."""
        self.stdin.close()
        said = "" if self.stdout.closed else self.rest()
        self.stdout.close()
        self.wait(timeout)
        return said, None


def forking() -> ForkServerContext:
    """What forks hosts; its process ends with this one, and belongs to no test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_forked.IMPORTED])
    forkserver.ensure_running()
    return context
