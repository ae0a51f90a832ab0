"""What people report of cells, each as a check in one session that all of them share."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator

import pandas as pd
import pytest

import cave
from cave.cli.look import jsonable

from .conftest import home_of_its_own, sessions_deleted

EACH = 100 if os.environ.get("CAVE_CRASH_ROUNDS") else 30
"""Cells that each of two clients sends."""


@pytest.fixture(scope="module")
def s() -> Iterator[cave.Session]:
    """A session with one kernel, which the tests of this file share."""
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch), sessions_deleted():
        yield cave.open("shared")


def test_a_time_limit_stops_the_cell_and_keeps_the_objects(s: cave.Session) -> None:
    """`while True: pass` with a limit: ended and named, y intact, the next cell as ever."""
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


def test_input_is_refused_at_once(s: cave.Session) -> None:
    """input() in a cell is a clear error and no wait; the kernel lives."""
    s.run("y = 41")
    began = time.monotonic()
    cell = s.run("input('name? ')")
    assert time.monotonic() - began < 30
    assert cell.status == "error"
    assert "stdin" in str(cell.error)
    assert s["y"] == 41


def test_a_flood_of_tiny_writes_is_whole(s: cave.Session) -> None:
    """10,000 flushed writes and a last line: nothing is missing."""
    cell = s.run(
        "import sys\nfor i in range(10_000):\n"
        "    sys.stdout.write(f'{i:099d}\\n'); sys.stdout.flush()\nprint('hi')"
    )
    lines = cell.full_text().splitlines()
    assert lines[-1] == "hi"
    assert lines[:-1] == [f"{i:099d}" for i in range(10_000)]


def test_surrogates_do_not_hang_or_break_the_journal(s: cave.Session) -> None:
    """Lone surrogates in output, in a frame's columns, in the source: an escape, valid JSON."""
    assert "udcc3" in s.run("print('\\udcc3')").text
    assert s.run("print(b'\\xff'.decode('latin1'))").text == "ÿ"
    cell = s.run("import pandas as pd\nbad = pd.DataFrame({'\\udcc3': [1]})\nbad")
    assert cell.status in ("ok", "error")
    assert s.run("1 + 1").text == "2"
    assert s.run("x = '\udcc3'").status in ("ok", "error")
    for event in s.events():
        json.dumps(jsonable(event)).encode("utf-8")
    assert len(s.vars) >= 1


def test_progress_bars_leave_their_last_state(s: cave.Session) -> None:
    """2,000 carriage-return updates are one line of text."""
    cell = s.run(
        "import sys\nfor i in range(2001):\n"
        "    sys.stderr.write(f'\\r{i}/2000'); sys.stderr.flush()\n"
    )
    assert cell.text.strip().splitlines() == ["2000/2000"]


def test_frames_of_every_kind_come_back_equal(s: cave.Session) -> None:
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
    s.run(source).raise_for_error()
    names: dict[str, object] = {}
    exec(source, names)
    for name in ("dates", "money", "zoned", "cats", "multi", "nested", "holes"):
        expected = names[name]
        assert isinstance(expected, pd.DataFrame)
        pd.testing.assert_frame_equal(s[name], expected)


def test_two_clients_of_one_session_keep_their_replies_apart(s: cave.Session) -> None:
    """Two threads and the async twin's rule: every reply is its sender's own."""
    wrong: list[str] = []
    before = len(s.history)

    def client(tag: str) -> None:
        for i in range(EACH):
            text = s.run(f"print({tag!r}, {i})").text
            if text != f"{tag} {i}":
                wrong.append(text)

    threads = [threading.Thread(target=client, args=(t,)) for t in ("a", "b")]
    for t in threads:
        t.start()
    for t in threads:
        t.join(110)
    assert not wrong
    assert len(s.history) == before + 2 * EACH


def test_await_and_asyncio_run(s: cave.Session) -> None:
    """Top-level await works; asyncio.run works or is a clear error; a pending task is no harm."""
    assert s.run("import asyncio\nawait asyncio.sleep(0.01)\nprint('slept')").text == "slept"
    cell = s.run("async def f(): return 5\nprint(asyncio.run(f()))")
    assert cell.text == "5" or "asyncio.run() cannot be called" in str(cell.error)
    assert s.run("t = asyncio.ensure_future(asyncio.sleep(0.2, 'late'))").ok
    assert s.run("print(await t)").text == "late"
