"""What one open session does: values, cells, files, interrupts, all with one kernel.

Each test has names of its own in the namespace, so that none is in the way of another.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import cave
from cave.events import ValuesPut

from .conftest import home_of_its_own, sessions_deleted


@pytest.fixture(scope="module")
def s() -> Iterator[cave.Session]:
    """A session with one kernel, which the tests of this file share."""
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch), sessions_deleted():
        yield cave.open("shared")


def test_values_go_in_and_come_back(s: cave.Session) -> None:
    """put and get carry objects; del, in and iteration see the namespace."""
    before = {*s}
    df = pd.DataFrame({"region": ["n", "s"], "amount": [1.5, float("nan")]})
    s.put(df=df, n=3)
    s["rates"] = {"eur": 1.1}
    pd.testing.assert_frame_equal(s["df"], df)
    assert s["rates"] == {"eur": 1.1}
    assert "df" in s
    assert {*s} - before == {"df", "n", "rates"}
    del s["n"]
    assert "n" not in s
    with pytest.raises(cave.UnknownName, match="'n'"):
        s["n"]
    assert s.get("n", 7) == 7
    assert any(isinstance(e, ValuesPut) for e in s.events())


def test_what_cannot_go_in_is_named_and_nothing_is_put(s: cave.Session) -> None:
    """A put of something that cannot be pickled names it, binds nothing, harms nothing."""
    with pytest.raises(cave.PutError, match="'gen'"):
        s.put(fine=1, gen=(i for i in range(3)))
    assert "fine" not in s
    assert s.run("1 + 1").text == "2"


def test_what_only_pickle_carries_is_refused_until_allowed(s: cave.Session) -> None:
    """The host does not unpickle what a kernel gives unless the caller says so."""
    s.run(
        "import collections\nP = collections.namedtuple('P', 'x y')\nq = P(1, 2)"
    ).raise_for_error()
    with pytest.raises(cave.NotPortable, match="allow_pickle=True"):
        s["q"]
    assert tuple(s.get("q", allow_pickle=True)) == (1, 2)


def test_vars_are_facts(s: cave.Session) -> None:
    """A row of vars says name, type, shape, size, cell and how it would come back."""
    cell = s.run("import pandas as pd\nten = pd.DataFrame({'a': range(10)})").raise_for_error()
    row = next(v for v in s.vars if v.name == "ten")
    assert (row.type, row.shape, row.cell) == ("DataFrame", (10, 1), cell.n)
    assert row.fidelity == "exact"
    assert "a" in row.summary
    assert row.size is not None
    assert row.size >= 80


def test_faults_are_values(s: cave.Session) -> None:
    """run returns for errors; the error's text is the exception's, and can be raised."""
    cell = s.run("print('before')\nnowhere")
    assert (cell.status, cell.ok) == ("error", False)
    assert str(cell.error) == "NameError: name 'nowhere' is not defined"
    assert cell.text.splitlines() == ["before", "NameError: name 'nowhere' is not defined"]
    with pytest.raises(cave.CellError, match="name 'nowhere'"):
        cell.raise_for_error()
    assert s.run("1").raise_for_error().ok
    assert s.run("print('\\x1b[1;31mred\\x1b[0m')").text == "red"


def test_in_and_out_agree_with_the_numbers(s: cave.Session) -> None:
    """Inside the kernel, In and Out have the numbers of the session."""
    n = s.run("'one'").n
    assert s.run(f"Out[{n}] + In[{n}]").text == "\"one'one'\""


def test_threads_queue(s: cave.Session) -> None:
    """Calls of one Session from many threads all come out, each with its own result."""
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


def test_files_are_saved_and_links_are_not_followed(s: cave.Session, tmp_path: Path) -> None:
    """save copies regular files; links, pipes and ways out of the workdir are refused."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
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


def test_workdir_is_the_cwd_of_cells(s: cave.Session) -> None:
    """Cells run in s.workdir."""
    assert s.run("import os\nprint(os.getcwd())").text == str(s.workdir)


def test_interrupt_from_another_thread_keeps_the_namespace(s: cave.Session) -> None:
    """An interrupted cell ends with its output so far; objects stay."""
    s.run("kept = 41")
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
    assert s["kept"] == 41


def test_an_interrupt_when_nothing_runs_does_nothing(s: cave.Session) -> None:
    """interrupt between cells says that nothing runs."""
    came = s.interrupt()
    assert came.stopped
    assert "nothing runs" in came.message
    assert s.run("1").ok


def test_output_of_a_thread_is_seen_in_its_cell(s: cave.Session) -> None:
    """What a thread prints after its cell has ended belongs to that cell in the history."""
    cell = s.run(
        "import threading, time\n"
        "def f():\n    time.sleep(0.5)\n    print('late word')\n"
        "t = threading.Thread(target=f)\nt.start()\nprint('now')"
    )
    assert "late word" not in cell.text
    joined = s.run("t.join()")
    deadline = time.monotonic() + 10
    while "late word" not in s.history[cell.n].text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert s.history[cell.n].text.splitlines() == ["now", "late word"]
    assert "late word" not in s.history[joined.n].text


def test_a_fork_of_the_host_does_not_use_the_parents_session(s: cave.Session) -> None:
    """A forked child that leaves does not end or disturb the session of its parent."""
    s.run("x = 5")
    kernel = s.kernel.pid
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (s["x"], s.kernel.pid) == (5, kernel)


def test_an_error_of_the_caller_is_told_without_our_frames(s: cave.Session) -> None:
    """What the caller did wrong ends in the caller's line and a few of ours, not in our insides."""
    with pytest.raises(cave.UnknownName) as caught:
        s["nope"]
    assert len(caught.traceback) < 8
