"""Calls of skills next to what Jupyter itself offers a cell: asking its client with `input()`.

    python benchmarks/skills.py [--quick]

A skill of the host without an effect, called and awaited, with the time of the processor that
it takes here and in the kernel; one that runs in the kernel, next to the plain function; a frame
of 100 MB there and back. In a session: what a call costs more when its effect is durable (an
intent before it and a result after it on disk), next to two fsyncs of as many bytes. Calls and
their peers alternate in blocks of one run; times are medians, ratios are what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import cave
from cave.kernel import Kernel, Launch, start, values
from cave.ports import Caller, Declared, SkillAnswer, SkillCall

BLOCK = 50
"""Calls between two looks at the peer."""


@cave.skill(runs="host")
def plus(x: int) -> int:
    """One more, on the host."""
    return x + 1


@cave.skill(runs="host")
async def later(x: int) -> int:
    """The same, to be awaited."""
    return x + 1


@cave.skill(runs="host", effect="write")
def post(x: int) -> int:
    """The same, as an effect."""
    return x + 1


@cave.skill
def here(x: int) -> int:
    """The same, in the kernel."""
    return x + 1


@cave.skill(runs="host")
def same(frame: Any) -> Any:
    """What it was given."""
    return frame


SKILLS = {skill.name: skill for skill in (plus, later, here, same)}
TIMED = """
import time
def timed(n, call):
    found = []
    for i in range(n):
        began = time.perf_counter()
        call(i)
        found.append(time.perf_counter() - began)
    return found
async def timed_async(n, call):
    found = []
    for i in range(n):
        began = time.perf_counter()
        await call(i)
        found.append(time.perf_counter() - began)
    return found
"""


async def on_call(call: SkillCall, _: Caller) -> SkillAnswer:
    value = SKILLS[call.skill].function(**call.arguments)
    if asyncio.iscoroutine(value):
        value = await value
    return SkillAnswer("ok", values.encode(value))


class Ours:
    """A kernel of ours, whose skills are answered on a loop in a thread, as in a session."""

    def __init__(self, root: Path) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._cell = 0
        (root / "work").mkdir()
        self.kernel: Kernel = self(start(self._launch(root)))
        self.kernel.on_call = on_call
        told = [Declared(s.declaration(), s.carried if s is here else None)
                for s in SKILLS.values()]  # fmt: skip
        self(self.kernel.define(told, lease=1))
        self.run(TIMED)

    def _launch(self, root: Path) -> Launch:
        return Launch("bench", root / "session", root / "work", root / "run", 1)

    def __call__(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def run(self, source: str) -> str:
        self._cell += 1
        done = self(self.kernel.execute(source, cell=self._cell, lease=1))
        if done.status != "ok":
            raise RuntimeError(str(done.error))
        return "".join(out.text or out.data.get("text/plain", "") for out in done.outputs)

    def times(self, expression: str) -> list[float]:
        return [float(part) for part in self.run(f"print(*{expression})").split()]

    def close(self) -> None:
        self(self.kernel.end(reason="closed"))


@contextmanager
def raw() -> Iterator[Callable[[int], list[float]]]:
    """Times of `input()` in a stock kernel, answered at once."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")

    def times(n: int) -> list[float]:
        said: list[str] = []
        client.execute_interactive(
            f"print(*timed({n}, lambda i: input()))",
            allow_stdin=True,
            stdin_hook=lambda _: client.input("1"),
            output_hook=lambda message: said.append(message["content"].get("text", "")),
        )
        return [float(part) for part in "".join(said).split()]

    try:
        client.execute_interactive(TIMED, allow_stdin=False)
        times(3)
        yield times
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def median(times: list[float]) -> float:
    return statistics.median(times)


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


def paired(blocks: int, *measures: Callable[[], list[float]]) -> list[float]:
    """Medians of measures that take turns."""
    found: list[list[float]] = [[] for _ in measures]
    for _ in range(blocks):
        for at, measure in enumerate(measures):
            found[at] += measure()
    return [median(times) for times in found]


def measure(table: Table, ours: Ours, blocks: int) -> None:
    call = functools.partial(ours.times, f"timed({BLOCK}, plus)")
    awaited = functools.partial(ours.times, f"await timed_async({BLOCK}, later)")
    with raw() as inputs:
        plain, asynchronous, stock = paired(blocks, call, awaited, lambda: inputs(BLOCK))
    table.add_row("host skill, called", ms(plain), ms(stock), f"{plain / stock:.2f}", "1 ms")
    table.add_row(
        "host skill, awaited", ms(asynchronous), ms(stock), f"{asynchronous / stock:.2f}", "1 ms"
    )
    ours.run("def function(x: int) -> int: return x + 1")
    kernel, bare = paired(
        blocks,
        lambda: ours.times(f"timed({BLOCK}, here)"),
        lambda: ours.times(f"timed({BLOCK}, function)"),
    )
    table.add_row("kernel skill; plain function", ms(kernel), ms(bare), f"{kernel / bare:.0f}", "")


def processor(s: cave.Session, calls: int) -> float:
    """What a call takes of the processor, in both processes: other work adds little to it."""
    source = (
        f"began = time.process_time()\ntimed({calls}, plus)\nprint(time.process_time() - began)"
    )
    began = time.process_time()
    inside = float(s.run(source).raise_for_error().text)
    return (time.process_time() - began + inside) / calls


def fsyncs(folder: Path, n: int) -> list[float]:
    """Times of two appends to a file, each with an fsync."""
    found = []
    with (folder / "peer").open("ab", buffering=0) as file:
        for _ in range(n):
            began = time.perf_counter()
            for _ in range(2):
                file.write(bytes(8192))
                os.fsync(file.fileno())
            found.append(time.perf_counter() - began)
    return found


def measure_durable(table: Table, folder: Path, blocks: int) -> None:
    """Calls in a session, with and without an effect."""
    os.environ["CAVE_HOME"] = str(folder / "home")
    with cave.open("bench", skills=[plus, post], snapshot_every=1000) as s:
        s.run(TIMED).raise_for_error()

        def times(skill: str) -> list[float]:
            told = s.run(f"print(*timed({BLOCK}, {skill}))").raise_for_error().text
            return [float(part) for part in told.split()]

        without, durable, peer = paired(
            blocks, lambda: times("plus"), lambda: times("post"), lambda: fsyncs(folder, BLOCK)
        )
        spent = processor(s, 100 * blocks)
    more = durable - without
    table.add_row("host skill in a session", ms(without), "", "", "1 ms")
    table.add_row("the same, processor: host + kernel", ms(spent), "", "", "1 ms")
    table.add_row("a durable effect, more; 2 fsyncs", ms(more), ms(peer), f"{more / peer:.2f}", "1")


def measure_large(table: Table, ours: Ours, runs: int) -> None:
    ours.run("import numpy as np, pandas as pd\nbig = pd.DataFrame({'a': np.arange(12_500_000.)})")
    there, copied = paired(
        runs,
        lambda: ours.times("timed(1, lambda i: same(big))"),
        lambda: ours.times("timed(1, lambda i: big.copy())"),
    )
    table.add_row(
        "100 MB there and back; copied", ms(there), ms(copied), f"{there / copied:.1f}", ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    quick = parser.parse_args().quick
    table = Table("what", "cave", "raw", "ratio", "aim")
    with tempfile.TemporaryDirectory(prefix="cave-bench-") as folder:
        ours = Ours(Path(folder))
        try:
            measure(table, ours, 2 if quick else 20)
            measure_large(table, ours, 2 if quick else 7)
        finally:
            ours.close()
        measure_durable(table, Path(folder), 2 if quick else 10)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
