"""Stopping cells: interrupts, time limits, escalation, and what is left standing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from cave.ports import Executed
from tests.kernel._host import Host, text


async def interrupted(
    host: Host, source: str, *, kill: bool = False, grace: float = 10
) -> Executed:
    """Run `source`, interrupt it once it has begun, and give how it ended."""
    begun = asyncio.Event()
    cell = asyncio.ensure_future(
        host.send("print('begun', flush=True)\n" + source, on_output=lambda _: begun.set())
    )
    await begun.wait()
    await asyncio.sleep(0.05)
    await host.kernel.interrupt(kill=kill, grace=grace)
    return await cell


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time; time.sleep(30)",
        "import asyncio; await asyncio.sleep(30)",
        "import asyncio; await asyncio.sleep(0)\nwhile True: pass",
        "import asyncio; await asyncio.gather(asyncio.sleep(30), asyncio.sleep(30))",
        "get_ipython().run_cell('while True: pass')\nwhile True: pass",
    ],
)
def test_an_interrupt_stops_the_cell_wherever_it_is(host: Host, source: str) -> None:
    """Busy, sleeping or awaiting: the cell ends as interrupted, its output and state kept."""
    host.run("kept = 41")
    began = time.monotonic()
    done = host(interrupted(host, source))
    assert done.status == "interrupted"
    assert done.error is not None
    assert done.error.name == "KeyboardInterrupt"
    assert "cave/inkernel" not in done.error.traceback
    assert "begun" in text(done)
    assert done.kept
    assert time.monotonic() - began < 20
    assert text(host.run("kept")) == "41"


def test_an_interrupt_that_the_cell_catches_leaves_it_ok(host: Host) -> None:
    """A cell that handles KeyboardInterrupt and ends well is ok."""
    source = "import time\ntry:\n    time.sleep(30)\nexcept KeyboardInterrupt:\n    print('caught')"
    done = host(interrupted(host, source))
    assert done.status == "ok"
    assert "caught" in text(done)


def test_a_keyboard_interrupt_of_the_users_own_is_an_error(host: Host) -> None:
    """KeyboardInterrupt raised by the cell itself is an error, not an interrupt."""
    done = host.run("raise KeyboardInterrupt('mine')")
    assert done.status == "error"
    assert done.error is not None
    assert done.error.name == "KeyboardInterrupt"


def test_an_interrupt_of_nothing_does_nothing(host: Host) -> None:
    """Interrupts between cells are true at once and never hit a later cell."""
    for _ in range(20):
        assert host(host.kernel.interrupt())
    host.kernel._process.send(__import__("signal").SIGINT)
    assert host.run("import time; time.sleep(0.05)").status == "ok"


def test_interrupts_at_any_moment_lose_no_reply(host: Host) -> None:
    """SIGINT fired at random moments of short cells: each cell still ends, and is told."""
    import random
    import signal

    async def storm() -> list[str]:
        ended = []
        for _ in range(60):
            cell = asyncio.ensure_future(host.send("z = sum(range(2000))\nprint(z)\nz"))
            await asyncio.sleep(random.random() * 0.012)
            host.kernel._process.send(signal.SIGINT)
            ended.append((await cell).status)
        return ended

    assert set(host(storm())) <= {"ok", "interrupted"}
    assert text(host.run("'well'")) == "'well'"


def test_a_handler_of_the_cells_own_lasts_for_that_cell(host: Host) -> None:
    """A cell that ignores SIGINT does not make the next cell deaf to interrupts."""
    host.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert host(interrupted(host, "while True: pass")).status == "interrupted"


def test_a_deaf_cell_is_left_running_unless_kill_is_asked(host: Host) -> None:
    """Without `kill` interrupt gives False after its grace time; the cell goes on."""
    gate = host.root / "work" / "gate"

    async def deaf() -> tuple[bool, Executed]:
        begun = asyncio.Event()
        source = (
            "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "print('deaf', flush=True)\n"
            f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        )
        cell = asyncio.ensure_future(host.send(source, on_output=lambda _: begun.set()))
        await begun.wait()
        stopped = await host.kernel.interrupt(grace=0.3)
        gate.touch()
        return stopped, await cell

    stopped, done = host(deaf())
    assert not stopped
    assert done.status == "ok"


def test_kill_ends_a_deaf_cell(make_host: Callable[..., Host]) -> None:
    """With `kill` a cell that ignores SIGINT dies by SIGKILL after the grace time."""
    host = make_host()
    host.start()
    source = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    done = host(interrupted(host, source, kill=True, grace=0.3))
    assert done.status == "died"
    assert not done.kept
    assert "begun" in text(done)
    assert host.kernel.death is not None
    assert host.kernel.death.signal == 9


def test_a_time_limit_stops_the_cell_and_keeps_the_state(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell over its limit ends as timeout, and only then; output and state are kept."""
    monkeypatch.setattr(
        "cave.kernel.kernel.TIMEOUT_GRACE", 30.0
    )  # a busy machine's first traceback
    host.run("y = 41")
    began = time.monotonic()
    done = host.run("print('partial')\nwhile True: pass", timeout=0.5)
    assert done.status == "timeout"
    assert done.kept
    assert text(done).startswith("partial\n")
    assert 0.5 < time.monotonic() - began < 15
    assert text(host.run("print(y)")) == "41\n"


