"""The async twin when its callers go away, raise, or are two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import cave
from cave.events import CellStarted, Event

pytestmark = pytest.mark.usefixtures("sessions")


async def cancelled(work: Any, after: float) -> None:
    """Begin `work`, and cancel it after some seconds."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_run_is_stopped_and_its_end_is_journaled() -> None:
    """At any moment of `run`: the cell is interrupted, never lost from the history, and the
    interrupt does not hit the next cell."""

    async def work() -> list[tuple[int, str]]:
        async with cave.open_async("cut") as s:
            await s.run("import time\nn = 41")
            for after in (0, 0.001, 0.002, 0.003, 0.005, 0.008, 0.01, 0.2) * 2:
                await cancelled(s.run("time.sleep(20)\nn += 1"), after)
                cell = await asyncio.wait_for(s.run("print(n)"), 10)
                assert (cell.status, cell.text) == ("ok", "41")
            return [(c.n, c.status) for c in s.history]

    ended = asyncio.run(work())
    assert [n for n, _ in ended] == list(range(1, len(ended) + 1))
    assert ended[-2][1] == "interrupted"


def test_a_cancelled_put_is_whole_and_a_cancelled_close_ends() -> None:
    """A put that has begun is bound and journaled or neither; a close goes on to its end."""

    async def work() -> None:
        s = await cave.open_async("whole").open()
        for after in (0, 0.003, 0.05):
            await cancelled(s.put(big=b"x" * 50_000_000), after)
            known = [v.name for v in await s.vars()]
            assert known == list(s._fold.variables)
        await cancelled(s.close(), 0.01)
        again = await cave.open_async("whole", wait=10).open()
        assert (await again.run("1")).ok
        await again.close()

    asyncio.run(work())


def test_a_cancelled_turn_waits_and_releases_the_session() -> None:
    """Cancelled in a cell of a turn, or by leaving its stream: the turn is interrupted, another
    operation runs at once, and resume goes on."""

    async def work() -> None:
        steps = ["import time\ntime.sleep(20)", "import time\ntime.sleep(20)", "print(7)"]
        async with cave.open_async("turn", operator=steps) as s:
            await cancelled(s.ask("go"), 0.4)
            assert (await asyncio.wait_for(s.run("1"), 10)).ok
            assert s.turns[1].status == "interrupted"
            async for event in s.stream("again"):
                if isinstance(event, CellStarted):
                    break
            assert (await asyncio.wait_for(s.run("2"), 10)).ok
            turn = await s.resume()
            assert isinstance(turn, cave.Turn)
            assert (turn.status, turn.answer) == ("done", "7")

    asyncio.run(work())


def test_a_listener_that_raises_tears_nothing() -> None:
    """What `on_event` raises comes to the caller when the work has ended; the journal has it."""

    def bad(event: Event) -> None:
        raise RuntimeError("mine")

    async def work() -> None:
        async with cave.open_async("heard", operator=["x = 1"]) as s:
            with pytest.raises(RuntimeError, match="mine"):
                await s.run("import time\ntime.sleep(0.2)", on_event=bad)
            with pytest.raises(RuntimeError, match="mine"):
                await s.ask("go", on_event=bad)
            assert (await s.run("print(2)")).text == "2"
            assert [c.n for c in s.history] == list(range(1, len(s.history) + 1))

    asyncio.run(work())


def test_two_of_one_name_take_turns() -> None:
    """Two AsyncSessions and a Session of one name act one after the other on one namespace."""

    async def work() -> None:
        a = await cave.open_async("pair").open()
        b = await cave.open_async("pair", wait=10).open()
        sync = cave.open("pair", wait=10)
        await a.run("n = 0")
        for _ in range(3):
            await a.run("n += 1")
            await b.run("n += 1")
            await asyncio.to_thread(sync.run, "n += 1")
        assert await b.get("n") == 9
        assert len(b.history) == 11 - 1
        await a.leave()
        await b.leave()

    asyncio.run(work())
