"""What people report of saved and restored sessions, each as a check through the public API."""

from __future__ import annotations

import psutil
import pytest

import cave

from ._kill import kill

pytestmark = pytest.mark.usefixtures("sessions")


def test_a_fresh_session_is_saved_without_what_ipython_keeps() -> None:
    """`a=3; y=6` in a fresh kernel: the snapshot works and its variables are these two."""
    s = cave.open("fresh")
    s.run("a=3; y=6")
    snapshot = s.snapshot()
    assert [v.name for v in snapshot.vars] == ["a", "y"]
    kill(s)
    assert (s["a"], s["y"]) == (3, 6)
    assert {v.name for v in s.vars} == {"a", "y"}


def test_what_cannot_be_pickled_costs_itself_alone() -> None:
    """A generator, an open socket, a held lock and a database connection beside 200 variables:
    all 200 come back, the four are named with type and reason, no snapshot is refused."""
    s = cave.open("costs")
    s.run(
        "import socket, sqlite3, threading\n"
        "for i in range(200):\n    globals()[f'v{i}'] = {'n': i}\n"
        "gen = (i for i in range(3)); next(gen)\n"
        "sock = socket.socketpair()[0]\n"
        "lock = threading.Lock(); got = lock.acquire()\n"
        "conn = sqlite3.connect(':memory:')\nrow = conn.execute('create table t(a)')"
    ).raise_for_error()
    kill(s)
    assert s.run("print(all(globals()[f'v{i}'] == {'n': i} for i in range(200)))").text == "True"
    report = s.last_restore
    assert report is not None
    told = {e.name: e for e in (*report.lost, *report.rebuilt, *report.changed)}
    assert {"gen", "sock", "lock", "conn"} <= told.keys()
    assert all(e.reason and e.type for e in told.values())
    assert {"gen", "sock"} <= {e.name for e in report.lost}


def test_classes_of_the_session_are_the_same_classes_afterwards() -> None:
    """A dict subclass, an Enum, a dataclass and a namedtuple nested in containers and frames:
    isinstance, `is` of members and == hold, and defining a class again behaves as before."""
    s = cave.open("classes")
    s.run(
        "import collections, dataclasses, enum, pandas as pd\n"
        "class Foo(dict):\n    pass\n"
        "class Color(enum.Enum):\n    RED = 1\n    BLUE = 2\n"
        "@dataclasses.dataclass\nclass Item:\n    color: Color\n    tags: list\n"
        "Point = collections.namedtuple('Point', 'x y')\n"
        "nested = {'list': [Foo(a=1), Color.RED, Item(Color.BLUE, ['t']), Point(1, 2)]}\n"
        "frame = pd.DataFrame({'cell': nested['list']})"
    ).raise_for_error()
    check = (
        "one, two, three, four = nested['list']\n"
        "print(type(one) is Foo, two is Color.RED, isinstance(three, Item),\n"
        "      three == Item(Color.BLUE, ['t']), type(four) is Point, four.y == 2,\n"
        "      frame.cell[2] is three, frame.cell[1] is Color.RED)"
    )
    assert set(s.run(check).text.split()) == {"True"}
    kill(s)
    assert set(s.run(check).text.split()) == {"True"}
    again = s.run(
        "old = Foo\nclass Foo(dict):\n    pass\nprint(type(one) is old, type(one) is Foo)"
    )
    assert again.text.split() == ["True", "False"]


def test_restoring_leaves_no_name_of_later() -> None:
    """Snapshot with x=1, then x=2 and z=3, back to the snapshot: x is 1 and there is no z."""
    s = cave.open("later")
    s.run("x = 1")
    s.run("x = 2; z = 3")
    s.restore(at=1)
    assert s["x"] == 1
    assert "z" not in s
    assert "NameError" in str(s.run("z").error)
    kill(s)
    assert s["x"] == 1
    assert "z" not in s


def test_displayed_frames_are_not_kept_forever() -> None:
    """20 cells that end in a fresh frame of 40 MB: the kernel's memory and the snapshots grow
    by less than two of them, also where nothing collects cycles."""
    s = cave.open("shown", snapshot_every=10)
    s.run("import gc, numpy as np, pandas as pd\ngc.disable()")
    source = "pd.DataFrame(np.full((500_000, 10), {n}.0))"
    s.run(source.format(n=0))
    pid = s.kernel.pid
    before = psutil.Process(pid).memory_info().rss
    for n in range(1, 20):
        s.run(source.format(n=n)).raise_for_error()
    assert s.kernel.pid == pid
    assert psutil.Process(pid).memory_info().rss - before < 80_000_000
    assert s.snapshot().size < 2 * 80_000_000


def test_every_restore_of_five_is_the_state_of_its_snapshot() -> None:
    """Five times: change, snapshot, kill, restore: a hash over all variables is the same."""
    s = cave.open("five")
    s.run(
        "import hashlib, pickle, numpy as np\n"
        "state = {'n': 0}\narr = np.zeros(100_000)\nhist = []\n"
        "def digest():\n    said = pickle.dumps((state, hist)) + arr.tobytes()\n"
        "    return hashlib.sha256(said).hexdigest()"
    )
    for n in range(1, 6):
        s.run(f"state['n'] += {n}; hist.append(dict(state)); arr[::{n}] += {n}")
        told = s.run("print(digest())").text
        s.snapshot()
        kill(s)
        assert s.run("print(digest())").text == told
        assert s.run("print(len(hist), state['n'])").text.split() == [str(n), str(n * (n + 1) // 2)]
