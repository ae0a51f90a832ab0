"""A host of a session, in a process that is there to be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cave
from cave import failpoints
from worlds.client import Tool, Tools

Message = dict[str, Any]
FORKS = multiprocessing.get_context("fork")
PATIENCE = 120.0
"""Seconds in which a host answers, on a machine that does much else."""
RETRIES = 5
"""Rounds of settling and going on: a round may find another doubt."""


class HostGone(Exception):
    """The host ended without an answer; what it printed says why."""


# -- outside ---------------------------------------------------------------------------------


class Host:
    """The driver's end: sends a request, and watches the process while it works."""

    def __init__(self, name: str, tools: Sequence[Tool], world: str) -> None:
        self._connection, theirs = FORKS.Pipe()
        arguments = (name, tools, world, theirs, self._connection)
        self._process = FORKS.Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()
        self.kernel = 0
        """Pid of the kernel that it serves, as it last said."""

    def ask(self, **request: Any) -> Any:
        """One request, one answer. Raises `HostGone`."""
        self.send(**request)
        return self.answer()

    def answer(self) -> Any:
        """What comes next, however long a cell takes."""
        found = self.poll(stops=False)
        assert found is not None
        return found["answer"]

    def send(self, **request: Any) -> None:
        self._connection.send(request)

    def poll(self, *, stops: bool) -> Message | None:
        """The answer; None when the process stands still first (where `stops` expects that)."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._connection.poll(0.002 if stops else 1.0):
                if (answer := self._received()) is not None:
                    return answer
            elif not self._process.is_alive():
                raise HostGone(f"the host ended with {self._process.exitcode}")
            elif stops and self._stopped:
                while self._connection.poll(0):
                    self._received()
                return None
        raise HostGone(f"the host does not answer since {PATIENCE:.0f} s")

    def _received(self) -> Message | None:
        try:
            got: Message = self._connection.recv()
        except EOFError:
            self._process.join(PATIENCE)
            raise HostGone(f"the host ended with {self._process.exitcode}") from None
        self.kernel = got["kernel"]
        return got if len(got) > 1 else None

    @property
    def _stopped(self) -> bool:
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "T"

    def go_on(self) -> None:
        """Let it work again that stood still."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill_kernel(self) -> None:
        """kill -9 to the kernel."""
        with suppress(ProcessLookupError):
            os.kill(self.kernel, signal.SIGKILL)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.join(PATIENCE)
        self._connection.close()

    def end(self) -> None:
        """Have it close its session and end."""
        with suppress(HostGone, BrokenPipeError):
            self.ask(op="close")
        self._process.join(PATIENCE)
        self.kill()


def delete_all() -> None:
    """Delete every session of the home, in a process that ends with it."""
    process = FORKS.Process(target=_delete_all)
    process.start()
    process.join(PATIENCE)


def _delete_all() -> None:
    for session in cave.sessions():
        cave.delete(session.name)


# -- inside ----------------------------------------------------------------------------------


def _serve(
    name: str, tools: Sequence[Tool], world: str, connection: Connection, theirs: Connection
) -> None:
    theirs.close()
    _Inside(name, tools, world, connection).serve()


class _Inside:
    """Works off requests on one session; what it is armed with makes it stand still."""

    _session: cave.Session | None = None
    """None before it is open, when cells that a death has cut run again already."""

    def __init__(
        self, name: str, tools: Sequence[Tool], world: str, connection: Connection
    ) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._tools = Tools(tools, world, self._say)
        self._session = cave.open(name, skills=self._tools.skills)

    def serve(self) -> None:
        while True:
            request = self._connection.recv()
            operation: Callable[..., Any] = getattr(self, request.pop("op"))
            answer = operation(**request)
            failpoints.disarm()
            self._say(answer=answer)
            if self._session is None:
                return

    def _say(self, **more: Any) -> None:
        kernel = self._session.kernel.pid if self._session is not None else 0
        with self._lock:
            self._connection.send({"kernel": kernel, **more})

    def begin(self, world: str) -> int:
        """A case begins, with no variables of others; gives the number of the last cell."""
        self._tools.socket = world
        for name in tuple(self._open):
            del self._open[name]
        self._open.snapshot()  # what dies next brings nothing back of the case before
        return self._last()

    def run(self, source: str, stop: tuple[str, int] | None) -> Message:
        """Run a cell; `stop` names a failpoint, and which hit of it."""
        if stop is not None:
            failpoints.arm(stop[0], "stop", after=stop[1])
        return _told(self._open.run(source))

    def go_on(self, after: int, source: str | None) -> Message | None:
        """What a person does after a death: says what became of doubts, resumes, and runs the
        cell that was not begun."""
        for _ in range(RETRIES):
            for effect in self._open.in_doubt:
                self._settle(effect)
            with suppress(cave.EffectInDoubt):  # found meanwhile: settled in the next round
                self._open.resume()
            if not self._open.in_doubt:
                break
        if source is None:
            return None
        last = self._open.history[-1] if self._last() > after else None
        if last is None or (last.error is not None and last.error.name == "CellNotRun"):
            last = self._open.run(source)
        return _told(last)

    def _settle(self, effect: cave.Effect) -> None:
        answer = self._tools.seen(effect.key)
        if answer is None or "error" in answer:
            self._open.settle(effect.id, "not_done")
        else:
            self._open.settle(effect.id, "done", result=answer["value"])

    def result(self, after: int) -> Message:
        """The cells of a case with their effects, and the variables."""
        cells = [cell for cell in self._open.history if cell.n > after]
        values = {name: self._open[name] for name in self._open}
        return {"cells": [_told(cell) for cell in cells], "values": values}

    def close(self) -> None:
        self._open.close()
        self._session = None

    @property
    def _open(self) -> cave.Session:
        assert self._session is not None
        return self._session

    def _last(self) -> int:
        history = self._open.history
        return history[-1].n if len(history) else 0


def _told(cell: cave.Cell) -> Message:
    error = [cell.error.name, cell.error.message] if cell.error is not None else None
    return {"n": cell.n, "status": cell.status, "error": error,
            "effects": [_effect(effect) for effect in cell.effects]}  # fmt: skip


def _effect(effect: cave.Effect) -> Message:
    return {"tool": effect.skill, "key": effect.key, "kind": effect.kind, "state": effect.state,
            "value": effect.result, "reason": effect.reason}  # fmt: skip
