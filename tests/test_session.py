"""The session as a person uses it: open, run, put, get, look back, close."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

import cave
from cave.events import KernelEnded, SessionOpened

pytestmark = pytest.mark.usefixtures("sessions")


def test_open_twice_gives_the_same_session_with_the_new_settings() -> None:
    """A second open in one process is the same Session, and what it says applies."""
    first = cave.open("q3")
    again = cave.open("q3", policy=cave.Policy(cell_timeout=0.5))
    assert again is first
    cell = again.run("import time\ntime.sleep(30)")
    assert cell.status == "timeout"


@pytest.mark.parametrize("name", ["a/b", "", "..", ".hidden", "-x", "a b", "x" * 101, "ö"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    """Names are letters, digits, '.', '_' and '-'; others are a ConfigError naming them."""
    with pytest.raises(cave.ConfigError, match="cannot be called"):
        cave.open(name)


def test_history_is_by_number_and_numbers_are_never_used_again() -> None:
    """history[n] is cell n, also after a restart and a reopening."""
    s = cave.open("numbers")
    assert [s.run(str(i)).n for i in range(3)] == [1, 2, 3]
    s.restart()
    assert s.run("'after'").n == 4
    s.close()
    s = cave.open("numbers")
    assert s.run("'again'").n == 5
    assert s.history[2].text == "1"
    assert s.history[-1].text == "'again'"
    assert [c.n for c in s.history] == [1, 2, 3, 4, 5]
    with pytest.raises(IndexError, match="no cell 9"):
        s.history[9]


def test_close_says_what_is_lost_and_the_session_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """close names the variables that no snapshot has; the others come back; a closed Session
    says that it is."""
    s = cave.open("closing")
    s.run("a = 1\nb = (i for i in 'xy')")
    pid = s.kernel.pid
    s.close()
    told = capsys.readouterr().err
    assert "b (generator)" in told
    assert "a (int)" not in told
    assert not psutil.pid_exists(pid)
    with pytest.raises(cave.ConfigError, match="closed"):
        s.run("1")
    s = cave.open("closing")
    assert s.run("print(a)").text.strip() == "1"
    assert "generator" in str(s.run("next(b)").error)
    ended = [e for e in s.events() if isinstance(e, KernelEnded)]
    assert [v.name for v in ended[0].lost] == ["b"]
    assert isinstance(s.events()[0], SessionOpened)


def test_restart_ends_every_process_of_the_kernel() -> None:
    """Children, also those in sessions of their own, end with a restart."""
    s = cave.open("tree")
    cell = s.run(
        "import subprocess\n"
        "p = subprocess.Popen(['sleep', '999'])\n"
        "q = subprocess.Popen(['setsid', 'sleep', '998'])\n"
        "print(p.pid, q.pid)"
    )
    pids = [int(p) for p in cell.text.split()]
    lost = s.restart()
    assert {v.name for v in lost} >= {"p", "q"}
    assert not any(psutil.pid_exists(p) for p in pids)
    assert s.run("1").ok


def test_it_works_inside_a_running_loop() -> None:
    """The sync API works where an event loop already runs, as in a notebook."""

    async def notebook() -> str:
        return cave.open("loop").run("6 * 7").text

    assert asyncio.run(notebook()) == "42"


def test_the_async_twin() -> None:
    """open_async has the same names; what touches the kernel is awaited."""

    async def work() -> tuple[str, list[str], Any]:
        async with cave.open_async("twin") as s:
            await s.put(x=20)
            cell = await s.run("y = x + 1\ny")
            return cell.text, [v.name for v in await s.vars()], await s.get("y")

    assert asyncio.run(work()) == ("21", ["x", "y"], 21)


def test_sessions_and_delete(home: Path) -> None:
    """sessions lists, delete ends the kernel and forgets; a wrong name proposes the nearest."""
    s = cave.open("gone")
    s.run("open('f.txt', 'w').write('x')")
    pid = s.kernel.pid
    assert [row.name for row in cave.sessions()] == ["gone"]
    with pytest.raises(cave.SessionNotFound, match="did you mean 'gone'"):
        cave.delete("gonne")
    cave.delete("gone")
    assert not cave.sessions()
    assert not psutil.pid_exists(pid)
    assert not (home / "sessions" / "gone").exists()


def test_export_writes_the_story(tmp_path: Path) -> None:
    """export makes a valid notebook and a script from the journal."""
    import nbformat

    s = cave.open("story")
    s.run("print('hello')\n1 + 1")
    path = s.export(tmp_path / "story.ipynb")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [c.source for c in notebook.cells if c.cell_type == "code"] == ["print('hello')\n1 + 1"]
    script = s.export(tmp_path / "story.py").read_text()
    assert "print('hello')" in script


def ignore(message: Any) -> None:
    """Takes output and leaves it."""


def test_foreign_clients_are_refused_until_they_are_admitted() -> None:
    """Another client of the kernel runs cells only after attach; then they are journaled."""
    from jupyter_client.blocking.client import BlockingKernelClient

    s = cave.open("shared")
    s.run("y = 41")
    client = BlockingKernelClient(connection_file=s.kernel.connection_file)
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=20)
        refused = client.execute_interactive("y += 1", timeout=20, output_hook=ignore)
        assert refused["content"]["status"] == "error"
        assert s["y"] == 41
        assert "jupyter console --existing" in s.attach()
        done = client.execute_interactive("y += 1\nprint(y)", timeout=20, output_hook=ignore)
        assert done["content"]["status"] == "ok"
    finally:
        client.stop_channels()
    assert s["y"] == 42
    foreign = [c for c in s.history if c.origin == "foreign"]
    assert [(c.source, c.text) for c in foreign] == [("y += 1\nprint(y)", "42")]