def test_a_time_limit_counts_from_the_cells_own_start(host: Host) -> None:
    """A cell that waits behind another is not timed out for that."""

    async def queue() -> list[Executed]:
        slow = host.send("import time; time.sleep(1.6)")
        quick = host.send("'quick'", timeout=1.2)
        return list(await asyncio.gather(slow, quick))

    assert [done.status for done in host(queue())] == ["ok", "ok"]


def test_a_deaf_cell_over_its_limit_is_killed(make_host: Callable[..., Host]) -> None:
    """Two seconds after an ignored SIGINT the kernel is killed; the status stays timeout."""
    host = make_host()
    host.start()
    began = time.monotonic()
    done = host.run(
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('partial')\ntime.sleep(60)",
        timeout=0.3,
    )
    assert done.status == "timeout"
    assert not done.kept
    assert text(done) == "partial\n"
    assert 2 < time.monotonic() - began < 40


def test_an_interrupt_that_names_a_cell_hits_no_other(host: Host) -> None:
    """Fired at any moment around a cell's end, it stops that cell or nothing."""
    import random

    async def storm() -> set[str]:
        ended = set()
        for _ in range(40):
            first, second = next(host.numbers), next(host.numbers)
            source = "z = sum(range(2000)); print(z)"
            cells = [asyncio.ensure_future(host.send(source, cell=n)) for n in (first, second)]
            await asyncio.sleep(random.random() * 0.01)
            assert await host.kernel.interrupt(cell=first)
            ended.add((await cells[1]).status)
            await cells[0]
        return ended

    assert host(storm()) == {"ok"}


def test_an_interrupt_reaches_the_cell_that_it_names(host: Host) -> None:
    """Also when the cell is still on its way; one with another number is not stopped."""

    async def named() -> tuple[bool, bool, str]:
        number = next(host.numbers)
        cell = asyncio.ensure_future(host.send("while True: pass", cell=number))
        await asyncio.sleep(0)
        other = await host.kernel.interrupt(cell=number + 1)
        assert not cell.done()
        mine = await host.kernel.interrupt(cell=number)
        return other, mine, (await cell).status

    assert host(named()) == (True, True, "interrupted")


def test_an_interrupt_after_a_deaf_cell_is_not_lost(host: Host) -> None:
    """What was aimed at a cell with a SIGINT handler of its own does not cover the next."""

    async def deaf() -> None:
        source = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        cell = asyncio.ensure_future(host.send(source + "; time.sleep(1.3)"))
        await asyncio.sleep(0.1)
        await host.kernel.interrupt(grace=0.05)
        await cell

    host(deaf())
    assert host.run("while True: pass", timeout=0.1).kept
