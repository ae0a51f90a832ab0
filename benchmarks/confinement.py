"""What confinement costs: a start to the first cell, and a cell; in pairs, with and without.

`python benchmarks/confinement.py [PAIRS]`. Processor time of all processes that were started
stands beside the time on the wall, which says little on a busy machine.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from cave.kernel import Confinement, Launch, start

CELLS = 200


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
        used = sum(
            sum(psutil.Process(pid).cpu_times()[:2])
            for pid in (kernel.record.pid, kernel.record.keeper)
        )
        best = 1e9
        for cell in range(2, CELLS):
            began = time.perf_counter()
            await kernel.execute("x = 1", cell=cell, lease=1)
            best = min(best, time.perf_counter() - began)
    finally:
        await kernel.end(reason="closed")
    return {"start, wall s": wall, "start, CPU s": used, "cell, least ms": 1000 * best}


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
        ratio = statistics.median(c / f for f, c in values)
        print(
            f"{what:16} open {statistics.median(free):8.3f}   "
            f"confined {statistics.median(confined):8.3f}   ratio of pairs {ratio:.3f}"
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 9))
