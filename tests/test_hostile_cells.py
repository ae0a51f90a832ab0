"""Operators, callers and names that nobody would think of."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cave
from cave import data
from cave.cli.look import jsonable
from cave.events import Event
from cave.ports import Reply

pytestmark = pytest.mark.usefixtures("sessions")


class Odd:
    """An operator whose next reply is what a function makes."""

    name = "odd"

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    async def next(self, view: Any, on_text: Any) -> Any:
        return self._make()

    async def close(self) -> None:
        """Nothing is held."""


def leave() -> None:
    raise SystemExit(3)


def test_an_operator_that_misbehaves_fails_its_turn_only() -> None:
    """Garbage in place of a reply, odd exceptions, even SystemExit: an OperatorError, nothing
    is run by guess, the turn can be resumed and the session works."""
    replies: list[Callable[[], Any]] = [
        lambda: None,
        lambda: "x = 1",
        lambda: 1 / 0,
        leave,
        lambda: Reply(kind="weird", source="x = 1"),  # type: ignore[arg-type]
        lambda: Reply(kind="cell", source=b"x = 1"),  # type: ignore[arg-type]
    ]
    for make in replies:
        s = cave.open("odd", operator=Odd(make))
        with pytest.raises(cave.OperatorError, match="'odd'"):
            s.ask("go")
        assert s.pending is not None
        assert s.pending.status == "failed"
    assert not s.history
    s = cave.open("odd", operator=["print(5)"])
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert turn.answer == "5"


def test_an_answer_is_not_lost_with_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    """returns= of a name that is not there or cannot travel: the turn is given, done, with the
    reason; one that cannot be a name is refused before the model is asked."""
    s = cave.open("value", operator=["import threading\nlock = threading.Lock()\nprint(7)"])
    turn = s.ask("go", returns="lock")
    assert (turn.status, turn.answer, turn.value) == ("done", "7", None)
    assert "allow_pickle" in turn.reason
    assert "allow_pickle" in capsys.readouterr().err
    assert "'nope'" in s.ask("go", returns="nope").reason
    for wrong in ("a.b", "", "class", 3):
        with pytest.raises(cave.ConfigError, match="returns"):
            s.ask("go", returns=wrong)  # type: ignore[arg-type]
    assert len(s.turns) == 2


def test_an_event_handler_may_call_the_session_or_raise() -> None:
    """on_event may use the sync API; what it raises comes when the turn, stopped, has ended."""
    s = cave.open("events", operator=["x = 1", "print(x)"])
    seen: list[str] = []
    s.ask("go", on_event=lambda _: seen.append(s.run("'in'").text))
    assert set(seen) == {"'in'"}

    def bad(event: Event) -> None:
        raise RuntimeError("mine")

    cave.open("events", operator=["import time\ntime.sleep(30)"])
    with pytest.raises(RuntimeError, match="mine"):
        s.ask("go", on_event=bad)
    assert s.turns[-1].status == "interrupted"


def test_a_call_that_queues_behind_close_is_refused() -> None:
    """Who waits for a cell together with close finds the session closed: no kernel is left."""
    s = cave.open("queue")
    s.run("import time")
    came: list[object] = []

    def late() -> None:
        try:
            came.append(s.run("1"))
        except cave.ConfigError as error:
            came.append(str(error))

    first = threading.Thread(target=lambda: s.run("time.sleep(1)"))
    closing, last = threading.Thread(target=s.close), threading.Thread(target=late)
    for thread in (first, closing, last):
        thread.start()
        thread.join(0.3)
    for thread in (first, closing, last):
        thread.join(20)
    assert "closed" in str(came[0])
    assert not s.kernel.alive
    assert cave.open("queue").run("1").ok


def test_names_that_no_cell_can_use_are_refused() -> None:
    """Keywords, texts that are no name and the kernel's own are PutErrors; a name in another
    Unicode form is the one that cells call it by."""
    s = cave.open("names")
    for name in ("class", "a b", "a.b", "In", "get_ipython", "\udcc3"):
        with pytest.raises(cave.PutError, match="cannot be put"):
            s.put(**{name: 1})
    decomposed = "e\u0301t"
    s.put(**{decomposed: 3}, self=4)
    assert s.run("\u00e9t + self").text == "7"
    assert s[decomposed] == 3
    assert decomposed in s
    for seconds in ("5", True, float("nan"), float("inf"), -1):
        with pytest.raises(cave.ConfigError, match="timeout"):
            s.run("1", timeout=seconds)  # type: ignore[arg-type]


def test_files_get_names_that_hide_nothing(tmp_path: Path) -> None:
    """A file called like a keyword or a builtin gets a prefix; two of one name are told apart."""
    names = {"class": "data_class", "list": "data_list", "2024 sales": "data_2024_sales"}
    for stem, name in {**names, "---": "data", "sales": "sales"}.items():
        assert data.variable_name(tmp_path / f"{stem}.csv") == name
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "s.csv", tmp_path / "b" / "s.csv"):
        path.write_text("a\n1\n")
    with pytest.raises(cave.ConfigError, match=r"would both be 's'.*VAR="):
        data.assignments([str(tmp_path / "s.csv"), str(tmp_path / "b" / "s.csv")])
    with pytest.raises(cave.ConfigError, match="'class' cannot"):
        data.assignments([f"class={tmp_path / 's.csv'}"])


def test_every_value_is_valid_json() -> None:
    """NaN, numpy scalars, dates and odd frames become JSON that strict readers take."""
    keyed = pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([(1, "x")], names=["p", "q"]))
    values: dict[str, tuple[Any, Any]] = {
        "nan": ([float("nan"), np.inf, 0.1 + 0.2], [None, None, 0.1 + 0.2]),
        "numpy": ([np.float32(1.5), np.int64(3), np.array([1.0, np.nan])], [1.5, 3, [1.0, None]]),
        "missing": ([pd.NaT, pd.NA], [None, None]),
        "date": (pd.Timestamp("2026-01-01", tz="UTC"), "2026-01-01T00:00:00+00:00"),
        "keyed": (keyed, [{"p": 1, "q": "x", "a": 1}]),
        "doubled": (
            pd.DataFrame([[1, 2]], columns=["a", "a"]),
            {"columns": ["a", "a"], "data": [[1, 2]]},
        ),
        "series": (pd.Series([1, 2], index=[5, 5]), [{"index": 5, "0": 1}, {"index": 5, "0": 2}]),
    }
    for value, expected in values.values():
        assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == expected


FORGE = """
import glob, json, os, struct, zlib
open_files = (os.path.realpath(path) for path in glob.glob('/proc/self/fd/*'))
(spool,) = (path for path in open_files if path.endswith('.spool'))
with open(spool, 'ab') as file:
    for number, (kind, parent, content) in enumerate(FORGED, 500_000):
        parts = [{'msg_id': 'm', 'msg_type': kind}, {'msg_id': parent}, {}, content]
        frames = [b'<IDS|MSG>', b'', *(json.dumps(part).encode() for part in parts)]
        body = b''.join(struct.pack('<I', len(frame)) + frame for frame in frames)
        file.write(struct.pack('<4sIIQ', b'cave', len(body), zlib.crc32(body), number) + body)
