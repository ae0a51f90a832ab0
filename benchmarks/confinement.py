"""What confinement costs: a start to the first cell, a cell, a stop; in pairs, with and without.
Beside it what a flood of print costs the host, in memory.

`python benchmarks/confinement.py [PAIRS]`. Processor time of all processes that were started
stands beside the time on the wall, which says little on a busy machine.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from runtime import MB, peak, reset_peak

from cave.kernel import Confinement, Kernel, Launch, start

CELLS = 200
FLOOD = 300
"""MB that one cell prints."""
AIMS = {
    "start, CPU s": "at most 1.10 times",
    "stop, wall ms": "median under 250",
    "print, host grows MB": "at most 32",
}
FAMILY = """
import os, signal, subprocess, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(999)
"""
"""Daemons that are deaf to every signal which one can be deaf to."""


async def measured(folder: Path, number: int, held: Confinement | None) -> dict[str, float]:
    """One kernel from nothing to its end."""
    (folder / "work").mkdir(exist_ok=True)
    launched = Launch(
        "bench", folder / "session", folder / "work", folder / "run", number, confinement=held
    )
    began = time.perf_counter()
    kernel = await start(launched)
    try:
        await kernel.execute("1", cell=1, lease=1)
        wall = time.perf_counter() - began
        used = spent(kernel)
        best = 1e9
        for cell in range(2, CELLS):
            began = time.perf_counter()
            await kernel.execute("x = 1", cell=cell, lease=1)
            best = min(best, time.perf_counter() - began)
        grown = await flood(kernel)
        await kernel.execute(FAMILY, cell=CELLS + 1, lease=1)
    finally:
        began, before = time.perf_counter(), spent(kernel) + buried()
        await kernel.end(reason="closed")
        stop, ended = time.perf_counter() - began, buried()
    return {
        "start, wall s": wall,
        "start, CPU s": used,
        "cell, least ms": 1000 * best,
        "stop, wall ms": 1000 * stop,
        "stop, CPU ms": 1000 * (ended - before),
        "print, host grows MB": grown,
    }


def spent(kernel: Kernel) -> float:
    """Seconds of the processor that a kernel and its keeper have had."""
    pids = (kernel.record.pid, kernel.record.keeper)
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def buried() -> float:
    """Those of all kernels that have ended, with their keepers and what they had started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def flood(kernel: Kernel) -> float:
    """How far the host's memory rises, in MB, while a cell prints."""
    reset_peak()
    before = peak()
    source = f"for _ in range({FLOOD}): print('x' * {MB - 1})"
    await kernel.execute(source, cell=CELLS, lease=1)
    return (peak() - before) / MB


async def main(pairs: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cave-bench-", dir="/tmp") as folder:
        for pair in range(pairs):
            held = [None, Confinement()]
            both = []
            for at in (0, 1) if pair % 2 else (1, 0):
                root = Path(folder, f"{pair}-{at}")
                root.mkdir()  # noqa: ASYNC240 - nothing else runs
                both.append((at, await measured(root, 1, held[at])))
            (_, free), (_, confined) = sorted(both, key=lambda one: one[0])
            for what in free:
                found.setdefault(what, []).append((free[what], confined[what]))
    for what, values in found.items():
        free, confined = zip(*values, strict=True)
        ratio = statistics.median(c / max(f, 0.001) for f, c in values)
        aim = AIMS.get(what, "")
        print(
            f"{what:21} open {statistics.median(free):8.3f}   confined "
            f"{statistics.median(confined):8.3f}   ratio of pairs {ratio:.3f}   {aim}"
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 9))
