"""Kernels that live and cannot be reached: nobody waits for ever, and nothing is silent."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cave.errors import KernelStartError
from cave.kernel import Kernel, adopt, processes, start
from tests.kernel._desk import until
from tests.kernel._host import Host, alive, text


def left(host: Host) -> Kernel:
    """A kernel whose host has let go of it, adopted anew."""
    host.run("kept = 1")
    host(host.kernel.detach())
    found = host(adopt(host.root / "session", 1))
    assert isinstance(found, Kernel)
    host.kernels.append(found)
    return found


def test_a_kernel_whose_sockets_were_removed_is_ended_and_says_why(
    make_host: Callable[..., Host],
) -> None:
    """A new host does not wait for sockets that are gone: the kernel ends, with the reason."""
    host = make_host()
    kernel = host.start()
    shutil.rmtree(kernel.record.runtime)
    again = left(host)
    began = time.monotonic()
    host(again.catch_up(lease=2, after=10**9, running=None))
    assert time.monotonic() - began < 25  # it would be given up after 30 s
    assert again.death is not None
    assert again.death.reason == "died"
    assert "sockets" in again.death.detail
    assert not alive(kernel.facts.pid)
    later = host(adopt(host.root / "session", 1))
    assert "sockets" in str(getattr(later, "detail", ""))


def test_a_stopped_kernel_is_told_to_go_on(make_host: Callable[..., Host]) -> None:
    """A kernel that someone suspended goes on when a host opens its session."""
    host = make_host()
    kernel = host.start()
    os.kill(kernel.facts.pid, signal.SIGSTOP)
    host(host.kernel.detach())
    again = host(adopt(host.root / "session", 1))
    assert isinstance(again, Kernel)
    host.kernels.append(again)
    host(again.catch_up(lease=2, after=10**9, running=None))
    assert text(host.run("6 * 7", lease=2)) == "42"


def test_a_kernel_that_stops_again_is_an_error_and_lives(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that something keeps stopped is named with what to type; it is not ended."""
    monkeypatch.setattr(processes.Process, "go_on", lambda _: None)  # stopped again at once
    host = make_host()
    kernel = host.start()
    os.kill(kernel.facts.pid, signal.SIGSTOP)
    host(kernel.detach())
    again = host(adopt(host.root / "session", 1))
    assert isinstance(again, Kernel)
    host.kernels.append(again)
    with pytest.raises(KernelStartError, match=r"kill -CONT"):
        host(again.catch_up(lease=2, after=10**9, running=None))
    assert processes.state(kernel.facts.pid) == "T"
    assert again.death is None


def test_a_wedged_kernel_is_an_error_and_lives(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any sign of life the wait ends with an error; silence is not taken for death."""
    host = make_host()
    kernel = host.start()
    monkeypatch.setattr(importlib.import_module("cave.kernel.reach"), "QUIET", 0.5)

    held = host.root / "held"

    async def wedged() -> None:
        line = f"touch '{held}'; exec sleep 600"  # what says so is run by what holds the lock
        source = f"import ctypes; ctypes.PyDLL(None).system({line.encode()!r})"
        cell = asyncio.ensure_future(host.send(source))
        await until(held.exists)
        again = await adopt(host.root / "session", 1)
        assert isinstance(again, Kernel)
        with pytest.raises(KernelStartError, match="has not answered"):
            await again.catch_up(lease=2, after=0, running=1)
        assert again.death is None
        assert alive(kernel.facts.pid)
        await again.detach()
        os.kill(kernel.facts.pid, signal.SIGKILL)
        await cell

    host(wedged())


@pytest.mark.parametrize("stopped", ["kernel", "keeper"])
def test_what_is_stopped_ends_all_the_same(make_host: Callable[..., Host], stopped: str) -> None:
    """`end` ends a kernel that was suspended, and one whose keeper was."""
    host = make_host()
    kernel = host.start()
    pids = {"kernel": kernel.facts.pid, "keeper": kernel.record.keeper}
    os.kill(pids[stopped], signal.SIGSTOP)
    host(kernel.end(reason="restart"))
    assert not [pid for pid in pids.values() if alive(pid)]


def test_objects_cross_when_the_runtime_folder_is_gone(make_host: Callable[..., Host]) -> None:
    """A host that is attached keeps its kernel, and large values go over the wire."""
    host = make_host()
    kernel = host.start()
    host.run("1")
    shutil.rmtree(kernel.record.runtime)
    value = [b"x" * 40_000_000, "y" * 100_000, b""]
    host(kernel.put({"value": value}, lease=1))
    assert text(host.run("[len(v) for v in value]")) == "[40000000, 100000, 0]"
    assert host(kernel.get("value", lease=1)) == value


def test_a_killed_keeper_is_known_at_once(make_host: Callable[..., Host]) -> None:
    """When the keeper is gone too, nobody waits for its word."""
    host = make_host()
    kernel = host.start()

    async def killed() -> None:
        os.kill(kernel.record.keeper, signal.SIGKILL)
        async with asyncio.timeout(15):
            await kernel._dead.wait()

    host(killed())


def test_a_start_that_is_given_up_leaves_nothing(make_host: Callable[..., Host]) -> None:
    """Cancelled at any moment, a start closes its sockets and ends its keeper."""
    host = make_host()

    async def given_up(seconds: float) -> None:
        task = asyncio.ensure_future(start(host.launch()))
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = sockets()
    for seconds in (0, 0.001, 0.003, 0.01, 0.03):
        host(given_up(seconds))
        assert not list((host.root / "run").glob("*"))
        assert sockets() <= before + 2  # the loop's own


def sockets() -> int:
    """How many sockets this process holds."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found += str(fd.readlink()).startswith("socket:")
        except OSError:
            continue
    return found
