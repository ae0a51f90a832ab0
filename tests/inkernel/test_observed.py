"""What a kernel says of a cell's side effects, seen with real kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import _inkernel
from tests.kernel._host import Host


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with a running kernel, whose folder has a few things in it."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        host = Host(Path(folder))
        try:
            host.start()
            host.run(_BEFORE)
            host.run("pass")
            yield host
        finally:
            host.close()


@pytest.fixture
def make_host() -> Iterator[Callable[..., Host]]:
    """Makes hosts without a kernel; what they start is ended."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        hosts: list[Host] = []

        def make(**options: Any) -> Host:
            root = Path(folder, str(len(hosts)))
            root.mkdir()
            hosts.append(Host(root, **options))
            return hosts[-1]

        try:
            yield make
        finally:
            for host in hosts:
                host.close()


_BEFORE = """
import asyncio, contextlib, ctypes, io, json, logging, multiprocessing, os, pathlib, pickle
import shutil, signal
import socket, sqlite3, subprocess, sys, tempfile, threading, time, urllib.request, zipfile
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.csv, polars as pl
for name in ("old", "gone", "moved", "mode", "time", "cut", "link", "map"):
    pathlib.Path(name).write_text("0" * 64)
os.makedirs("folder/below"); os.makedirs("deep/below"); os.mkdir("empty")
df = pd.DataFrame({"a": [1, 2]})
URL = "http://me:secret@127.0.0.1:9/p?token=t"
sqlite3.connect("read.db").execute("create table t (a)").connection.close()
"""


def seen(host: Host, source: str) -> list[str]:
    """What was seen of a cell that ran to its end; what it left open goes with the next ones."""
    done = host.run(source)
    assert done.status == "ok", done.error
    return list(done.observed)


DEEDS = [
    ("open('new.txt', 'w').close()", "wrote new.txt"),
    ("with open('old', 'a') as f: f.write('1')", "wrote old"),
    ("with open('old', 'r+b') as f: f.write(b'1')", "wrote old"),
    ("os.close(os.open('flags', os.O_CREAT | os.O_WRONLY))", "wrote flags"),
    ("pathlib.Path('p').write_text('x')", "wrote p"),
    ("pathlib.Path('touched').touch()", "wrote touched"),
    ("df.to_csv('df.csv')", "wrote df.csv"),
    ("df.to_pickle('df.pkl')", "wrote df.pkl"),
    ("df.to_parquet('df.parquet')", "df.parquet"),
    ("np.save('a.npy', np.arange(3))", "wrote a.npy"),
    ("np.memmap('map', mode='r+', shape=64, dtype='u1')[0] = 1", "wrote map"),
    ("pl.DataFrame({'a': [1]}).write_csv('pl.csv')", "changed pl.csv"),
    ("pyarrow.csv.write_csv(pa.table({'a': [1]}), 'pa.csv')", "changed pa.csv"),
    ("pl.DataFrame({'a': [1]}).write_csv('deep/below/pl.csv')", "changed deep/below/pl.csv"),
    ("with zipfile.ZipFile('z.zip', 'w') as z: z.writestr('a', 'b')", "wrote z.zip"),
    ("with open('j.json', 'w') as f: json.dump({}, f)", "wrote j.json"),
    ("sqlite3.connect('some.db').close()", "opened the database some.db"),
    ("shutil.copy('old', 'copy')", "wrote copy"),
    ("os.remove('gone')", "removed gone"),
    ("os.rename('moved', 'moved2')", "renamed moved to moved2"),
    ("os.makedirs('x/y')", "made x/y"),
    ("os.rmdir('empty')", "removed empty"),
    ("shutil.rmtree('folder')", "removed folder"),
    ("os.chmod('mode', 0o600)", "changed the mode of mode"),
    ("os.utime('time', (1, 1))", "changed the times of time"),
    ("os.truncate('cut', 1)", "truncated cut"),
    ("os.link('link', 'link2')", "linked link2"),
    ("os.symlink('link', 'link3')", "linked link3"),
    ("os.mkfifo('fifo')", "changed fifo"),
    ("_ = os.system('true')", "ran true"),
    ("_ = subprocess.run(['true', '-x'])", "ran true -x"),
    ("!true", "forked"),
    ("_ = os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)", "ran true"),
    ("pid = os.fork()\nif not pid: os._exit(0)\n_ = os.waitpid(pid, 0)", "forked"),
    (
        "p = multiprocessing.get_context('fork').Process(target=len)\np.start(); p.join()",
        "forked",
    ),
    ("_ = multiprocessing.get_context('spawn').Pool(1).terminate()", "ran a process"),
    ("p = subprocess.Popen(['sleep', '60'])\np.terminate(); _ = p.wait()", "sent signal 15"),
    (
        "s = socket.create_server(('127.0.0.1', 0))\ns.close()",
        "bound a socket to 127.0.0.1:0",
    ),
    (
        "s = socket.socket()\ns.settimeout(1)\n_ = s.connect_ex(('127.0.0.1', 9))\ns.close()",
        "connected to 127.0.0.1:9",
    ),
    (
        "with socket.socket(type=socket.SOCK_DGRAM) as s: _ = s.sendto(b'x', ('127.0.0.1', 9))",
        "sent to 127.0.0.1:9",
    ),
    (
        "with contextlib.suppress(OSError): urllib.request.urlopen(URL)",
        "requested GET http://127.0.0.1:9/p",
    ),
    ("_ = ctypes.CDLL(None).getpid()", "used getpid of a C library"),
    (
        "t = threading.Thread(target=lambda: open('by-thread', 'w').close())\nt.start(); t.join()",
        "wrote by-thread",
    ),
    ("await asyncio.to_thread(pathlib.Path('by-task').write_text, 'x')", "wrote by-task"),
    ("with tempfile.NamedTemporaryFile() as f: pass", "wrote /"),
    ("logging.FileHandler('app.log').close()", "wrote app.log"),
    ("%%writefile written\nx", "wrote written"),
]


