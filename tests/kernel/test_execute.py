"""Cells on a real kernel: results, numbers, statements, order, and what must not end it."""

from __future__ import annotations

import asyncio

import pytest

from tests.kernel._host import Host, text

QUIET = "import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n"
"""Python 3.12 and later warn of a fork beside threads, which every Jupyter kernel has."""


def test_a_cell_gives_its_outputs_in_order_and_its_delta(host: Host) -> None:
    """Streams and results come back merged, in order, with the names that the cell made."""
    done = host.run("fresh = 3\nprint('a')\nprint('b')\nfresh + 1")
    assert done.status == "ok"
    assert [(o.kind, o.name, o.text) for o in done.outputs] == [
        ("stream", "stdout", "a\nb\n"),
        ("execute_result", "", ""),
    ]
    assert done.outputs[1].data["text/plain"] == "4"
    assert [v.name for v in done.delta.added] == ["fresh"]
    assert done.kept
    assert done.spool > 0


def test_an_error_is_told_with_name_message_and_plain_traceback(host: Host) -> None:
    """A cell that raises has status error and a fault without colours."""
    done = host.run("def f():\n    return missing_name\nf()")
    assert done.status == "error"
    assert done.error is not None
    assert done.error.name == "NameError"
    assert done.error.message == "name 'missing_name' is not defined"
    assert "\x1b" not in done.error.traceback
    assert "return missing_name" in done.error.traceback
    assert host.run("1").status == "ok"


def test_in_and_out_count_as_the_session_does(host: Host) -> None:
    """The kernel numbers In and Out by the cell numbers of its host, also after a jump."""
    next(host.numbers)
    number = next(host.numbers)
    host.run("'here'", cell=number)
    done = host.run(f"Out[{number}], In[{number}], _{number}, len(In)", cell=number + 1)
    next(host.numbers)
    assert text(done) == f"('here', \"'here'\", 'here', {number + 2})"


def test_status_tells_the_running_statement(host: Host) -> None:
    """While a cell runs the kernel answers which statement of how many it is at."""

    async def look() -> dict[str, object]:
        cell = asyncio.ensure_future(
            host.send(
                "a = 1; b = 2\nimport time\nwhile not a > 5: time.sleep(0.01); a += 0.1\nc = 3"
            )
        )
        while True:
            running = (await host.kernel.status())["running"]
            if running and running["statement"] == 4:
                await cell
                return dict(running)
            await asyncio.sleep(0.005)

    running = host(look())
    assert (running["statement"], running["of"], running["line"]) == (4, 5, 3)
    assert host(host.kernel.status())["running"] is None


def test_nested_cells_keep_the_place_of_the_outer_one(host: Host) -> None:
    """A cell that runs another goes on at its own next statement."""
    done = host.run("x = 1\nget_ipython().run_cell('y = 2; z = 3')\nprint(x + y + z)")
    assert "6" in text(done)
    assert host(host.kernel.status())["running"] is None


def test_top_level_await_works(host: Host) -> None:
    """`await` at the top level runs; tasks left pending go on into the next cell."""
    assert host.run("import asyncio\nawait asyncio.sleep(0.01)\nprint('slept')").status == "ok"
    host.run("async def tick():\n    await asyncio.sleep(0.05); ticked.append(1)\nticked = []")
    host.run("task = asyncio.create_task(tick())")
    done = host.run("await task; print(ticked)")
    assert text(done) == "[1]\n"


def test_asyncio_run_is_a_clear_error_and_the_kernel_goes_on(host: Host) -> None:
    """`asyncio.run` in a cell says why it cannot be; the next cell runs."""
    done = host.run("import asyncio\nasync def f(): return 5\nasyncio.run(f())")
    assert done.status == "error"
    assert done.error is not None
    assert "running event loop" in done.error.message
    assert text(host.run("await f()")) == "5"


@pytest.mark.parametrize(
    "source", ["input('name? ')", "import getpass; getpass.getpass()", "[input() for _ in 'a']"]
)
def test_input_is_refused_at_once(host: Host, source: str) -> None:
    """A cell that asks for input fails in well under a second, and says what to do instead."""
    done = host.run(source)
    assert done.status == "error"
    assert done.error is not None
    assert "no stdin" in done.error.message
    assert "s.put" in done.error.message
    assert "cave/inkernel" not in done.error.traceback
    assert done.seconds < 1


@pytest.mark.parametrize(
    "source", ["import sys; sys.exit(3)", "exit()", "quit()", "exit", "raise SystemExit"]
)
def test_exits_are_errors_of_the_cell(host: Host, source: str) -> None:
    """Leaving the interpreter is a cell's fault: no warning, and the kernel lives."""
    pid = text(host.run("import os; os.getpid()"))
    done = host.run(source)
    assert done.status == "error"
    assert done.error is not None
    assert done.error.name == "SystemExit"
    assert "To exit" not in text(done)
    assert text(host.run("import time; time.sleep(0.15); os.getpid()")) == pid


