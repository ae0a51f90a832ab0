"""Places of calls: the same in every run of a cell, however its threads and tasks interleave."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests import _inkernel

lanes = _inkernel.load("lanes")

Places = dict[Any, tuple[int | None, str, int]]


@pytest.fixture(autouse=True)
def submitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, executors and loops are as in a kernel, for the time of a test."""
    threads = _inkernel.load("threads")
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    pool = concurrent.futures.ThreadPoolExecutor
    monkeypatch.setattr(pool, "submit", pool.submit)
    loop = asyncio.BaseEventLoop
    monkeypatch.setattr(loop, "create_task", loop.create_task)
    threads.attribute()


def places(cell: Callable[[Callable[[Any], None]], Any], number: int | None = 7) -> Places:
    """Runs `cell(call)`; what it called, each with its place."""
    found: Places = {}

    def call(what: Any) -> None:
        time.sleep(random.random() / 500)
        lane = lanes.current()
        assert what not in found
        found[what] = lane.cell, lane.path, lane.call()

    def run() -> None:
        with lanes.of_cell(number, "request"):
            made = cell(call)
            if asyncio.iscoroutine(made):
                asyncio.run(made)

    contextvars.copy_context().run(run)
    return found


def test_calls_of_a_cell_are_counted() -> None:
    """The cell's own lane is the empty one; numbers begin with 1 in each cell."""

    def cell(call: Callable[[Any], None]) -> None:
        for name in "abc":
            call(name)

    assert places(cell) == {"a": (7, "", 1), "b": (7, "", 2), "c": (7, "", 3)}
    assert places(cell, 8)["a"] == (8, "", 1)
    assert places(cell, None)["c"] == (None, "@request", 3)


def test_code_of_no_cell_has_a_lane_of_its_own() -> None:
    """Outside of cells no two calls share a place."""
    one, other = lanes.current(), lanes.current()
    assert one.cell is None
    assert one.path[0] == "@"
    assert one.path != other.path


def test_threads_have_lanes_by_the_order_of_their_start() -> None:
    """Also those that a thread starts, and those that bring a context along."""

    def cell(call: Callable[[Any], None]) -> None:
        def work(name: str) -> None:
            call(name)
            inner = threading.Thread(target=call, args=(name + "i",))
            inner.start()
            inner.join()
            call(name + "2")

        context = contextvars.copy_context()
        ends = [threading.Thread(target=work, args=(n,)) for n in "ab"]
        ends.append(threading.Thread(target=context.run, args=(work, "c")))
        for end in ends:
            end.start()
        call("own")
        for end in ends:
            end.join()

    assert places(cell) == {
        "own": (7, "", 1),
        **{n: (7, f"/{i}", 1) for i, n in enumerate("abc", 1)},
        **{n + "i": (7, f"/{i}/1", 1) for i, n in enumerate("abc", 1)},
        **{n + "2": (7, f"/{i}", 2) for i, n in enumerate("abc", 1)},
    }


def test_work_of_an_executor_has_lanes_by_the_order_of_its_submission() -> None:
    """Whichever worker takes it, also when the work brings a context along."""

    def cell(call: Callable[[Any], None]) -> None:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for name in "abcdef":
                pool.submit(call, name)
            pool.submit(contextvars.copy_context().run, call, "g")
            pool.submit(functools.partial(contextvars.copy_context().run, call, "h"))
            list(pool.map(call, ["i", "j"]))

    assert places(cell) == {n: (7, f"/{i}", 1) for i, n in enumerate("abcdefghij", 1)}


def test_tasks_have_lanes_by_the_order_of_their_making() -> None:
    """Gathered, in groups, nested, handed to threads, on loops of the cell's own threads."""

    def cell(call: Callable[[Any], None]) -> Any:
        async def nested(name: str) -> None:
            await asyncio.sleep(random.random() / 500)
            call(name)
            await asyncio.gather(*(leaf(f"{name}{n}") for n in range(3)))
            call(name + "!")

        async def leaf(name: str) -> None:
            await asyncio.sleep(random.random() / 500)
            await asyncio.gather(
                asyncio.to_thread(call, name + "t"), asyncio.to_thread(call, name + "u")
            )
            call(name)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for name in "ab":
                    group.create_task(nested(name))
                group.create_task(nested("c"), context=contextvars.copy_context())
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(None, call, f"x{n}") for n in range(4)))
            other = threading.Thread(target=lambda: asyncio.run(nested("d")))
            other.start()
            await asyncio.to_thread(other.join)
            call("end")

        return main()

    first = places(cell)
    assert first == places(cell) == places(cell)
    assert len(set(first.values())) == len(first)
    assert first["end"] == (7, "/1", 1)
    assert first["b"] == (7, "/1/2", 1)
    assert first["b1"][1] == "/1/2/2"
    assert first["b1u"][1] == "/1/2/2/2/1"


def test_code_that_outlives_its_cell_stays_its_own() -> None:
    """A thread goes on in its lane while the next cell counts from 1."""
    go = threading.Event()
    late: list[Any] = []

    def cell(call: Callable[[Any], None]) -> None:
        def work() -> None:
            go.wait(30)
            lane = lanes.current()
            late.append((lane.cell, lane.path, lane.call()))

        call("first")
        end.append(threading.Thread(target=work))
        end[0].start()

    end: list[threading.Thread] = []
    places(cell)

    def next_cell(call: Callable[[Any], None]) -> None:
        go.set()
        call("next")
        end[0].join()

    assert places(next_cell, 8) == {"next": (8, "", 1)}
    assert late == [(7, "/1", 1)]


def test_outside_of_cells_nothing_is_numbered() -> None:
    """Tasks and threads of the kernel's own have no lane."""
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(lanes.current().path))
    thread.start()
    thread.join()

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(0, lanes.current().path))
        seen.append(await task)

    asyncio.run(main())
    assert all(path[0] == "@" for path in seen)
    assert len(set(seen)) == 2