@pytest.mark.parametrize(("source", "text"), DEEDS, ids=[text for _, text in DEEDS])
def test_what_a_cell_does_to_the_world_is_noted(host: Host, source: str, text: str) -> None:
    """Files, processes, sockets, databases, C functions: whichever library does it."""
    found = seen(host, source)
    assert any(text in note for note in found), found
    assert not any("secret" in note or "token" in note for note in found)


HARMLESS = [
    "1 + 1",
    "print('x' * 100_000)",
    "import numpy, pandas, pyarrow, polars, sklearn.linear_model, scipy.stats, requests, PIL.Image",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()",
    "big = pd.DataFrame(np.ones((1000, 1000)))\nbig",
    "df.groupby('a').a.sum()",
    "open('old').read(); pathlib.Path('old').read_bytes(); os.stat('old'); os.listdir()",
    "with open('/dev/null', 'w') as f: f.write('x')",
    "os.makedirs('.', exist_ok=True)",
    "sqlite3.connect(':memory:').execute('select 1').fetchall()",
    "sqlite3.connect('file:read.db?mode=ro', uri=True).close()",
    "io.StringIO().write('x'); df.to_csv(io.StringIO()); pickle.dumps(df)",
    "t = threading.Thread(target=time.sleep, args=(0,))\nt.start(); t.join()",
    "await asyncio.sleep(0)",
    "async def f(): return 1\nawait asyncio.gather(f(), f())",
    "await asyncio.to_thread(len, '')",
    "a, b = socket.socketpair()\na.close(); b.close()",
    "r, w = os.pipe()\nos.close(r); os.close(w)",
    "tempfile.gettempdir()",
    "os.environ['X'] = '1'; os.getpid(); time.sleep(0.001)",
    "import platform, uuid\nplatform.platform(); platform.processor(); uuid.uuid1()",
    "import joblib\njoblib.cpu_count(only_physical_cores=True)",
    "import sklearn.linear_model as lm\nlm.LinearRegression().fit(df[['a']].to_numpy(), [1, 2])",
    "try: 1 / 0\nexcept ZeroDivisionError: import traceback; traceback.format_exc()",
    "try: os.remove('no-such-file')\nexcept FileNotFoundError: pass",
    "np.load(io.BytesIO((lambda b: (np.save(b, np.arange(3)), b.getvalue())[1])(io.BytesIO())))",
    "from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))",
    "%timeit -n1 -r1 1",
    "df?",
]


@pytest.mark.parametrize("source", HARMLESS)
def test_a_harmless_cell_is_seen_as_harmless(host: Host, source: str) -> None:
    """Imports, plots, reading, computing and printing leave no note."""
    host.run("pass")
    assert seen(host, source) == []


