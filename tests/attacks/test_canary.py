"""A canary in many places of a session reaches no prompt, log, journal, export or snapshot."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

import cave
from cave.events import CellFinished, OutputLate, SnapshotCommitted
from cave.ports import View
from cave.testing import Finish, ScriptedOperator
from tests.attacks import _canary
from tests.attacks._canary import CANARY, NAME, leaks

SWEEP = bool(os.environ.get("CAVE_CRASH_ROUNDS"))
COUNT = 1000 if SWEEP else 50
SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
EACH = 250
"""Places in one session."""


@cave.skill(effect="write", runs="host")
def tell(text: str) -> None:
    """Tell."""


@cave.skill(effect="write", runs="host")
def echo(text: str) -> dict[str, Any]:
    """Give back what it got."""
    return {"text": text, "here": [os.environ[NAME]]}


@cave.skill(effect="write", runs="host")
def break_down(text: str) -> None:
    """Fail."""
    raise RuntimeError(f"cannot do {text}")


@cave.skill(runs="host")
def say(text: str, ctx: cave.skills.SkillContext) -> None:
    """Say it in the cell."""
    ctx.log(text)


class Sinks:
    """Everything that came out of one session, with what it holds of the canary."""

    def __init__(self) -> None:
        self.found: list[tuple[str, list[bytes]]] = []

    def add(self, where: str, what: object) -> None:
        data = what if isinstance(what, bytes) else repr(what).encode()
        if there := leaks(data):
            self.found.append((where, there))


def work(seed: int, count: int, path: Path, sinks: Sinks) -> None:
    """One session full of canaries: a person's cells, an operator's, a death, exports."""
    draw = random.Random(seed)
    views: list[View] = []
    sources = _canary.cells(draw, count)
    half = len(sources) // 2

    def step(view: View) -> Any:
        views.append(view)
        if len(views) == half:
            return Finish(f"It is {CANARY}.")
        return f"I look for {CANARY}", sources[half + len(views) - 1]

    policy = cave.Policy(env=[NAME], secrets=[NAME])
    s = cave.open("canary", policy=policy, skills=[tell, echo, break_down, say],
                  operator=ScriptedOperator(step))  # fmt: skip
    shown: list[Any] = []
    s.put(given=[CANARY, 1])
    for source in sources[:half]:
        s.run(source, timeout=60)
    s.ask(f"Where is {CANARY}?", budget=cave.Budget(steps=count),
          on_event=shown.append)  # fmt: skip
    kept = s.run(f"import os; kept = {{'it': os.environ[{NAME!r}]}}, [os.environ[{NAME!r}]] * 2")
    assert kept.ok
    s.snapshot(f"with {CANARY}")
    s.run("import os; os.kill(os.getpid(), 9)")
    assert s["kept"] == ({"it": CANARY}, [CANARY, CANARY])  # back, from the environment
    assert s["given"] == [CANARY, 1]
    for n, view in enumerate(views):
        sinks.add(f"prompt {n}", view)
    for n, event in enumerate(shown):
        sinks.add(f"shown {n} {event.type}", event)
    journal = s.events()
    for event in journal:
        sinks.add(f"event {event.seq} {event.type}", event)
        if isinstance(event, SnapshotCommitted) and event.file:
            sinks.add(f"file in event {event.seq}", _canary.inflated(event.file))
    for name in ("stdout", "stderr"):
        sinks.add(f"{name} as a whole", streams(journal, name))
    for form in ("story.ipynb", "story.py", "space.dill"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            sinks.add(form, Path(s.export(path / form)).read_bytes())
    assert s["kept"][0] == {"it": CANARY}
    s.close()


def streams(journal: list[Any], name: str) -> str:
    """All that was put out on one stream, as the journal has it."""
    ends = [e for e in journal if isinstance(e, CellFinished | OutputLate)]
    return "".join(o.text for e in ends for o in e.outputs if o.name == name)


@pytest.mark.usefixtures("sessions")
def test_a_canary_gets_nowhere(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Written in nine ways in all places that a session has; what the cells themselves put into
    their folder, and the spool that the host reads, are theirs."""
    monkeypatch.setenv(NAME, CANARY)
    print(f"seed {SEED}")
    sinks = Sinks()
    for n, start in enumerate(range(0, COUNT, EACH)):
        work(SEED + n, min(EACH, COUNT - start), tmp_path, sinks)
        for path, data in _canary.files(home).items():
            inside = path.relative_to(home).parts
            theirs = "work" in inside or "spool" in str(path.name) or "spool" in inside
            if not theirs:
                sinks.add(f"file {'/'.join(inside)}", data)
        cave.delete("canary")
        for file in tmp_path.iterdir():
            file.unlink()
    sinks.add("log", caplog.text)
    out, err = capfd.readouterr()
    sinks.add("terminal", out + err)
    assert not sinks.found, f"seed {SEED}: {sinks.found}"
