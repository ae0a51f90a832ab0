"""Loops over `cave.each`: after a death of the kernel they go on in their midst."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import cave

LOOP = """
import time
total, seen = 0, []
print('begin')
for x in cave.each(range(400), key=lambda n: n % 7):
    total += post(x)
    seen.append(x)
    print(x)
    time.sleep(0.01)
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


class World:
    """What the skill has done, and when it ends the kernel."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.deadly: dict[int, int] = {}
        self.session: cave.Session | None = None

    def kill(self, number: int) -> None:
        left = self.deadly.get(number, 0)
        if left and self.session is not None:
            self.deadly[number] = left - 1
            pid = self.session.kernel.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)


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


@pytest.fixture
def session(home: Path) -> Iterator[cave.Session]:
    """A session whose kernel dies when it is told to."""
    WORLD.__init__()  # type: ignore[misc]
    with cave.open("loop", skills=[post]) as s:
        s.run("import cave")
        WORLD.session = s
        yield s


def test_a_loop_goes_on_with_the_next_item(session: cave.Session) -> None:
    """Killed late in a loop with equal keys, it ends as if nothing had been: no effect twice,
    the accumulators right, each line of output there once, and its moment is that of a cell."""
    WORLD.deadly = {390: 1}
    cell = session.run(LOOP)
    assert cell.status == "died"
    assert any(snapshot.inside == 2 for snapshot in session.snapshots)
    assert "cell 2 (import time) goes on at statement 4, item" in str(session.plan())
    session.resume()
    cell = session.history[2]
    cell.raise_for_error()
    assert WORLD.done == list(range(400))
    assert session["seen"] == list(range(400))
    assert session["total"] == sum(range(400))
    assert cell.text.split() == ["begin", *map(str, range(400)), "else"]
    session.run("total = 0")
    session.restore(at=2)
    assert session["total"] == sum(range(400))


def test_elsewhere_it_is_plain_iteration_and_says_so_once(session: cave.Session) -> None:
    """In a function, and with `break`, it gives what a loop gives; it is said one time."""
    text = session.run(PLAIN).raise_for_error().text
    assert text.count("plain iteration") == 1
    assert "[2, 4] [6]" in text
    assert "else" not in text
    assert text.strip().endswith("2")


def test_an_image_inside_a_cell_holds_what_one_between_cells_does(session: cave.Session) -> None:
    """What the kernel itself changes while a cell runs (`input`) is no state of the session."""
    session.run("import sys\nhidden = sys.modules['_cave_kernel.image.hidden']\nhere = 1")
    inside = session.run("print(*hidden.capture())").raise_for_error().text.split()
    assert inside == ["hidden:home", "hidden:random"]
