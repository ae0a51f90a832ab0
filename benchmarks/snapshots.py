"""Snapshots next to dill, cloudpickle and Kishu, in one run: what a cell costs until its
namespace is on disk, what coming back costs, and what cells notice of it.

    python benchmarks/snapshots.py [--small] [--kishu PYTHON] [--only ROW,...]

Times are medians of runs that alternate with those of the peers, from the end of the cell (of
the call) to the disk; ratios are what counts. dill and cloudpickle know no differences: what
they write is everything, each time. `--kishu` names the interpreter of an environment with
Kishu, which runs the same cells. `--small` is a twentieth of the sizes and few runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import hashlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import numpy as np
import pandas as pd
from peers import FAILED, Kishu, dumped, loaded
from rich.console import Console
from rich.table import Table
from runtime import MB, fsync_time, ms, peak, raw_kernel, reset_peak, resident, stop_raw, timed

import cave

FRAME = """
import numpy as np, pandas as pd
f = pd.DataFrame(np.random.default_rng({seed}).random(({rows}, 10)), copy=False)
"""
MIXED = """
import numpy as np, pandas as pd
_r = np.random.default_rng(1)
m = pd.DataFrame({{f"f{{i}}": _r.random({rows}) for i in range(5)}})
m["i"] = _r.integers(0, 1000, {rows})
m["j"] = np.arange({rows})
m["s"] = [f"name {{i % 5000}}" for i in range({rows})]
m["o"] = pd.Series([f"key {{i % 100}}" if i % 3 else i for i in range({rows})], dtype=object)
m["c"] = pd.Categorical(_r.choice(["red", "green", "blue"], {rows}))
"""
SMALL = """
for i in range({count}):
    globals()[f"v{{i}}"] = {{"name": f"v{{i}}", "list": [i, i + 1]}}
"""
NODES = """
class Node:
    def __init__(self, value, next):
        self.value, self.next = value, next
head = None
for i in range({count}):
    head = Node(i, head)
"""
LOOP = """
import time
began, n = time.process_time(), 0
for i in range({count}):
    n += i & 7
print(time.process_time() - began)
"""


class Node:
    """What dill and cloudpickle are given."""

    def __init__(self, value: int, next: Any) -> None:
        self.value = value
        self.next = next


class Report:
    """Rows of the table, printed as they come and once more at the end."""

    def __init__(self) -> None:
        self.console = Console(width=150)
        self.table = Table("what", "cave", "aim", "dill", "cloudpickle", "Kishu")

    def row(self, what: str, ours: str, aim: str = "", **peers: str) -> None:
        cells = [peers.get(name, "") for name in ("dill", "cloudpickle", "kishu")]
        self.table.add_row(what, ours, aim, *cells)
        told = ", ".join(f"{name} {text}" for name, text in peers.items())
        self.console.print(f"{what}: {ours}  (aim {aim or '-'})  {told}", style="dim")

    def compared(self, what: str, ours: float, aim: str, **peers: float | str) -> None:
        """A row of seconds, the peers' with their ratio."""
        shown = {
            name: given if isinstance(given, str) else f"{ms(given)} ({given / ours:.3g}x)"
            for name, given in peers.items()
        }
        self.row(what, ms(ours), aim, **shown)


# -- the disk ----------------------------------------------------------------------------------


@contextmanager
def no_waiting() -> Iterator[None]:
    """Nothing waits for the disk: what is left is our own work."""
    from cave.store import writer

    fsync, begin = os.fsync, writer.begin
    os.fsync = lambda fd: None
    writer.begin = lambda cursor, *, sync, patience: begin(cursor, sync=False, patience=patience)
    try:
        yield
    finally:
        os.fsync, writer.begin = fsync, begin


