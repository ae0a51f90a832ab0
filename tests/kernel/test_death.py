"""Deaths: known at once, typed, with what was put out before; and nothing left over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from cave.errors import KernelDied
from tests.kernel._host import WARM, Host, alive, leftovers, text


@pytest.mark.parametrize(
    ("source", "number", "status"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 9, None),
        ("import ctypes; ctypes.string_at(0)", 11, None),
        ("import os; os._exit(3)", None, 3),
        ("import os; os.abort()", 6, None),
    ],
)
def test_a_cell_that_kills_its_kernel_is_told_with_how(
    make_host: Callable[..., Host], source: str, number: int | None, status: int | None
) -> None:
    """The cell ends as died by itself, its output kept, with signal or exit status."""
    host = make_host()
    host.start()
    began = time.monotonic()
    done = host.run("print('before')\n" + source)
    assert time.monotonic() - began < 15
    assert (done.status, done.kept) == ("died", False)
    assert text(done) == "before\n"
    death = host.kernel.death
    assert death is not None
    assert (death.reason, death.signal, death.status) == ("died", number, status)
    assert done.error is not None
    assert str(death) in done.error.message
    assert host.run("1").status == "died"


def test_output_that_was_not_sent_is_read_from_the_spool(make_host: Callable[..., Host]) -> None:
    """What a dying cell had put out above the cap of the wire is not lost."""
    host = make_host()
    host.start()
    done = host.run("print('x' * 3_000_000); print('last')\nimport os; os.kill(os.getpid(), 9)")
    assert done.status == "died"
    assert done.full_size == 3_000_006
    assert text(done).endswith("x\nlast\n")


def test_an_idle_kernels_death_is_known_at_once(make_host: Callable[..., Host]) -> None:
    """Death between cells is known without a request; requests raise KernelDied."""
    host = make_host()
    kernel = host.start()

    async def killed() -> None:
        os.kill(kernel.facts.pid, signal.SIGKILL)
        async with asyncio.timeout(15):
            while kernel.death is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    host(killed())
    for ask in (
        kernel.variables(lease=1),
        kernel.put({"x": 1}, lease=1),
        kernel.get("x", lease=1),
    ):
        with pytest.raises(KernelDied, match=r"kernel died \(signal 9\)"):
            host(ask)


def test_requests_that_wait_are_ended_by_the_death(make_host: Callable[..., Host]) -> None:
    """A put that waits behind a running cell raises KernelDied when the kernel dies."""
    host = make_host()
    kernel = host.start()

    async def waiting() -> None:
        cell = asyncio.ensure_future(host.send("import time; time.sleep(60)"))
        asked = asyncio.ensure_future(kernel.put({"x": 1}, lease=1))
        await asyncio.sleep(0.3)
        os.kill(kernel.facts.pid, signal.SIGKILL)
        assert (await cell).status == "died"
        with pytest.raises(KernelDied):
            await asked

    host(waiting())


def test_silence_is_not_death(host: Host) -> None:
    """A stopped kernel that says nothing for a while is waited for."""

    async def stopped() -> str:
        os.kill(host.kernel.facts.pid, signal.SIGSTOP)
        cell = asyncio.ensure_future(host.send("'back'"))
        await asyncio.sleep(1.5)
        assert not cell.done()
        assert host.kernel.death is None
        os.kill(host.kernel.facts.pid, signal.SIGCONT)
        return text(await cell)

    assert host(stopped()) == "'back'"


_DAEMONS = """
import os, subprocess, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
plain = subprocess.Popen(["sleep", "999"]).pid
subprocess.Popen("setsid sleep 998 & echo $! > daemon; wait", shell=True)
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid: os.write(w, str(pid).encode()); os._exit(0)
    time.sleep(997); os._exit(0)
double = int(os.read(r, 20))
while not os.path.exists("daemon") or not open("daemon").read().strip(): time.sleep(0.01)
print(plain, int(open("daemon").read()), double)
"""


@pytest.mark.parametrize("how", ["closed", "restart", "killed", "exit"])
def test_nothing_that_cells_started_outlives_the_kernel(
    make_host: Callable[..., Host], how: str
) -> None:
    """Children, setsid'd daemons and double forks end with the kernel, however it ends."""
    host = make_host()
    kernel = host.start()
    pids = [int(pid) for pid in text(host.run(_DAEMONS)).split()]
    assert all(alive(pid) for pid in pids)
    keeper = kernel.record.keeper
    if how in {"closed", "restart"}:
        host(kernel.end(reason=how))  # type: ignore[arg-type]
    else:
        host.run("os._exit(0)" if how == "exit" else "os.kill(os.getpid(), 9)")
        host(asyncio.wait_for(kernel._gone.wait(), 5))
    assert not [pid for pid in (*pids, kernel.facts.pid, keeper) if alive(pid)]
    host(buried(keeper))  # not even as a zombie
    assert leftovers(host) == []


async def buried(keeper: int) -> None:
    """At once where it is the host's to bury; a template has to be told of it."""
    while WARM and psutil.pid_exists(keeper):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    assert not psutil.pid_exists(keeper)


def test_a_killed_keeper_takes_its_kernel_along(make_host: Callable[..., Host]) -> None:
    """Without its keeper a kernel does not live on; its death is told without a status."""
    host = make_host()
    kernel = host.start()

    async def killed() -> None:
        os.kill(kernel.record.keeper, signal.SIGKILL)
        await asyncio.wait_for(kernel._gone.wait(), 5)

    host(killed())
    assert not alive(kernel.facts.pid)
    assert kernel.death is not None
    assert (kernel.death.signal, kernel.death.status) == (None, None)


def test_closing_lets_files_and_exit_functions_finish(make_host: Callable[..., Host]) -> None:
    """An ordinary end flushes files that cells left open, and runs atexit functions."""
    host = make_host()
    host.start()
    host.run("f = open('open.txt', 'w'); f.write('kept'); import atexit")
    host.run("n = atexit.register(lambda: open('exit.txt', 'w').write('ran'))")
    host(host.kernel.end(reason="closed"))
    assert (host.root / "work" / "open.txt").read_text() == "kept"
    assert (host.root / "work" / "exit.txt").read_text() == "ran"
    assert host.kernel.death is not None
    assert host.kernel.death.reason == "closed"


def test_a_busy_kernel_is_ended_all_the_same(make_host: Callable[..., Host]) -> None:
    """`end` does not wait for a cell that runs."""
    host = make_host()
    host.start()

    async def busy() -> str:
        cell = asyncio.ensure_future(host.send("print('on', flush=True)\nwhile True: pass"))
        await asyncio.sleep(0.3)
        await host.kernel.end(reason="restart")
        return (await cell).status

    began = time.monotonic()
    assert host(busy()) == "died"
    assert time.monotonic() - began < 30
