"""What watching cells costs: the audit hook, the look at a cell's end, notes, and prints.

    python benchmarks/audit.py [--quick]

Two processes run the same cells of pandas in turn, one of them with the kernel's hook:
ratios are what counts. Then a real kernel times what it does itself. All is time of the
processor, but for the note, which waits for another thread.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]

CELLS = {
    "read a csv of 2 MB": "pd.read_csv(io.StringIO(TEXT))",
    "groupby, agg": "df.groupby('k').agg({'a': 'sum', 'b': ['mean', 'std']})",
    "merge": "df.merge(other, on='k').sort_values('a').head()",
    "texts": "df.c.str.upper().str.split(' ').str[0].value_counts()",
    "apply by rows": "small.apply(lambda row: row.a + row.b, axis=1)",
    "rows one by one": "[small.iloc[i].a for i in range(200)]",
    "describe, pivot": "(df.describe(), df.pivot_table(index='k', values='a'))",
    "show a frame": "small._repr_html_()",
    "pickle": "pickle.loads(pickle.dumps([small, {i: object for i in range(1000)}]))",
    "format 10,000 texts": "[f'{i}: {i * 2}' for i in range(10_000)]",
}

WORKER = """
import io, pickle, sys, time
sys.path.insert(0, {root!r})
import numpy as np, pandas as pd
if {hooked}:
    from tests import _inkernel
    observed = _inkernel.load("observed")
    class Quiet:
        def notice(self, event, args): pass
    sys.addaudithook(observed._hook(Quiet()))
r = np.random.default_rng(0)
n = 50_000
df = pd.DataFrame({{"k": r.integers(0, 100, n), "a": r.normal(size=n), "b": r.normal(size=n)}})
df["c"] = [f"text {{i % 100}}" for i in range(n)]
other = pd.DataFrame({{"k": range(100), "v": range(100)}})
small = df.head(500)
TEXT = df.to_csv(index=False)
for line in sys.stdin:
    code = compile(line, "cell", "eval")
    began = time.process_time()
    eval(code)
    print(time.process_time() - began, flush=True)
"""

INSIDE = """
import statistics, sys, time
from IPython import get_ipython
observer = get_ipython().kernel.observer
def us(call, n={n}, clock=time.thread_time):
    found = []
    for _ in range(n):
        began = clock(); call(); found.append(clock() - began)
    return statistics.median(found) * 1e6
def note(count=iter(range(10**9))):
    observer._publish(observer._notes, f"wrote {{next(count)}}")
prints = sys.modules[type(get_ipython().kernel).__module__.rpartition(".")[0] + ".prints"]
print(us(lambda: observer._held.end((), excused=False)), us(note, 50, time.perf_counter))
print(us(lambda: prints.of(df)), us(lambda: prints.of([1, "a", {{}}])))
"""


class Worker:
    """A process that runs cells and says how long each took."""

    def __init__(self, *, hooked: bool) -> None:
        code = WORKER.format(root=str(ROOT), hooked=hooked)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, source: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(source, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def pairs(rounds: int) -> Table:
    """Each cell in both processes, in turn; the ratio of the medians."""
    table = Table("cell", "without ms", "with the hook ms", "ratio")
    without, hooked = Worker(hooked=False), Worker(hooked=True)
    ratios = []
    for name, source in CELLS.items():
        found: tuple[list[float], list[float]] = ([], [])
        for at in range(rounds + 2):
            for worker in (0, 1) if at % 2 else (1, 0):
                spent = (without, hooked)[worker].seconds(source)
                if at > 1:
                    found[worker].append(spent)
        before, after = (statistics.median(one) * 1000 for one in found)
        ratios.append(min(found[1]) / min(found[0]))
        table.add_row(name, f"{before:.2f}", f"{after:.2f}", f"{after / before:.3f}")
    table.add_row("all: mean ratio of the best runs", "", "", f"{statistics.mean(ratios):.3f}")
    without.close()
    hooked.close()
    return table


def inside(rounds: int) -> Table:
    """What a real kernel needs for a cell's end, a note, and prints."""
    sys.path.insert(0, str(ROOT))
    from tests.kernel._host import Host, text

    table = Table("in a kernel", "µs")
    with tempfile.TemporaryDirectory(prefix="cave-bench-") as folder:
        host = Host(Path(folder))
        try:
            host.start()
            host.run("import pandas as pd, numpy as np, pyarrow")
            host.run("for i in range(1000): open(f'file{i}', 'w').close()")
            host.run("df = pd.DataFrame({'a': np.arange(1e6), 'b': ['x'] * 1_000_000})")
            done = host.run(INSIDE.format(n=rounds * 10))
        finally:
            host.close()
    names = ("the look at a cell's end, 1,000 files", "a note, in the spool",
             "print of a frame of 1,000,000 rows", "print of a small list")  # fmt: skip
    for name, spent in zip(names, text(done).split(), strict=True):
        table.add_row(name, f"{float(spent):.0f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    rounds = 10 if parser.parse_args().quick else 50
    console = Console()
    console.print(pairs(rounds))
    console.print(inside(rounds))


if __name__ == "__main__":
    main()
