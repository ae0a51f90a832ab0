"""What people report of notebooks, kernels and agents, each as a check through the public API.

Those about hosts that die are in `crash/test_deaths.py`, those about prompts in
`test_turns.py`, those about snapshots and what stays in memory in `time/test_reports.py`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import cave
from cave.cli.look import jsonable

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


def test_a_time_limit_stops_the_cell_and_keeps_the_objects() -> None:
    """`while True: pass` with a limit: ended and named, y intact, the next cell as ever."""
    s = cave.open("limit")
    s.run("y=41")
    began = time.monotonic()
    cell = s.run("print('so far', flush=True)\nwhile True: pass", timeout=0.5)
    assert 0.5 < time.monotonic() - began < 30
    assert cell.status == "timeout"
    assert cell.kept
    assert "so far" in cell.text
    with pytest.raises(cave.CellTimeout):
        cell.raise_for_error()
    assert s.run("print(y)").text == "41"


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


def test_input_is_refused_at_once() -> None:
    """input() in a cell is a clear error and no wait; the kernel lives."""
    s = cave.open("stdin")
    s.run("y = 41")
    began = time.monotonic()
    cell = s.run("input('name? ')")
    assert time.monotonic() - began < 30
    assert cell.status == "error"
    assert "stdin" in str(cell.error)
    assert s["y"] == 41


@pytest.mark.timeout(600)
def test_sessions_start_at_once_without_crosstalk() -> None:
    """Sessions opened at the same time each answer with their own name: 12, five times 30 when
    CAVE_CRASH_ROUNDS is set."""
    for _ in range(5 if ROUNDS else 1):
        names = [f"many-{i}" for i in range(30 if ROUNDS else 12)]
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


def test_a_flood_of_tiny_writes_is_whole() -> None:
    """10,000 flushed writes and a last line: nothing is missing."""
    s = cave.open("tiny")
    cell = s.run(
        "import sys\nfor i in range(10_000):\n"
        "    sys.stdout.write(f'{i:099d}\\n'); sys.stdout.flush()\nprint('hi')"
    )
    lines = cell.full_text().splitlines()
    assert lines[-1] == "hi"
    assert lines[:-1] == [f"{i:099d}" for i in range(10_000)]


def test_surrogates_do_not_hang_or_break_the_journal() -> None:
    """Lone surrogates in output, in a frame's columns, in the source: an escape, valid JSON."""
    s = cave.open("surrogate")
    assert "udcc3" in s.run("print('\\udcc3')").text
    assert s.run("print(b'\\xff'.decode('latin1'))").text == "ÿ"
    cell = s.run("import pandas as pd\nbad = pd.DataFrame({'\\udcc3': [1]})\nbad")
    assert cell.status in ("ok", "error")
    assert s.run("1 + 1").text == "2"
    assert s.run("x = '\udcc3'").status in ("ok", "error")
    for event in s.events():
        json.dumps(jsonable(event)).encode("utf-8")
    assert len(s.vars) >= 1


def test_progress_bars_leave_their_last_state() -> None:
    """2,000 carriage-return updates are one line of text."""
    s = cave.open("bar")
    cell = s.run(
        "import sys\nfor i in range(2001):\n"
        "    sys.stderr.write(f'\\r{i}/2000'); sys.stderr.flush()\n"
    )
    assert cell.text.strip().splitlines() == ["2000/2000"]


def test_frames_of_every_kind_come_back_equal() -> None:
    """date, Decimal, tz-aware, category, MultiIndex, nested, NaN and inf come back equal."""
    source = """
import pandas as pd, numpy as np, datetime as dt, decimal
dates = pd.DataFrame({'d': [dt.date(2026, 1, 1), None]})
money = pd.DataFrame({'m': [decimal.Decimal('1.10'), decimal.Decimal('2')]})
zoned = pd.DataFrame({'t': pd.date_range('2026-10-25', periods=4, freq='h', tz='Europe/Berlin')})
cats = pd.DataFrame({'c': pd.Categorical(['a', 'b'], categories=['b', 'a', 'z'], ordered=True)})
multi = pd.DataFrame({'x': [1, 2], 'v': [3, 4], 'k': ['p', 'q']}).set_index(['k', 'x'])
nested = pd.DataFrame({'n': [[1, 2], [3]], 'm': [{'a': 1}, {'a': 2}]})
holes = pd.DataFrame({'f': [1.5, float('nan'), float('inf')], 's': ['a', None, 'c']})
"""
    s = cave.open("frames")
    s.run(source).raise_for_error()
    names: dict[str, object] = {}
    exec(source, names)
    for name in ("dates", "money", "zoned", "cats", "multi", "nested", "holes"):
        expected = names[name]
        assert isinstance(expected, pd.DataFrame)
        pd.testing.assert_frame_equal(s[name], expected)


def test_two_clients_of_one_session_keep_their_replies_apart() -> None:
    """Two threads and the async twin's rule: 100 cells each, every reply its sender's own."""
    s = cave.open("shared")
    wrong: list[str] = []

    def client(tag: str) -> None:
        for i in range(100):
            text = s.run(f"print({tag!r}, {i})").text
            if text != f"{tag} {i}":
                wrong.append(text)

    threads = [threading.Thread(target=client, args=(t,)) for t in ("a", "b")]
    for t in threads:
        t.start()
    for t in threads:
        t.join(110)
    assert not wrong
    assert len(s.history) == 200


def test_await_and_asyncio_run() -> None:
    """Top-level await works; asyncio.run works or is a clear error; a pending task is no harm."""
    s = cave.open("await")
    assert s.run("import asyncio\nawait asyncio.sleep(0.01)\nprint('slept')").text == "slept"
    cell = s.run("async def f(): return 5\nprint(asyncio.run(f()))")
    assert cell.text == "5" or "asyncio.run() cannot be called" in str(cell.error)
    assert s.run("t = asyncio.ensure_future(asyncio.sleep(0.2, 'late'))").ok
    assert s.run("print(await t)").text == "late"