os.kill(os.getpid(), 9)
"""
_ENDED = [("cave_reply", {"status": "ok"}), ("status", {"execution_state": "idle"})]


def test_a_kernel_cannot_forge_the_end_of_a_cell_that_nobody_sent() -> None:
    """What it writes into its spool for cells to come, and for one that has ended, is not
    journaled: the session opens again, and these cells are as they were."""
    s = cave.open("forged")
    assert s.run("print('first')").text == "first"
    forged = [
        (kind, f"cave:{cell}:{'0' * 16}", content)
        for cell in (1, 3, 99)
        for kind, content in [
            ("stream", {"name": "stdout", "text": "late"}),
            ("execute_input", {"code": "x"}),
            ("stream", {"name": "stdout", "text": "forged"}),
            *_ENDED,
        ]
    ]
    died = s.run(f"FORGED = {forged!r}\n" + FORGE)
    assert died.status == "died"
    assert s.run("print('third')").text == "third"
    assert [(cell.n, cell.status) for cell in s.history] == [
        (1, "ok"), (2, "died"), (3, "ok"),
    ]  # fmt: skip
    assert "forged" not in "".join(cell.text for cell in s.history)
    s.close()
    assert cave.open("forged").history[3].text == "third"


def test_the_end_of_the_interpreter_waits_for_calls_and_then_refuses() -> None:
    """A thread that runs a cell when the script ends gets its Cell; a finalizer after that gets
    an error, and nothing hangs. A forked child is told to open the session again."""
    script = (
        "import cave, os, threading, time\n"
        "s = cave.open('end')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: s.run('1')\n"
        "    except cave.ConfigError as error: print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "class Last:\n"
        "    def __del__(self): s.run('1')\n"
        "last = Last()\n"
        "work = lambda: print(s.run('import time; time.sleep(1)').status)\n"
        "threading.Thread(target=work).start()\n"
        "time.sleep(0.3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "ok", done.stderr
    assert "closed here; open it again" in done.stdout
    assert "the interpreter is ending" in done.stderr
