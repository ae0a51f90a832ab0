"""The session as a person uses it: open, run, put, get, look back, close."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import cave
from cave.events import KernelEnded, SessionOpened, ValuesPut

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


def test_values_go_in_and_come_back() -> None:
    """put and get carry objects; del, in and iteration see the namespace."""
    s = cave.open("values")
    df = pd.DataFrame({"region": ["n", "s"], "amount": [1.5, float("nan")]})
    s.put(df=df, n=3)
    s["rates"] = {"eur": 1.1}
    pd.testing.assert_frame_equal(s["df"], df)
    assert s["rates"] == {"eur": 1.1}
    assert "df" in s
    assert sorted(s) == ["df", "n", "rates"]
    del s["n"]
    assert "n" not in s
    with pytest.raises(cave.UnknownName, match="'n'"):
        s["n"]
    assert s.get("n", 7) == 7
    assert any(isinstance(e, ValuesPut) for e in s.events())


def test_what_cannot_go_in_is_named_and_nothing_is_put() -> None:
    """A put of something that cannot be pickled names it, binds nothing, harms nothing."""
    s = cave.open("bad-put")
    with pytest.raises(cave.PutError, match="'gen'"):
        s.put(ok=1, gen=(i for i in range(3)))
    assert "ok" not in s
    assert s.run("1 + 1").text == "2"


def test_what_only_pickle_carries_is_refused_until_allowed() -> None:
    """The host does not unpickle what a kernel gives unless the caller says so."""
    s = cave.open("pickle")
    s.run(
        "import collections\nP = collections.namedtuple('P', 'x y')\nq = P(1, 2)"
    ).raise_for_error()
    with pytest.raises(cave.NotPortable, match="allow_pickle=True"):
        s["q"]
    assert tuple(s.get("q", allow_pickle=True)) == (1, 2)


def test_vars_are_facts() -> None:
    """A row of vars says name, type, shape, size, cell and how it would come back."""
    s = cave.open("facts")
    s.run("import pandas as pd\ndf = pd.DataFrame({'a': range(10)})\nx = 1").raise_for_error()
    row = next(v for v in s.vars if v.name == "df")
    assert (row.type, row.shape, row.cell, row.fidelity) == ("DataFrame", (10, 1), 1, "exact")
    assert "a" in row.summary
    assert row.size is not None
    assert row.size >= 80


def test_faults_are_values() -> None:
    """run returns for errors; the error's text is the exception's, and can be raised."""
    s = cave.open("faults")
    cell = s.run("print('before')\ny")
    assert (cell.status, cell.ok) == ("error", False)
    assert str(cell.error) == "NameError: name 'y' is not defined"
    assert cell.text.splitlines() == ["before", "NameError: name 'y' is not defined"]
    with pytest.raises(cave.CellError, match="name 'y'"):
        cell.raise_for_error()
    assert s.run("1").raise_for_error().ok
    assert s.run("print('\\x1b[1;31mred\\x1b[0m')").text == "red"


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


def test_in_and_out_agree_with_the_numbers() -> None:
    """Inside the kernel, In and Out have the numbers of the session."""
    s = cave.open("inout")
    s.run("'one'")
    assert s.run("Out[1] + In[1]").text == "\"one'one'\""


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


def test_threads_queue() -> None:
    """Calls of one Session from many threads all come out, each with its own result."""
    s = cave.open("threads")
    results: dict[int, str] = {}

    def work(i: int) -> None:
        for j in range(3):
            results[10 * i + j] = s.run(f"{10 * i + j} * 2").text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == {k: str(2 * k) for k in results}
    assert len(results) == 18


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


def test_files_are_saved_and_links_are_not_followed(tmp_path: Path) -> None:
    """save copies regular files; links, pipes and ways out of the workdir are refused."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    s = cave.open("files")
    s.run(
        "import os\n"
        "os.makedirs('out', exist_ok=True)\n"
        "open('out/chart.txt', 'w').write('chart')\n"
        f"os.symlink({str(secret)!r}, 'link.txt')\n"
        f"os.symlink({str(tmp_path)!r}, 'folder')\n"
        "os.mkfifo('report.csv')"
    ).raise_for_error()
    assert s.files == ("out/chart.txt",)
    saved = s.save("out/chart.txt", f"{tmp_path}/new/")
    assert saved.read_text() == "chart"
    for name in ("link.txt", "folder/secret", "report.csv", "../work/out/chart.txt", "/etc/hosts"):
        with pytest.raises(cave.ConfigError):
            s.save(name, tmp_path)
    with pytest.raises(cave.ConfigError, match=r"out/chart\.txt"):
        s.save("chart.png", tmp_path)


def test_workdir_is_the_cwd_of_cells() -> None:
    """Cells run in s.workdir."""
    s = cave.open("cwd")
    assert s.run("import os\nprint(os.getcwd())").text == str(s.workdir)


def test_interrupt_from_another_thread_keeps_the_namespace() -> None:
    """An interrupted cell ends with its output so far; objects stay."""
    s = cave.open("stop")
    s.run("y = 41")
    cells: list[cave.Cell] = []
    thread = threading.Thread(
        target=lambda: cells.append(s.run("print('begun', flush=True)\nwhile True: pass"))
    )
    thread.start()
    deadline = time.monotonic() + 20
    while s._inner._fold.running is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert s.interrupt()
    thread.join(20)
    assert cells[0].status == "interrupted"
    assert "begun" in cells[0].text
    assert cells[0].kept
    assert s["y"] == 41


def test_an_interrupt_when_nothing_runs_does_nothing() -> None:
    """interrupt between cells says that nothing runs."""
    s = cave.open("calm")
    came = s.interrupt()
    assert came.stopped
    assert "nothing runs" in came.message
    assert s.run("1").ok


def test_output_of_a_thread_is_seen_in_its_cell() -> None:
    """What a thread prints after its cell has ended belongs to that cell in the history."""
    s = cave.open("late")
    cell = s.run(
        "import threading, time\n"
        "def f():\n    time.sleep(0.5)\n    print('late word')\n"
        "t = threading.Thread(target=f)\nt.start()\nprint('now')"
    )
    assert "late word" not in cell.text
    s.run("t.join()")
    deadline = time.monotonic() + 10
    while "late word" not in s.history[1].text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert s.history[1].text.splitlines() == ["now", "late word"]
    assert "late word" not in s.history[2].text


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


def test_a_fork_of_the_host_does_not_use_the_parents_session() -> None:
    """A forked child that leaves does not end or disturb the session of its parent."""
    s = cave.open("forked")
    s.run("x = 5")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert s["x"] == 5


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


def test_an_error_of_the_caller_is_told_without_our_frames() -> None:
    """What the caller did wrong ends in the caller's line and a few of ours, not in our insides."""
    s = cave.open("frames")
    with pytest.raises(cave.UnknownName) as caught:
        s["nope"]
    assert len(caught.traceback) < 8
