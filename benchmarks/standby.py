"""Kernels that need not start from nothing: what forking one off a template saves, and costs.

`python benchmarks/standby.py [PAIRS]`. A start to the first cell's answer, warm and cold in
turn, and the first `import pandas`; processor time of the kernel and its keeper stands beside
the time on the wall, which says little on a busy machine. Then the memory that a template
holds, alone and for each kernel beside it (PSS: pages that are shared count by their share).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from confinement import spent

from cave.kernel import Confinement, Kernel, Launch, start

SEED = 7
PATIENCE = 120.0
"""Seconds in which a template gets ready."""
AIMS = {"start, wall s": "warm 0.15 s, on an idle machine"}

Figures = dict[str, float]


def launch(folder: Path, number: int, *, warm: bool) -> Launch:
    return Launch(
        "bench",
        folder / "session",
        folder / "work",
        folder / "run",
        number,
        hash_seed=SEED,
        confinement=Confinement(),
        templates=folder / "run" if warm else None,
    )


async def measured(launched: Launch) -> Figures:
    """One kernel from nothing to its end. Raises `RuntimeError` where it started otherwise."""
    began = time.perf_counter()
    kernel = await start(launched)
    try:
        await kernel.execute("1", cell=1, lease=1)
        wall, used = time.perf_counter() - began, spent(kernel)
        if kernel.facts.start != ("cold" if launched.templates is None else "warm"):
            raise RuntimeError(f"kernel {launched.number} had a {kernel.facts.start} start")
        began = time.perf_counter()
        await kernel.execute("import pandas", cell=2, lease=1)
        return {
            "start, wall s": wall,
            "start, CPU s": used,
            "import pandas, wall s": time.perf_counter() - began,
        }
    finally:
        await kernel.end(reason="closed")


async def template(folder: Path) -> psutil.Process:
    """Have a cold start begin a template, and wait for it."""
    kernel = await start(launch(folder, 1, warm=True))
    await kernel.end(reason="closed")
    deadline = time.monotonic() + PATIENCE
    while not ready(folder):
        if time.monotonic() > deadline:
            raise RuntimeError("no template got ready")
        await asyncio.sleep(0.1)
    here = str(folder)
    return next(p for p in psutil.process_iter(["cmdline"]) if here in str(p.info["cmdline"]))


def ready(folder: Path) -> bool:
    return any(folder.glob("run/t-??????????"))


def pss(process: psutil.Process) -> float:
    return float(process.memory_full_info().pss) / (1 << 20)


def of_kernel(kernel: Kernel) -> float:
    return sum(pss(psutil.Process(pid)) for pid in (kernel.record.pid, kernel.record.keeper))


async def memory(folder: Path, process: psutil.Process, first: int) -> None:
    """Print what a template holds, and kernels beside it."""
    alone = pss(process)
    print(f"template alone {alone:.0f} MB")
    for warm in (True, False):
        at = first if warm else first + 4
        kernels = [await start(launch(folder, at + n, warm=warm)) for n in range(4)]
        each = sum(map(of_kernel, kernels)) / len(kernels)
        beside = pss(process)
        kind = "warm" if warm else "cold"
        print(f"four {kind} kernels, each with its keeper {each:.0f} MB, template {beside:.0f} MB")
        for kernel in kernels:
            await kernel.end(reason="closed")


async def main(pairs: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cave-bench-", dir="/tmp") as made:
        folder = Path(made)
        (folder / "work").mkdir()
        process = await template(folder)
        for pair in range(pairs):
            both = {}
            for warm in (True, False) if pair % 2 else (False, True):
                both[warm] = await measured(launch(folder, 2 + 2 * pair + warm, warm=warm))
            for what in both[True]:
                found.setdefault(what, []).append((both[True][what], both[False][what]))
        await memory(folder, process, 2 + 2 * pairs)
    for what, values in found.items():
        warm_, cold = zip(*values, strict=True)
        ratio = statistics.median(w / max(c, 0.001) for w, c in values)
        print(
            f"{what:21} warm {statistics.median(warm_):7.3f}   cold {statistics.median(cold):7.3f}"
            f"   ratio of pairs {ratio:.3f}   {AIMS.get(what, '')}"
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 9))
