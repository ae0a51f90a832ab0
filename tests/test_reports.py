"""What people report of notebooks, kernels and agents, each as a check through the public API.

Those about hosts that die are in `crash/test_deaths.py`, those about prompts in
`test_turns.py`, those about cells in `test_reports_of_cells.py`, those about snapshots and what
stays in memory in `time/test_reports.py`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

import cave

pytestmark = pytest.mark.usefixtures("sessions")

ROUNDS = int(os.environ.get("CAVE_CRASH_ROUNDS", "0"))


def test_a_kernel_killed_from_inside_is_named() -> None:
    """SIGKILL of the kernel by its own cell is named, and y is back in the next cell."""
    s = cave.open("oom")
    s.run("y=41")
    began = time.monotonic()
    cell = s.run("import os,signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert time.monotonic() - began < 50
    assert not cell.ok
    assert "kernel died (signal 9)" in str(cell.error)
    with pytest.raises(cave.KernelDied, match="signal 9"):
        cell.raise_for_error()
    assert "after cell 1" in str(cell.error)
    assert s.run("print(y)").text == "41"


def test_a_kernel_that_dies_while_starting_is_an_error_with_its_words(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernelspec that exits at once: KernelStartError with its stderr before a silent kernel
    would be given up, and no process or connection file left."""
    spec = tmp_path / "jupyter" / "kernels" / "broken"
    spec.mkdir(parents=True)
    program = "import sys; print('no such luck', file=sys.stderr); raise SystemExit(1)"
    (spec / "kernel.json").write_text(
        json.dumps({"argv": [sys.executable, "-c", program], "display_name": "b", "language": "p"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("CAVE_RUNTIME_DIR", str(home / "r"))
    began = time.monotonic()
    with pytest.raises(cave.KernelStartError, match="no such luck"):
        cave.open("start", kernel="broken").run("1")
    assert time.monotonic() - began < 25
    assert not list((home / "r").glob("*/*"))
    with pytest.raises(cave.KernelStartError, match="absent"):
        cave.open("start2", kernel="absent").run("1")


def test_a_cell_that_ignores_interrupts_is_killed_step_by_step() -> None:
    """SIGINT ignored: interrupt refuses and says so; with kill it escalates, in the journal."""
    s = cave.open("stubborn")
    s.run("y = 41")
    source = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    cells: list[cave.Cell] = []
    thread = threading.Thread(target=lambda: cells.append(s.run(source)))
    thread.start()
    deadline = time.monotonic() + 30
    while s._inner._fold.running is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    began = time.monotonic()
    came = s.interrupt(kill=True)
    assert came.stopped
    assert time.monotonic() - began < 50
    thread.join(20)
    assert cells[0].status in ("died", "interrupted")
    assert not cells[0].kept
    steps = [e.action for e in s.events() if type(e).__name__ == "InterruptSent"]
    assert steps[0] == "sigint"
    assert "after cell 1" in str(cells[0].error)
    assert s.run("1").ok


@pytest.mark.timeout(3600 if ROUNDS else 600)
def test_sessions_start_at_once_without_crosstalk() -> None:
    """Sessions opened at the same time each answer with their own name: 8, five times 30 when
    CAVE_CRASH_ROUNDS is set."""
    for _ in range(5 if ROUNDS else 1):
        names = [f"many-{i}" for i in range(30 if ROUNDS else 8)]
        said: dict[str, str] = {}

        def start(name: str, said: dict[str, str] = said) -> None:
            s = cave.open(name, persistence="live")
            said[name] = s.run(f"print({name!r})").text

        threads = [threading.Thread(target=start, args=(n,)) for n in names]
        for t in threads:
            t.start()
        for t in threads:
            t.join(500)
        assert said == {n: n for n in names}
        for name in names:
            cave.delete(name)