def measure_limits(report: Report, folder: Path, size: int) -> None:
    import xxhash

    data = np.random.default_rng(1).random(size // 8)
    target = np.empty_like(data)
    view = memoryview(data).cast("B")

    def best(work: Callable[[], Any]) -> str:
        return f"{size / min(timed(work) for _ in range(3)) / 1e9:.2f} GB/s"

    def write() -> None:
        with (folder / "probe").open("wb") as file:
            file.write(view)
            os.fsync(file.fileno())

    np.copyto(target, data)
    report.row("limit: memcpy", best(lambda: np.copyto(target, data)))
    report.row("limit: xxh3-128", best(lambda: xxhash.xxh3_128_digest(view)))
    report.row("limit: SHA-256, one core", best(lambda: hashlib.sha256(view).digest()))
    report.row("limit: write and fsync", best(write))
    report.row("limit: fsync of 4 KiB", ms(fsync_time(folder)))
    (folder / "probe").unlink()


def middle(found: list[Any]) -> Any:
    """The median; a text when that is what came."""
    texts = [one for one in found if isinstance(one, str)]
    return texts[0] if texts else statistics.median(found)


# -- ours --------------------------------------------------------------------------------------


class Ours:
    """A session, and what its journal says of its snapshots."""

    def __init__(self, name: str, **options: Any) -> None:
        self.session = cave.open(name, **options)
        self.name = name
        self._seq = 0

    def run(self, source: str) -> cave.Cell:
        cell = self.session.run(source)
        if cell.error is not None:
            raise RuntimeError(f"{cell.error.name}: {cell.error.message}")
        return cell

    def committed(self) -> Any:
        """The last snapshot that was journaled."""
        found = None
        for event in self.session.events(after=self._seq):
            self._seq = event.seq
            if type(event).__name__ == "SnapshotCommitted":
                found = event
        return found

    def saved(self, source: str) -> Any:
        """The snapshot after a cell; one that is still on its way is waited for."""
        self.committed()
        self.run(source)
        found = self.committed()
        if found is None:
            self.run("None")
            events = self.session.events(after=0)
            found = [e for e in events if type(e).__name__ == "SnapshotCommitted"][-2]
        return found

    def end(self) -> None:
        cave.delete(self.name)


class Bench:
    """Everything that the rows share."""

    def __init__(self, report: Report, folder: Path, kishu: Kishu, *, small: bool) -> None:
        self.report = report
        self.folder = folder
        self.kishu = kishu
        self.small = small
        self.rounds = 2 if small else 3
        self.turns = 5 if small else 40
        self.part = 20 if small else 1
        self.size = (1 << 30) // self.part
        self.rows = self.size // 80
        self.label = "1 GB" if not small else f"{self.size // MB} MB"

    def frame(self, seed: int = 1) -> str:
        return FRAME.format(seed=seed, rows=self.rows)


def measure_first(bench: Bench) -> None:
    """First dump, memory and pause while it is made."""
    ours, path = Ours("first"), bench.folder / "dump"
    ours.run("import numpy, pandas")
    times: dict[str, list[Any]] = {"cave": [], "dill": [], "cloudpickle": []}
    pauses, grown = [], []
    for n in range(bench.rounds):
        ours.run("f = None")
        frame = pd.DataFrame(np.random.default_rng(n).random((bench.rows, 10)))
        ours.run(f"import gc; gc.collect(); f = 'waits for number {n}'")
        reset_peak(ours.session.kernel.pid)
        before = resident(ours.session.kernel.pid)
        event = ours.saved(bench.frame(n))
        times["cave"].append(event.seconds)
        pauses.append(event.pause)
        # the generator's array is the frame's: what is beyond it is the image's
        grown.append((peak(ours.session.kernel.pid) - before - bench.size) / MB)
        for library in (dill, cloudpickle):
            times[library.__name__].append(dumped(library, {"f": frame}, path))
    kishu = bench.kishu.cell(bench.frame())
    dumps = {name: statistics.median(times[name]) for name in ("dill", "cloudpickle")}
    what = f"{bench.label} of floats"
    bench.report.compared(
        f"first dump, {what}", statistics.median(times["cave"]), "", **dumps, kishu=kishu
    )
    bench.report.row(f"its pause ({what})", ms(statistics.median(pauses)))
    bench.report.row(f"its memory in the kernel ({what})", f"{statistics.median(grown):.0f} MB")
    ours.end()
    path.unlink()


def measure_turns(bench: Bench) -> None:
    """A turn that changes nothing, and one that changes a cell, with 1 GB resident."""
    sides = {"pages": Ours("pages"), "hashes": Ours("hashes")}
    sides["live"] = Ours("live", persistence="live")
    sides["hashes"].run("import os; os.environ['CAVE_TRACKING'] = 'hashes'")
    for side in sides.values():
        side.run(bench.frame())
        for _ in range(3):
            side.run("x = 1")
    frame = pd.DataFrame(np.random.default_rng(1).random((bench.rows, 10)))
    path = bench.folder / "dump"
    dumps = {
        library.__name__: statistics.median(
            dumped(library, {"f": frame}, path) for _ in range(bench.rounds)
        )
        for library in (dill, cloudpickle)
    }
    bench.kishu.cell("x = 1")
    _untouched(bench, sides, dumps)
    _breakdown(bench, sides["pages"])
    _one_cell(bench, sides, dumps)
    for side in sides.values():
        side.end()


def _alternating(
    sides: dict[str, Ours], cell: Callable[[int], str], turns: int
) -> dict[str, list[float]]:
    """Seconds of turns of each side, and of those that keep on disk without waiting for it."""
    times: dict[str, list[float]] = {}
    for turn in range(turns):
        for name, side in sides.items():
            source = cell(2 * turn)
            times.setdefault(name, []).append(timed(lambda: side.run(source)))  # noqa: B023
            source = cell(2 * turn + 1)
            with no_waiting():
                took = timed(lambda: side.run(source))  # noqa: B023
            times.setdefault(f"{name}, no fsync", []).append(took)
    return times


def _extra(times: dict[str, list[float]], name: str, base: str) -> float:
    return statistics.median(a - b for a, b in zip(times[name], times[base], strict=True))


def _untouched(bench: Bench, sides: dict[str, Ours], dumps: dict[str, float]) -> None:
    times = _alternating(sides, lambda _: "x = 1", bench.turns)
    kishu = middle([bench.kishu.cell("x = 1") for _ in range(2)])
    work = _extra(times, "pages, no fsync", "live, no fsync")
    whole = _extra(times, "pages", "live")
    live = statistics.median(times["live"])
    row = bench.report.compared
    row(f"nothing changed, {bench.label} resident: extra over live ({ms(live)})", whole, "",
        **dumps, kishu=kishu)  # fmt: skip
    bench.report.row("  the same without waiting for the disk", ms(work), "1 ms")
    best = min(times["pages, no fsync"]) - min(times["live, no fsync"])
    bench.report.row("  the same, by the quickest of each", ms(best), "1 ms")


def _breakdown(bench: Bench, side: Ours) -> None:
    """Where an untouched turn's time goes, without the disk: medians from its beginning."""
    from cave.journal import Journal
    from cave.kernel import Kernel
    from cave.saving import Saving
    from cave.snapshot import Snapshots

    steps = {
        "cell sent and ended": (Kernel, "execute"),
        "image waited for, and stored": (Saving, "at_once"),
        "of which the store": (Snapshots, "write"),
        "journal": (Journal, "append"),
    }
    spent: dict[str, list[float]] = {step: [] for step in steps}
    with no_waiting(), contextlib.ExitStack() as undo:
        for step, (owner, name) in steps.items():
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, _timing(getattr(owner, name), spent[step]))
        whole = [timed(lambda: side.run("x = 1")) for _ in range(bench.turns)]
    pauses = [e.pause for e in side.session.events() if type(e).__name__ == "SnapshotCommitted"]
    pause = statistics.median(pauses[-bench.turns :])
    parts = [f"{step} {ms(sum(times) / bench.turns)}" for step, times in spent.items()]
    shown = f"{ms(statistics.mean(whole))}: {', '.join(parts)}; the image itself {ms(pause)}"
    bench.report.row("  an untouched turn, on average", shown)


