"""Whatever cells have started, and however deaf it is: a kernel that is stopped leaves nothing.

6 stops; as many as `scripts/crash ROUNDS` says. `CAVE_CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Callable

import psutil
import pytest

from tests.conftest import processes_of
from tests.kernel._desk import until
from tests.kernel._host import Host, leftovers

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
STOPS = int(os.environ.get("CAVE_CRASH_ROUNDS") or 6)
WAYS = ("closed", "restart", "killed", "busy")
HABITS = ("session", "group", "double", "blocked", "deaf", "stopped", "chain", "threads")

FAMILY = """
import ctypes, json, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
CHILDREN = json.loads('@@')

def live(number, habits):
    if "session" in habits: os.setsid()
    if "group" in habits and "session" not in habits: os.setpgid(0, 0)
    if "double" in habits and os.fork(): os._exit(0)
    if "blocked" in habits: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if "deaf" in habits:
        for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            ctypes.CDLL(None).signal(int(one), ctypes.c_void_p(1))
    if "threads" in habits: threading.Thread(target=time.sleep, args=(999,)).start()
    os.mkdir(f"up{number}")
    if "stopped" in habits: os.kill(os.getpid(), signal.SIGSTOP)
    while "chain" in habits:
        time.sleep(0.005)
        if os.fork(): os._exit(0)
    time.sleep(999)

for number, habits in enumerate(CHILDREN):
    if os.fork() == 0:
        live(number, habits)
while not all(os.path.exists(f"up{number}") for number in range(len(CHILDREN))):
    time.sleep(0.005)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""
BUSY = "import os, time\nos.mkdir('busy')\nwhile True: time.sleep(1)"


async def stop(host: Host, way: str) -> float:
    """Stop the kernel; seconds until it says that nothing is left."""
    kernel, work = host.kernel, host.root / "work"
    cell = asyncio.ensure_future(host.send(BUSY)) if way in {"killed", "busy"} else None
    if cell is not None:
        await until((work / "busy").exists)
    began = time.perf_counter()
    if way == "killed":
        await kernel.interrupt(kill=True, grace=0.01)
        await kernel._gone.wait()
    else:
        await kernel.end(reason="restart" if way == "restart" else "closed")
    took = time.perf_counter() - began
    if cell is not None:
        assert (await cell).status == "died"
    return took


@pytest.mark.timeout(120 + 20 * STOPS)
def test_a_stopped_kernel_leaves_no_process(make_host: Callable[..., Host]) -> None:
    """Children with blocked and ignored signals, in sessions and groups of their own, forked
    twice, stopped, or each forking the next: none is there when the stop returns."""
    draw = random.Random(SEED)
    print(f"seed {SEED}, {STOPS} stops")
    took = []
    for number in range(STOPS):
        children = [
            [habit for habit in HABITS if draw.random() < 0.4] for _ in range(draw.randrange(1, 7))
        ]
        way = WAYS[number % len(WAYS)]
        before = frozenset(psutil.pids())
        host = make_host()
        host.start()
        done = host.run(FAMILY.replace("@@", json.dumps(children)))
        assert done.status == "ok", (children, done.error)
        steady = sum("chain" not in habits for habits in children)
        assert len(processes_of(host.root, before)) > steady
        took.append(host(stop(host, way)))
        left = [process.pid for process in processes_of(host.root, before)]
        assert not left, f"seed {SEED}, stop {number}, {way}: {left} of {children}"
        assert leftovers(host) == []
    print(f"{STOPS} stops, none left; median {1000 * statistics.median(took):.0f} ms, "
          f"longest {1000 * max(took):.0f} ms")  # fmt: skip
