"""Asks CaveAgent what `runtime.py` asks cave; run by the interpreter that has it.

Prints a line for each measure: its name, a tab, seconds.
"""

from __future__ import annotations

import asyncio
import statistics
import time


def tell(what: str, began: float) -> None:
    print(f"{what}\t{time.perf_counter() - began}", flush=True)


async def main() -> None:
    began = time.perf_counter()
    from cave_agent.runtime import IPyKernelRuntime, Variable  # type: ignore[import-not-found]

    tell("import", began)
    import numpy as np
    import pandas as pd

    began = time.perf_counter()
    runtime = IPyKernelRuntime()
    await runtime.start()
    await runtime.execute("1")
    tell("cold start to first answer", began)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        await runtime.execute("x = 1")
        times.append(time.perf_counter() - began)
    print(f"x = 1\t{statistics.median(times)}", flush=True)
    frame = pd.DataFrame(np.random.default_rng(1).random((131_072, 10)))
    began = time.perf_counter()
    runtime.inject_variable(Variable("frame", frame))
    await runtime.execute("len(frame)")
    tell("put 10 MB", began)
    began = time.perf_counter()
    await runtime.retrieve("frame")
    tell("get 10 MB", began)
    await runtime.stop()


if __name__ == "__main__":
    asyncio.run(main())