@pytest.mark.parametrize(
    ("source", "end", "text"),
    [
        ("f = open('held', 'w')", "f.close()", "still open: held"),
        ("s = socket.create_server(('127.0.0.1', 0))", "s.close()", "still open: a socket bound"),
        (
            "go = threading.Event()\nt = threading.Thread(target=go.wait, name='mine')\nt.start()",
            "go.set(); t.join()",
            "still running: thread mine",
        ),
        (
            "t = asyncio.create_task(asyncio.sleep(1000), name='sleeper')",
            "_ = t.cancel()",
            "still running: task sleeper",
        ),
        (
            "p = subprocess.Popen(['sleep', '1000'])",
            "p.kill(); _ = p.wait()",
            "still running: process",
        ),
        ("m = np.memmap('map', mode='r+', shape=64, dtype='u1')", "del m", "still mapped: map"),
    ],
)
def test_what_a_cell_leaves_open_is_noted_with_it_and_with_those_that_follow(
    host: Host, source: str, end: str, text: str
) -> None:
    """Up to the cell that ends it; then no longer."""
    for cell in (source, "pass", end):
        found = seen(host, cell)
        assert any(note.startswith(text) for note in found), (cell, found)
    host.run("import gc; _ = gc.collect()")
    assert seen(host, "pass") == []


def test_a_deed_is_noted_once_and_not_without_end(host: Host) -> None:
    """Writing a file a thousand times is one note; of a thousand files fifty are named."""
    assert seen(host, "for _ in range(1000): open('same', 'w').close()") == ["wrote same"]
    found = seen(host, "for i in range(200): open(f'many{i}', 'w').close()")
    assert 50 <= len(found) <= 62
    assert found[-1].startswith("changed ")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("open('dying', 'w')", "wrote dying"),
        ("sqlite3.connect('dying.db')", "opened the database dying.db"),
        ("import subprocess\nsubprocess.run(['true'])", "ran true"),
    ],
)
def test_a_cell_that_dies_leaves_its_notes_behind(
    make_host: Callable[..., Host], source: str, text: str
) -> None:
    """The note was in the spool before the act: whoever looks after the death finds it."""
    host = make_host()
    host.start()
    kill = "import os, sqlite3\nNAME = open\n{}\nos.kill(os.getpid(), 9)"
    done = host.run(kill.format(source))
    assert done.status == "died"
    assert text in done.observed


def test_the_next_owner_learns_what_a_cell_had_begun(make_host: Callable[..., Host]) -> None:
    """Also when host and kernel are gone: what was noted is read from the spool."""
    from cave.kernel import left_behind
    from cave.ports import SpooledCell

    host = make_host()
    host.start()
    host.run("open('first', 'w').close()\nimport os; os.kill(os.getpid(), 9)")
    found = host(left_behind(host.root / "session", 1, after=0))
    (cut,) = [e for e in found if isinstance(e, SpooledCell) and e.executed is not None]
    assert cut.executed is not None
    assert cut.executed.status == "died"
    assert cut.executed.observed == ("wrote first",)


def test_a_denied_deed_does_not_hide_what_comes_after(host: Host) -> None:
    """A cell that fails half way has its notes like any other."""
    done = host.run("open('half', 'w').close()\n1 / 0\nopen('other', 'w').close()")
    assert done.status == "error"
    assert done.observed == ("wrote half",)


def test_what_a_recorded_skill_does_is_left_to_the_record(host: Host) -> None:
    """The block around a skill with an effect hides its deeds, also in threads; not those after."""
    source = (
        "import sys, threading\n"
        "observed = sys.modules[type(get_ipython().kernel.observer).__module__]\n"
        "with observed.recorded():\n"
        "    open('by-skill', 'w').close()\n"
        "    t = threading.Thread(target=lambda: open('by-its-thread', 'w').close())\n"
        "    t.start(); t.join()\n"
        "open('by-cell', 'w').close()"
    )
    found = seen(host, source)
    assert "wrote by-cell" in found
    assert not any(note.startswith("wrote by-") for note in found if note != "wrote by-cell")


def test_a_folder_that_nobody_watches_is_looked_through(tmp_path: Path) -> None:
    """Where the system does not tell of changes, they are found by looking, up to a limit."""
    tree: Any = _inkernel.load("tree")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_text("1")
    looked = tree.Looked(str(tmp_path))
    assert looked.names() == []
    (tmp_path / "a" / "one").write_text("12")
    (tmp_path / "two").write_text("")
    assert sorted(looked.names()) == ["a/one", "two"]
    (tmp_path / "two").unlink()
    assert looked.names() == ["two"]
    for i in range(30):
        (tmp_path / f"more{i}").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "ENTRIES", 20)
        with pytest.raises(tree.TooMany):
            looked.names()


@pytest.mark.usefixtures("sessions")
def test_the_journal_tells_what_a_cell_did_before_it_died() -> None:
    """The cell that a death cut carries its notes, at once and when it is read again."""
    import cave

    s = cave.open("dies")
    cell = s.run("open('begun', 'w').close()\nimport os; os.kill(os.getpid(), 9)")
    assert (cell.status, cell.observed) == ("died", ("wrote begun",))
    assert s.history[cell.n].observed == ("wrote begun",)
    assert s.run("1").observed == ()
