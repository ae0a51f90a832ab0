"""Threads, tasks and pools: their output belongs to the cell that started them."""

from __future__ import annotations

import asyncio

from cave.ports import SpooledOutput
from tests.kernel._host import Host, text


async def late(host: Host, source: str, then: str, pieces: int = 1) -> list[SpooledOutput]:
    """Run `source`, then other cells, until `pieces` late outputs have come."""
    found: list[SpooledOutput] = []
    enough = asyncio.Event()

    def came(output: SpooledOutput) -> None:
        found.append(output)
        if len(found) >= pieces:
            enough.set()

    host.kernel.on_late = came
    await host.send(source)
    done = await host.send(then)
    assert "late" not in text(done)
    await asyncio.wait_for(enough.wait(), 10)
    host.kernel.on_late = None
    return found


def test_a_threads_late_output_goes_to_its_own_cell(host: Host) -> None:
    """A thread that prints after its cell has ended is told as late output of that cell."""
    host.run("import threading, time")
    number = next(host.numbers) + 1
    source = "t = threading.Thread(target=lambda: (time.sleep(0.3), print('late one'))); t.start()"
    found = host(late(host, source, "time.sleep(0.6); print('own')"))
    assert [(o.cell, o.outputs[0].text) for o in found] == [(number, "late one\n")]


def test_pool_workers_print_for_the_cell_that_submitted(host: Host) -> None:
    """One pool used by two cells: each job's output belongs to its submitter."""
    host.run(
        "import concurrent.futures as cf, time\npool = cf.ThreadPoolExecutor(1)\n"
        "def job(s): time.sleep(0.2); print(s)"
    )
    host.run("n = pool.submit(job, 'first').result()")
    done = host.run("n = pool.submit(job, 'second').result()")
    assert text(done) == "second\n"
    host.run("pool.shutdown()")


def test_a_tasks_late_output_goes_to_its_own_cell(host: Host) -> None:
    """A task left running prints for the cell that made it."""
    host.run("import asyncio\nasync def tick(): await asyncio.sleep(0.3); print('late task')")
    number = next(host.numbers) + 1
    source = "task = asyncio.create_task(tick())"
    found = host(late(host, source, "await asyncio.sleep(0.6); print('own')"))
    assert [(o.cell, o.outputs[0].text) for o in found] == [(number, "late task\n")]


def test_late_output_is_found_again_after_a_gap(host: Host) -> None:
    """Late output that nobody took is in the next catch-up, under its cell, once."""
    number = next(host.numbers) + 1
    ended = host.run(
        "import threading, time\nt = threading.Thread("
        "target=lambda: (time.sleep(0.2), print('late a'), print('late b'))); t.start()"
    )
    host(asyncio.sleep(0.6))
    found = host(host.kernel.catch_up(lease=host.lease, after=ended.spool, running=None))
    assert [(o.cell, text_of(o)) for o in found if isinstance(o, SpooledOutput)] == [
        (number, "late a\nlate b\n")
    ]


def test_late_output_above_the_cap_is_named(host: Host) -> None:
    """What a thread puts out above the cap of its ended cell is told by its size, not dropped."""
    source = (
        "import threading, time\ndef flood():\n    time.sleep(0.2)\n"
        "    for _ in range(30): print('x' * 99_999)\nthreading.Thread(target=flood).start()"
    )

    async def flooded() -> tuple[int, str]:
        noted: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def came(output: SpooledOutput) -> None:
            if "of late output" in text_of(output) and not noted.done():
                noted.set_result(text_of(output))

        host.kernel.on_late = came
        ended = await host.send(source)
        note = await noted
        host.kernel.on_late = None
        return ended.spool, note

    after, note = host(flooded())
    size = int(note.partition("[... ")[2].partition(" bytes")[0].replace(",", ""))
    assert 1_000_000 < size < 3_100_000
    (again,) = host(host.kernel.catch_up(lease=host.lease, after=after, running=None)) or [None]
    assert again is None or "of late output" not in text_of(again)  # type: ignore[arg-type]


def text_of(output: SpooledOutput) -> str:
    return "".join(out.text for out in output.outputs)
