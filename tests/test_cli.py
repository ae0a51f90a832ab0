"""The command line: every verb over one home, in processes of their own where that matters."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pandas as pd
import pexpect
import psutil
import pytest

from ._cli import apart, at_terminal, cave, program
from ._hosts import Host
from .crash.conftest import host

__all__ = ["host"]

pytestmark = pytest.mark.usefixtures("sessions")


SLOW = "import time\nprint('begun')\nopen({path!r}, 'w').close()\ntime.sleep(100)\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, a program and a scripted model."""
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"region": ["north", "south"], "amount": [1.5, 2.5]})
    frame.to_csv("sales.csv", index=False)
    Path("prog.py").write_text("total = float(sales.amount.sum())\nprint('total', total)\n")
    Path("steps.py").write_text("steps = [('Sum it', 'print(sales.amount.sum())')]\n")
    return tmp_path


def wait_for(path: Path) -> None:
    """Wait until a cell has made the file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_verbs_of_a_session_from_ask_to_rm(desk: Path) -> None:
    """ask with data, run, vars, get, put, files, save, log, show, ls, export, close, rm: on the
    same live objects, also in processes of their own."""
    asked = apart("ask", "q3", "total?", "--data", "sales.csv", "--model", "script:steps.py")
    assert asked.stdout.strip() == "4.0"
    assert "sales" in asked.stderr
    assert cave("run", "q3", "prog.py").stdout.strip() == "total 4.0"
    rows = json.loads(cave("vars", "q3", "--json").stdout)
    assert [(r["name"], r["type"]) for r in rows] == [("sales", "DataFrame"), ("total", "float")]
    assert "DataFrame" in cave("vars", "q3").stdout
    cave("get", "q3", "sales", "-o", "back.csv")
    assert pd.read_csv("back.csv").amount.tolist() == [1.5, 2.5]
    assert cave("get", "q3", "total").stdout.strip() == "4.0"
    assert json.loads(cave("get", "q3", "total", "--json").stdout) == 4.0
    cave("put", "q3", "other=sales.csv")
    cave("run", "q3", "-", stdin="open('note.txt', 'w').write(str(len(other)))")
    assert cave("files", "q3").stdout.split() == ["note.txt"]
    cave("save", "q3", "note.txt", "taken/")
    assert Path("taken/note.txt").read_text() == "2"
    lines = [json.loads(line) for line in cave("log", "q3", "--json").stdout.splitlines()]
    assert [e["seq"] for e in lines] == list(range(1, len(lines) + 1))
    assert {"turn.started", "cell.finished", "values.put"} <= {e["type"] for e in lines}
    assert "cell.started" in cave("log", "q3").stdout
    shown = json.loads(cave("show", "q3", "--json").stdout)
    assert (shown["cells"], len(shown["turns"])) == (3, 1)
    pid = shown["kernel"]["pid"]
    assert f"pid {pid}, Python" in cave("show", "q3").stdout
    assert [r["name"] for r in json.loads(cave("ls", "--json").stdout)] == ["q3"]
    cave("export", "q3", "-o", "q3.ipynb")
    assert json.loads(Path("q3.ipynb").read_text())["nbformat"] == 4
    closed = cave("close", "q3")
    assert closed.stderr.splitlines() == ["closed 'q3'"]
    assert cave("get", "q3", "total").stdout.strip() == "4.0"
    cave("rm", "q3", "--yes")
    assert json.loads(cave("ls", "--json").stdout) == []


def test_a_wrong_name_proposes_the_right_one(desk: Path) -> None:
    """Verbs that do not create say which session is meant, with exit code 2."""
    cave("run", "q3", "-", stdin="x = 1")
    for verb in (["show"], ["log"], ["vars"], ["close"], ["interrupt"], ["files"], ["resume"]):
        done = cave(*verb, "q2", code=2)
        assert "no session 'q2'; did you mean 'q3'?" in done.stderr
        assert done.stdout == ""
    assert [r["name"] for r in json.loads(cave("ls", "--json").stdout)] == ["q3"]


def test_exit_codes_and_errors(desk: Path) -> None:
    """A failing cell is 1, a usage error 2, no model 1 with what to type, over budget 4."""
    failed = apart("run", "e", "-", stdin="x = 1\n1/0", code=1)
    assert "ZeroDivisionError" in failed.stdout
    assert "line 2" in failed.stderr
    cave("run", "e", "absent.py", code=2)
    cave("ask", "a/b", "hi", code=2)
    cave("nonsense", code=2)
    assert "ANTHROPIC_API_KEY" in cave("ask", "e", "hi", code=1).stderr
    dead = "openai:m@http://127.0.0.1:9/v1"
    refused = cave("ask", "e", "hi", "--model", dead, code=1).stderr
    assert refused.count("connection to http://127.0.0.1:9/v1 failed") == 1
    Path("loop.py").write_text("steps = ['a = 1', 'b = 2', 'c = 3']\n")
    done = cave("ask", "e", "hi", "--model", "script:loop.py", "--steps", "2", code=4)
    assert done.stderr.count("over_budget") == 1
    assert "cave resume e --steps" in done.stderr
    Path("end.py").write_text("steps = ['print(a + b)']\n")
    raised = cave("resume", "e", "--model", "script:end.py", "--steps", "9")
    assert raised.stdout.strip() == "3"
    bad = cave("ask", "e", "hi", "--data", "absent.csv", code=2)
    assert "absent.csv" in bad.stderr


def test_a_running_cell_is_followed_and_interrupted(
    desk: Path, host: Callable[..., Host], unconfined: None
) -> None:
    """log -f shows what another process does; interrupt stops that, and so does SIGINT to
    `cave run`: both times it exits with 130, and the session is kept."""
    Path("slow.py").write_text(SLOW.format(path=str(desk / "begun")))
    cave("run", "f", "-", stdin="y = 41")
    follower = host(program("log", "f", "-f", "--json"))
    runner = host(program("run", "f", "slow.py"))
    follower.wait_for(lambda line: _is_start_of(2, line))
    wait_for(desk / "begun")
    cave("interrupt", "f")
    assert runner.end(keep=True) == 130
    assert "begun" in runner.rest()
    follower.kill()
    (desk / "begun").unlink()
    runner = host(program("run", "f", "slow.py"))
    wait_for(desk / "begun")
    runner.send(signal.SIGINT)
    assert runner.end(keep=True) == 130
    assert "begun" in runner.rest()
    assert cave("get", "f", "y").stdout.strip() == "41"


def _is_start_of(cell: int, line: str) -> bool:
    event = json.loads(line)
    return event["type"] == "cell.started" and event["cell"] == cell


def test_data_of_every_kind(desk: Path) -> None:
    """csv, tsv, parquet, json, xlsx and sqlite become objects in the session."""
    frame = pd.read_csv("sales.csv")
    frame.to_csv("t.tsv", sep="\t", index=False)
    frame.to_parquet("p.parquet")
    frame.to_json("j.json", orient="records")
    with pd.ExcelWriter("x.xlsx") as book:
        frame.to_excel(book, sheet_name="one", index=False)
        frame.to_excel(book, sheet_name="two", index=False)
    connection = sqlite3.connect("d.sqlite")
    frame.to_sql("sales", connection, index=False)
    connection.close()
    cave("put", "d", "t.tsv", "p.parquet", "j.json", "x.xlsx", "db=d.sqlite")
    done = cave(
        "run",
        "d",
        "-",
        stdin="print(len(t), len(p), len(j), sorted(x),"
        " db.execute('select sum(amount) from sales').fetchone()[0])",
    )
    assert done.stdout.strip() == "2 2 2 ['one', 'two'] 4.0"
    cave("get", "d", "t", "-o", "back.tsv")
    assert Path("back.tsv").read_text() == Path("t.tsv").read_text()


def test_ask_alone_is_a_prompt_loop(desk: Path, forks: ForkServerContext) -> None:
    """`cave ask NAME` in a terminal asks again and again until an empty line."""
    Path("two.py").write_text(
        "from cave.testing import Finish\nsteps = ['print(11)', Finish(), 'print(22)', Finish()]\n"
    )
    ask = program("ask", "p", "--model", "script:two.py")
    with at_terminal(forks, ask, TERM="dumb", NO_COLOR="1") as (process, terminal):
        terminal.expect_exact("> ")
        terminal.send("first\n")
        terminal.expect_exact("11")
        terminal.expect_exact("> ")
        terminal.send("second\n")
        terminal.expect_exact("22")
        terminal.expect_exact("> ")
        terminal.send("\n")
        assert process.end() == 0


def test_doctor_tries_this_machine_and_verifies_a_journal(home: Path) -> None:
    """doctor tries home, journal and kernel; --verify finds a changed record by its number."""
    found = json.loads(cave("doctor", "--json").stdout)
    states = {f["what"]: f["state"] for f in found}
    assert states["kernel"] == "ok"
    assert states["journal"] == "ok"
    assert states["confinement"] == "ok"
    cave("run", "v", "-", stdin="x = 1")
    assert "whole" in cave("doctor", "--verify", "v").stdout
    with sqlite3.connect(home / "cave.db") as connection:
        (table,) = connection.execute(
            "select name from sqlite_master where type='table' and name like '%event%'"
        ).fetchone()
        connection.execute(
            f"update {table} set body = replace(body, 'x = 1', 'x = 2') where seq = 3"
        )
    connection.close()
    assert "3" in cave("doctor", "--verify", "v", code=1).stdout


def test_models_lists_the_operators_and_help_every_verb() -> None:
    """models says what is ready and what is missing; --help names every verb."""
    out = cave("models").stdout
    assert "anthropic" in out
    assert "llama" in out
    text = cave("--help").stdout
    from cave.cli import _Verbs

    for verb in _Verbs.modules:
        assert f"  {verb} " in text


LOOKS = ("show", "log", "vars")
LOOK_ALL = f"""
from cave.cli import cave
for verb in {LOOKS}:
    print("==", verb)
    cave.main([verb, "w"], standalone_mode=False)