def test_a_task_that_exits_does_not_end_the_kernel(host: Host) -> None:
    """SystemExit and KeyboardInterrupt in a background task leave the loop running."""
    host.run("import asyncio\nasync def leave(): raise SystemExit(1)")
    host.run("left = asyncio.create_task(leave())")
    host.run("await asyncio.sleep(0.05)")
    assert text(host.run("'alive'")) == "'alive'"


def test_exceptions_that_cannot_be_told_end_the_cell_all_the_same(host: Host) -> None:
    """An exception whose text raises, or is huge, gives a bounded error reply."""
    source = "class Bad(Exception):\n    def __str__(self): raise ValueError('no')\nraise Bad"
    done = host.run(source)
    assert done.status == "error"
    assert done.error is not None
    assert done.error.name == "Bad"
    done = host.run("raise ValueError('x' * 5_000_000)")
    assert done.error is not None
    assert len(done.error.message) <= 200_000
    assert sum(len(o.text) for o in done.outputs) < 2_000_000
    assert host.run("1").status == "ok"


def test_two_operators_at_once_get_their_own_replies(host: Host) -> None:
    """Of 2 x 50 cells sent at once each gets its own outputs, and all ran one by one."""

    async def operator(name: str) -> list[str]:
        sent = [host.send(f"order.append({name!r}); print({name!r}, {i})") for i in range(50)]
        return [text(done) for done in await asyncio.gather(*sent)]

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(operator("a"), operator("b")))

    host.run("order = []")
    first, second = host(both())
    assert first == [f"a {i}\n" for i in range(50)]
    assert second == [f"b {i}\n" for i in range(50)]
    assert text(host.run("len(order)")) == "100"


def test_on_output_streams_while_the_cell_runs(host: Host) -> None:
    """Outputs are told while the cell still runs."""

    async def watch() -> str:
        seen = asyncio.Event()
        cell = asyncio.ensure_future(
            host.send(
                "print('early', flush=True)\nwhile not stop: await asyncio.sleep(0.01)",
                on_output=lambda out: seen.set() if "early" in out.text else None,
            )
        )
        await asyncio.wait_for(seen.wait(), 10)
        assert not cell.done()
        cell_status = (await host.kernel.status())["running"]
        await host.kernel.interrupt()
        await cell
        return str(cell_status)

    host.run("import asyncio; stop = False")
    assert "cave:" in host(watch())


def test_results_are_not_kept_alive_for_ever(host: Host) -> None:
    """Of 50 cells that end in a fresh 80 MB array at most two arrays stay in memory."""
    host.run("import numpy as np, resource, gc")
    rss = "int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20"
    before = int(text(host.run(rss)))
    for _ in range(50):
        host.run("np.ones(10_000_000)")
    after = int(text(host.run(rss)))
    assert after - before < 160
    host.run("'small'")
    number = host.run("1").spool and next(host.numbers) - 2
    assert text(host.run(f"Out[{number}]")) == "'small'"


def test_a_fork_that_runs_off_the_end_of_a_cell_ends(host: Host) -> None:
    """A child of os.fork() that returns from the cell does not serve the kernel's sockets."""
    source = (
        QUIET + "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
        "print('parent' if pid else 'child')"
    )
    done = host.run(source)
    assert done.status == "ok"
    assert sorted(text(done).split()) == ["child", "parent"]
    assert text(host.run("'one answer'")) == "'one answer'"


def test_a_forked_child_sends_nothing_on_the_kernels_channels(host: Host) -> None:
    """Displays, and writes to streams that the child still holds, reach neither wire nor spool."""
    before = host(host.kernel.status())["number"]
    done = host.run(
        QUIET + "import logging, os, sys\nfrom IPython.display import display\n"
        "held = sys.stdout\npid = os.fork()\n"
        "if not pid:\n    display('ghost'); held.write('ghost'); held.flush(); os._exit(0)\n"
        "os.waitpid(pid, 0); print('parent')"
    )
    assert text(done) == "parent\n"
    found = list(host.kernel._tape.messages(after=before))
    assert [m.number for m in found] == list(range(before + 1, before + 1 + len(found)))
    assert not [m for m in found if "ghost" in str(m.content.get("data", m.content.get("text")))]


def test_output_of_multiprocessing_children_arrives(host: Host) -> None:
    """Children made by fork print through the kernel, and its channels stay whole."""
    source = (
        "import multiprocessing as mp\n"
        "def work(i): print('child', i)\n"
        "ps = [mp.get_context('fork').Process(target=work, args=(i,)) for i in range(5)]\n"
        "[p.start() for p in ps]; [p.join() for p in ps]; print('done')"
    )
    done = host.run("import warnings; warnings.simplefilter('ignore')\n" + source)
    assert sorted(line for line in text(done).split("\n") if line.startswith("child")) == [
        f"child {i}" for i in range(5)
    ]
    assert host.run("1").status == "ok"