def _timing(function: Any, spent: list[float]) -> Any:
    """`function`, noting how long each call takes."""
    if asyncio.iscoroutinefunction(function):

        async def wait(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return await function(*args, **options)
            finally:
                spent.append(time.perf_counter() - began)

        return wait

    def call(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spent.append(time.perf_counter() - began)

    return call


def _one_cell(bench: Bench, sides: dict[str, Ours], dumps: dict[str, float]) -> None:
    def cell(turn: int) -> str:
        return f"f.iloc[{(turn * 7919) % bench.rows}, {turn % 10}] = {turn}.5"

    for side in sides.values():
        for turn in range(3):
            side.run(cell(turn + 10_000))
        side.committed()
    found: dict[str, list[Any]] = {"pages": [], "hashes": []}
    bare: dict[str, list[Any]] = {"pages": [], "hashes": []}
    for turn in range(bench.turns):
        for name, events in found.items():
            events.append(sides[name].saved(cell(2 * turn)))
            with no_waiting():
                bare[name].append(sides[name].saved(cell(2 * turn + 1)))
    kishu = bench.kishu.cell(cell(1))
    for name, aim in (("pages", "10 ms"), ("hashes", "60 ms")):
        events = found[name]
        what = f"one cell of {bench.label} changed, by {name}"
        took = statistics.median(e.seconds for e in events)
        bench.report.compared(f"{what}: until durable", took, f"{aim} + fsync", **dumps,
                              kishu=kishu)  # fmt: skip
        work = statistics.median(e.seconds for e in bare[name])
        bench.report.row("  the same without waiting for the disk", ms(work), aim)
        written = statistics.median(e.written for e in events) / 1e6
        most = max(e.written for e in events) / 1e6
        shown = f"{written:.3f} MB, at most {most:.2f}"
        bench.report.row("  bytes written", shown, "0.1 MB" if name == "pages" else "")
        pauses = [e.pause for e in events + bare[name]]
        shown = f"{ms(statistics.median(pauses))}, at most {ms(max(pauses))}"
        bench.report.row("  pause that the next cell can see", shown, "20 ms")


def measure_mixed(bench: Bench) -> None:
    """One column of a mixed frame."""
    rows = 500_000 // bench.part
    ours, space, path = Ours("mixed"), dict[str, Any](), bench.folder / "dump"
    source = MIXED.format(rows=rows)
    exec(source, space)
    size = space["m"].memory_usage(deep=True).sum() / 1e6
    ours.run(source)
    bench.kishu.cell("f = None")
    bench.kishu.cell(source)
    changes = {
        "floats": "m['f2'] = m['f1'] + {n}",
        "a string column": "m['s'] = m['s'].str.slice(0, 6) + str({n})",
        "an object column": "m['o'] = m['o'].shift({n} % 7 + 1, fill_value='{n}')",
    }
    for name, change in changes.items():
        ours.saved(change.format(n=99))
        found: list[Any] = []
        dumps: dict[str, list[float]] = {"dill": [], "cloudpickle": []}
        for n in range(2 * bench.rounds):
            found.append(ours.saved(change.format(n=n)))
            if n < bench.rounds:
                exec(change.format(n=n), space)
                for library in (dill, cloudpickle):
                    dumps[library.__name__].append(dumped(library, {"m": space["m"]}, path))
        bench.report.compared(
            f"one column of {size:.0f} MB mixed: {name}",
            statistics.median(e.seconds for e in found),
            "30 ms" if name == "floats" else "",
            **{key: statistics.median(times) for key, times in dumps.items()},
            kishu=bench.kishu.cell(change.format(n=1)),
        )
        pauses = ms(statistics.median(e.pause for e in found))
        written = statistics.median(e.written for e in found) / 1e6
        bench.report.row("  of which pause; bytes written", f"{pauses}; {written:.2f} MB")
    ours.end()
    path.unlink()


def measure_small(bench: Bench) -> None:
    """1,000 small variables of which one changes."""
    count = 1000 // bench.part
    ours, space, path = Ours("small"), dict[str, Any](), bench.folder / "dump"
    ours.run(SMALL.format(count=count))
    bench.kishu.cell(SMALL.format(count=count))
    for i in range(count):
        space[f"v{i}"] = {"name": f"v{i}", "list": [i, i + 1]}
    for n in range(8):
        ours.run(f"v7 = {{'name': 'new', 'list': [{n}]}}")
    found: list[Any] = []
    dumps: dict[str, list[float]] = {"dill": [], "cloudpickle": []}
    for n in range(bench.turns):
        found.append(ours.saved(f"v7 = {{'name': 'new', 'list': [{n}]}}"))
        for library in (dill, cloudpickle):
            dumps[library.__name__].append(dumped(library, space, path))
    bench.report.compared(
        f"one of {count:,} small variables",
        statistics.median(e.seconds for e in found),
        "",
        **{key: statistics.median(times) for key, times in dumps.items()},
        kishu=bench.kishu.cell("v7 = {'name': 'new'}"),
    )
    pause = ms(statistics.median(e.pause for e in found))
    written = statistics.median(e.written for e in found) / 1e6
    bench.report.row("  of which pause; bytes written", f"{pause}; {written:.3f} MB")
    ours.end()


def measure_nodes(bench: Bench) -> None:
    """A long linked list."""
    count = 200_000 // bench.part
    ours = Ours("nodes")
    ours.run(NODES.format(count=5))
    found = [ours.saved(NODES.format(count=count)) for _ in range(bench.rounds)]
    head = None
    for i in range(count):
        head = Node(i, head)
    peers: dict[str, float | str] = {}
    for library in (dill, cloudpickle):
        try:
            peers[library.__name__] = dumped(library, head, bench.folder / "dump")
        except FAILED as fault:
            peers[library.__name__] = type(fault).__name__
    kishu = bench.kishu.cell(NODES.format(count=count))
    kishu = kishu if bench.kishu.kept else "kept nothing"
    took = statistics.median(e.seconds for e in found)
    bench.report.compared(f"{count:,} linked nodes", took, "", **peers, kishu=kishu)
    while head is not None:  # else its end would be as deep as it is long
        head = head.next
    ours.run("while head is not None: head = head.next")
    ours.end()


def measure_restore(bench: Bench) -> None:
    """From SIGKILL to the next answer, against a kernel that starts with nothing."""
    ours, path = Ours("restore"), bench.folder / "dump"
    ours.run(bench.frame())
    ours.run("None")
    frame = pd.DataFrame(np.random.default_rng(1).random((bench.rows, 10)))
    dumped(dill, frame, path)
    bench.kishu.start()
    bench.kishu.cell(bench.frame())
    uses: dict[str, Callable[[Any], Any]] = {
        "f.iloc[0, 0]": lambda f: float(f.iloc[0, 0]),
        "f.to_numpy().sum()": lambda f: float(f.to_numpy().sum()),
    }
    back: dict[str, list[float]] = {use: [] for use in uses}
    cold: dict[str, list[float]] = {"1": [], "import numpy, pandas": []}
    for n in range(bench.rounds):
        for use, times in back.items():
            os.kill(ours.session.kernel.pid, signal.SIGKILL)
            times.append(timed(functools.partial(ours.run, f"print({use})")))
        for first, times in cold.items():
            times.append(_cold(f"cold-{n}", first))
    for (use, function), what in zip(uses.items(), ("first use", "all touched"), strict=True):
        bench.kishu.start()
        kishu = bench.kishu.ask(back=True)
        reads = {lib.__name__: loaded(lib, path, function) for lib in (dill, cloudpickle)}
        bench.report.compared(f"kill -9 to {what}, {bench.label}", statistics.median(back[use]),
                              "", **reads, kishu=kishu)  # fmt: skip
    first = back["f.iloc[0, 0]"]
    for name, aim in (("1", ""), ("import numpy, pandas", "0.2 s")):
        more = statistics.median(a - b for a, b in zip(first, cold[name], strict=True))
        begin = statistics.median(cold[name])
        bench.report.row(f"  more than a cold start to `{name}` ({ms(begin)})", ms(more), aim)
    ours.end()
    path.unlink()


def _cold(name: str, first: str) -> float:
    began = time.perf_counter()
    session = cave.open(name, persistence="live")
    session.run(first)
    took = time.perf_counter() - began
    cave.delete(name)
    return took


def measure_loop(bench: Bench) -> None:
    """A loop of user code, in the kernel's own seconds of the processor."""
    source = LOOP.format(count=3_000_000 // bench.part)
    ours = Ours("loop")
    manager, client = raw_kernel()
    ours.run("f = list(range(1000))")
    printed: list[str] = []

    def listen(message: Any) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    pairs = []
    for _ in range(3 * bench.rounds):
        client.execute_interactive(source, output_hook=listen)
        pairs.append((float(ours.run(source).text), float(printed.pop())))
    stop_raw(manager, client)
    ratio = statistics.median(a / b for a, b in pairs)
    plain = statistics.median(b for _, b in pairs)
    what = f"a loop at the top level, plain kernel {ms(plain)}"
    bench.report.row(what, f"{ratio:.3f} times", "1.05 times")
    ours.end()


ROWS: dict[str, Callable[[Bench], None]] = {
    "first": measure_first,
    "turns": measure_turns,
    "mixed": measure_mixed,
    "small": measure_small,
    "nodes": measure_nodes,
    "restore": measure_restore,
    "loop": measure_loop,
}


def measure(bench: Bench, names: list[str]) -> None:
    try:
        measure_limits(bench.report, bench.folder, bench.size // 4)
        for name in names:
            ROWS[name](bench)
    finally:
        bench.kishu.stop()
        for row in list(cave.sessions()):
            cave.delete(row.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a twentieth of it, few runs")
    parser.add_argument("--kishu", metavar="PYTHON")
    parser.add_argument("--only", metavar="ROW,...", default=",".join(ROWS))
    options = parser.parse_args()
    report = Report()
    if not options.kishu:
        report.console.print("Kishu is left out: name its interpreter with --kishu PYTHON")
    with tempfile.TemporaryDirectory(prefix="cv", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["CAVE_HOME"] = f"{name}/home"
        bench = Bench(report, folder, Kishu(options.kishu, folder / "kishu"), small=options.small)
        measure(bench, options.only.split(","))
    report.console.print(report.table)
    load = os.getloadavg()
    report.console.print(f"load of the machine: {load[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