"""


def test_at_a_terminal_lines_fit(
    desk: Path, forks: ForkServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """show, log and vars cut their lines at the edge of a terminal, and leave them to a pipe."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    cave("put", "w", "sales.csv")
    with at_terminal(forks, LOOK_ALL, size=(24, 60)) as (_, terminal):
        terminal.expect(pexpect.EOF)
    for verb, shown in zip(LOOKS, terminal.before.split("== ")[1:], strict=True):
        assert shown.startswith(verb)
        assert max(map(len, shown.splitlines())) == 60
        assert max(map(len, cave(verb, "w").stdout.splitlines())) > 60


def test_ctrl_c_ends_the_demo(home: Path, forks: ForkServerContext) -> None:
    """Ctrl-C in a turn stops the story, not only the turn, and the session is deleted."""
    with at_terminal(forks, program("demo"), TERM="dumb") as (process, terminal):
        terminal.expect("turn 1")
        terminal.send("\x03")
        terminal.expect(pexpect.EOF)
        assert process.end() == 130
    assert "turn 3" not in terminal.before
    assert json.loads(cave("ls", "--json").stdout) == []


def test_show_says_when_the_kernel_is_gone(desk: Path) -> None:
    """show names a kernel whose process is gone as not running."""
    cave("run", "g", "-", stdin="x = 1")
    pid = json.loads(cave("show", "g", "--json").stdout)["kernel"]["pid"]
    assert "not running" not in cave("show", "g").stdout
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
    assert f"pid {pid} (not running any more)" in cave("show", "g").stdout
