"""Long cells keep their progress: after a death of the kernel they go on in their midst."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import cave
from cave.events import Inside, SnapshotCommitted
from cave.kernel import cells
from tests import conftest

QUICK = """
import cave, sys
progress = sys.modules['_cave_kernel.progress']
progress.LEAST, progress.SHARE = {least}, 0
"""
"""Progress is kept as often as a test needs it."""
LOOP = """
import time
total, seen = 0, []
print('begin')
for x in cave.each(range({count}), key=lambda n: n % 7):
    total += post({base} + x)
    armed({base} + x)
    seen.append(x)
    print(x)
    time.sleep(0.002)
else:
    print('else')
"""
PLAIN = """
import cave
def doubled(items):
    return [2 * n for n in cave.each(items)]
print(doubled([1, 2]), doubled([3]))
for n in cave.each([1, 2, 3]):
    if n == 2:
        break
else:
    print('else')
n
"""
STATEMENTS = """
made = [object() for _ in range(3)]; print('one')
first = post(2001)
second = [first, post(2002)]; alias = second
print('two', alias is second)
post(2003)
print('three', alias is second, len(made))
"""
AWAITING = """
import asyncio
async def numbers(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i
got, sums = [], []
for x in cave.each(range(40)):
    await asyncio.sleep(0.001)
    sums.append(post(3000 + x))
    async for i in numbers(2):
        got.append((x, i))
print(len(got), sums == list(range(3000, 3040)))
"""
POINTS = ("before", "after")
"""Of the file of an image: before it has its name, and after it."""
KILLED = """
import os, signal, sys
pending = sys.modules['_cave_kernel.image.pending']
class Deadly:
    # stands for `os` in the module that writes images
    def __init__(self, point):
        self.point = point
    def __getattr__(self, name):
        return getattr(os, name)
    def replace(self, *names):
        if self.point == 'before':
            os.kill(os.getpid(), signal.SIGKILL)
        os.replace(*names)
        if self.point == 'after':
            os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_LOOP = """
kept = []
for x in cave.each(range(40)):
    kept.append(post(4000 + x))
    if point := armed(x):
        pending.os = Deadly(point)
        progress.LEAST = get_ipython().progress._due = 0
print(kept == list(range(4000, 4040)))
"""

RESIDENT = """
import os, numpy as np
big = np.zeros(4 << 20); view = big[7:]
path = os.path.join(get_ipython().kernel.objects.images.pending._folder, 'progress')
"""
WRITING = """
sizes, big[-1] = [], 1
for x in cave.each(range(40)):
    big[x * 1000] = post({base} + x)
    if os.path.exists(path):
        sizes.append(os.path.getsize(path))
"""


class World:
    """What the skills have done, and when they end the kernel."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.deadly: dict[int, int] = {}
        self.points: dict[int, str] = {}
        self.session: cave.Session | None = None

    def kill(self, number: int) -> None:
        left = self.deadly.get(number, 0)
        if left and self.session is not None:
            self.deadly[number] = left - 1
            pid = self.session.kernel.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    def since(self, number: int) -> list[int]:
        """What was done from that number on."""
        return [n for n in self.done if number <= n < number + 1000]


WORLD = World()


@cave.skill(effect="write", in_doubt="retry", runs="host")
def post(n: int) -> int:
    """Count a number."""
    if n not in WORLD.done:
        WORLD.done.append(n)
    else:
        raise ValueError(f"{n} was posted before")
    WORLD.kill(n)
    return n


@cave.skill(runs="host")
def armed(n: int) -> str:
    """Where the next image ends the kernel; told once. No ledger knows of it."""
    WORLD.kill(n)
    return WORLD.points.pop(n, "")


@pytest.fixture(scope="module")
def opened() -> Iterator[cave.Session]:
    """A session whose kernel dies when it is told to."""
    with (
        pytest.MonkeyPatch.context() as patch,
        conftest.home_of_its_own(patch),
        conftest.sessions_deleted(),
        cave.open("loop", skills=[post, armed]) as s,
    ):
        WORLD.session = s
        yield s


@pytest.fixture
def session(opened: cave.Session) -> cave.Session:
    """That session, with a kernel that keeps progress often."""
    opened.run(QUICK.format(least=0.05)).raise_for_error()
    return opened


def run_on(s: cave.Session, source: str) -> cave.Cell:
    """Run a cell whose kernel dies, and resume it until it has ended."""
    cell = s.run(source)
    assert cell.status == "died"
    for _ in range(4):
        if s.history[cell.n].status != "died":
            break
        s.resume()
    return s.history[cell.n]


def inside(s: cave.Session, n: int) -> list[Inside]:
    """The places in a cell that it went on from."""
    found = [event.inside for event in s.events() if isinstance(event, SnapshotCommitted)]
    return [place for place in found if place is not None and place.cell == n]


def test_a_loop_goes_on_with_the_next_item(session: cave.Session) -> None:
    """Killed late in a loop with equal keys, it ends as if nothing had been: no effect twice,
    the accumulators right, each line of output there once, and its moment is that of a cell."""
    WORLD.deadly = {90: 1}
    cell = session.run(LOOP.format(count=100, base=0))
    assert cell.status == "died"
    assert f"cell {cell.n} (import time) goes on at statement 4, item" in str(session.plan())
    session.resume()
    cell = session.history[cell.n]
    cell.raise_for_error()
    assert inside(session, cell.n)[-1].items
    assert WORLD.since(0) == list(range(100))
    assert session["seen"] == list(range(100))
    assert session["total"] == sum(range(100))
    assert cell.text.split() == ["begin", *map(str, range(100)), "else"]
    session.run("total = 0")
    session.restore(at=cell.n)
    assert session["total"] == sum(range(100))


def test_elsewhere_it_is_plain_iteration_and_says_so_once(session: cave.Session) -> None:
    """In a function, and with `break`, it gives what a loop gives; it is said one time."""
    text = session.run(PLAIN).raise_for_error().text
    assert text.count("plain iteration") == 1
    assert "[2, 4] [6]" in text
    assert "else" not in text
    assert text.strip().endswith("2")


def test_an_image_inside_a_cell_holds_what_one_between_cells_does(session: cave.Session) -> None:
    """What the kernel itself changes while a cell runs (`input`) is no state of the session."""
    session.run("hidden = sys.modules['_cave_kernel.image.hidden']")
    inside = session.run("print(*hidden.capture())").raise_for_error().text.split()
    assert "hidden:random" in inside
    assert "hidden:builtins" not in inside


def test_an_item_that_is_deadly_twice_stops_the_loop(session: cave.Session) -> None:
    """The loop says which item it is and how many are done; a new cell goes on without it."""
    WORLD.deadly = {1030: 2}
    cell = run_on(session, LOOP.format(count=40, base=1000))
    assert cell.error is not None
    assert cell.error.name == "LoopStopped"
    assert "item 31 of the loop (key 2) has ended the kernel 2 times" in cell.error.message
    assert "30 items are done" in cell.error.message
    assert session["seen"] == list(range(30))
    assert WORLD.since(1000) == list(range(1000, 1031))
    loop = "for x in cave.each(range(31, 40)):\n    total += post(1000 + x)"
    session.run(loop).raise_for_error()
    assert session["total"] == sum(range(1000, 1040)) - 1030


def test_a_cell_goes_on_at_the_statement_that_was_cut(session: cave.Session) -> None:
    """Between plain statements is a boundary as well: what was done is not done again, and
    what was shared there is shared."""
    session.run("progress.LEAST = 0")
    WORLD.deadly = {2003: 1}
    cell = run_on(session, STATEMENTS).raise_for_error()
    assert inside(session, cell.n)[-1].statement == 7
    assert cell.text.split("\n") == ["one", "two True", "three True 3"]
    assert WORLD.since(2000) == [2001, 2002, 2003]


def test_a_loop_that_awaits_goes_on(session: cave.Session) -> None:
    """A loop with `await` and `async for` in it is one as any other."""
    WORLD.deadly = {3035: 1}
    cell = run_on(session, AWAITING).raise_for_error()
    assert (inside(session, cell.n)[-1].items or 0) > 0
    assert cell.text.strip() == "80 True"
    assert WORLD.since(3000) == list(range(3000, 3040))


def test_a_death_while_progress_is_written_costs_that_image_alone(session: cave.Session) -> None:
    """Before the file has its name the loop goes on from the image before, after it from
    this one."""
    WORLD.points = dict(zip((15, 30), POINTS, strict=True))
    session.run(KILLED).raise_for_error()
    cell = run_on(session, KILLED_LOOP).raise_for_error()
    assert WORLD.points == {}
    assert cell.text.strip() == "True"
    assert WORLD.since(4000) == list(range(4000, 4040))
    assert inside(session, cell.n)[-1].items == 31


def test_progress_is_a_difference_from_the_last_snapshot(session: cave.Session) -> None:
    """Large memory that the cell writes little of is not written again, and comes back with
    what was written."""
    session.run(RESIDENT).raise_for_error()
    session.run("progress.LEAST = 0.01")
    WORLD.deadly = {7035: 1}
    cell = run_on(session, WRITING.format(base=7000)).raise_for_error()
    assert inside(session, cell.n)[-1].items
    assert 0 < max(session["sizes"]) < 4 << 20
    assert session.get("big")[::1000][:40].tolist() == list(range(7000, 7040))
    text = session.run("print(big[-1], np.shares_memory(big, view), view[993])").text
    assert text.split() == ["1.0", "True", "7001.0"]


def test_progress_that_would_hold_the_loop_up_waits(session: cave.Session) -> None:
    """What is written costs a loop a twentieth of its time at most."""
    session.run(RESIDENT).raise_for_error()
    session.run("progress.LEAST, progress.SHARE, progress.DISK = 0.01, 20, 1e3")
    session.run(WRITING.format(base=8000)).raise_for_error()
    assert session["sizes"] == []
    session.run("progress.SHARE, progress.DISK = 0, 0.5e9")
    session.run(WRITING.format(base=8100)).raise_for_error()
    assert session["sizes"] != []


@pytest.mark.parametrize("mutant", ["calls", "loop"])
def test_mutants_are_caught(
    session: cave.Session, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    """Without the number of calls so far, or without the items that are done, a loop that goes
    on does not come to its end: the tests above would see it."""
    told_of, gone = cells.told_of, {"calls": 0, "loop": None}[mutant]
    monkeypatch.setattr(cells, "told_of", lambda begin: {**told_of(begin), mutant: gone})
    base = {"calls": 5000, "loop": 6000}[mutant]
    WORLD.deadly = {base + 20: 1}
    cell = session.run(LOOP.format(count=30, base=base))
    assert cell.status == "died"
    session.resume()
    assert session.history[cell.n].error is not None
