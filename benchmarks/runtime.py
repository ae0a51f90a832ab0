"""The runtime next to raw jupyter_client, in one run: import, start, round trip, put and get,
a print flood, a scripted turn.

    python benchmarks/runtime.py [--quick] [--caveagent PYTHON]

Times are medians (of pairs that alternate, where two are compared); ratios are what counts.
`--caveagent` names the interpreter of an environment with CaveAgent, which is then asked the
same questions.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MB = 1 << 20


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def peak(pid: int | str = "self") -> int:
    """Highest resident size of a process in bytes, since `reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell VmHWM")


def resident(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak(pid: int | str = "self") -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def fsync_time(folder: Path) -> float:
    """Median of one 4 KiB write and fsync in `folder`."""
    times = []
    with (folder / "fsync-probe").open("wb", buffering=0) as file:
        for _ in range(30):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


class Report:
    """Rows of the table, printed as they come and once more at the end."""

    def __init__(self) -> None:
        self.console = Console(width=100)
        self.table = Table("what", "cave", "raw or peer", "ratio", "aim")

    def row(self, what: str, ours: str, other: str = "", ratio: str = "", aim: str = "") -> None:
        self.table.add_row(what, ours, other, ratio, aim)
        self.console.print(f"{what}: {ours}  {other}  {ratio}  (aim {aim or '-'})", style="dim")


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def measure_import(report: Report, runs: int) -> None:
    def child(code: str) -> tuple[float, float]:
        source = (
            f"{code}\nimport resource; r = resource.getrusage(resource.RUSAGE_SELF)\n"
            "print(r.ru_utime + r.ru_stime, r.ru_maxrss)"
        )
        out = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout.split()
        return float(out[0]), float(out[1]) / 1024

    pairs = [(child("import cave"), child("pass")) for _ in range(runs)]
    spent = statistics.median(a[0] - b[0] for a, b in pairs)
    size = statistics.median(a[1] for a, _ in pairs)
    report.row("import cave, CPU over bare Python", ms(spent), "", "", "150 ms")
    report.row("import cave, resident", f"{size:.0f} MB", "", "", "60 MB")


def raw_kernel() -> tuple[Any, Any]:
    from jupyter_client.manager import start_new_kernel

    return start_new_kernel(kernel_name="python3")


def stop_raw(manager: Any, client: Any) -> None:
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def measure_start(report: Report, runs: int) -> None:
    import cave

    def ours(n: int) -> float:
        began = time.perf_counter()
        session = cave.open(f"start-{n}")
        session.run("1")
        took = time.perf_counter() - began
        cave.delete(f"start-{n}")
        return took

    def theirs() -> float:
        began = time.perf_counter()
        manager, client = raw_kernel()
        client.execute_interactive("1", output_hook=lambda m: None)
        took = time.perf_counter() - began
        stop_raw(manager, client)
        return took

    ours(99), theirs()
    pairs = [(ours(n), theirs()) for n in range(runs)]
    a = statistics.median(p[0] for p in pairs)
    b = statistics.median(p[1] for p in pairs)
    ratio = statistics.median(p[0] / p[1] for p in pairs)
    report.row("cold start to first answer", ms(a), ms(b), f"{ratio:.2f}", "1.10")


def measure_round_trip(report: Report, runs: int, folder: Path) -> None:
    import cave

    manager, client = raw_kernel()
    hybrid = cave.open("trip-hybrid")
    live = cave.open("trip-live", persistence="live")
    work: dict[str, Callable[[], Any]] = {
        "raw": lambda: client.execute_interactive("x = 1", output_hook=lambda m: None),
        "live": lambda: live.run("x = 1"),
        "hybrid": lambda: hybrid.run("x = 1"),
    }
    for task in work.values():
        for _ in range(10):
            task()
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, task in work.items():
            times[name].append(timed(task))
    stop_raw(manager, client)
    fsync = fsync_time(folder)
    raw, fast, durable = (statistics.median(times[n]) for n in ("raw", "live", "hybrid"))
    report.row("x = 1, live", ms(fast), ms(raw), f"{fast / raw:.2f}", "1.30")
    aim = f"1.3 raw + fsync = {ms(1.3 * raw + fsync)}"
    report.row("x = 1, hybrid", ms(durable), ms(raw), f"{durable / raw:.2f}", aim)
    report.row("one write and fsync here", ms(fsync))


def measure_frames(report: Report, sizes: list[int]) -> None:
    import numpy as np
    import pandas as pd

    import cave

    session = cave.open("frames")
    session.put(warm=pd.DataFrame({"a": np.arange(300_000.0)}))
    session.get("warm")
    pid = session.kernel.pid
    for size in sizes:
        rows = size * MB // 80
        frame = pd.DataFrame(np.random.default_rng(1).random((rows, 10)))
        frame.columns = [f"c{i}" for i in range(10)]
        copy = timed(frame.to_numpy(copy=False).copy)
        reset_peak()
        reset_peak(pid)
        before = resident() + resident(pid)
        put = timed(functools.partial(session.put, frame=frame))
        grown = peak() + peak(pid) - before
        times_held = 1 + grown / (size * MB)
        get = timed(lambda: session.get("frame"))
        aim = {100: "0.10 s", 1024: "1.00 s"}.get(size, "")
        name = f"{size} MB" if size < 1024 else "1 GB"
        report.row(f"put {name}", ms(put), f"memcpy {ms(copy)}", f"{put / copy:.1f}", aim)
        report.row(f"put {name}, peak of both", f"{times_held:.2f} x", "", "", "2 x")
        report.row(
            f"get {name}",
            ms(get),
            f"memcpy {ms(copy)}",
            f"{get / copy:.1f}",
            "0.20 s" if size == 100 else "",
        )
        session.run("del frame")


def measure_flood(report: Report, megabytes: int) -> None:
    import cave

    session = cave.open("flood")
    session.run("1")
    reset_peak()
    before = resident()
    source = f"for _ in range({megabytes}): print('x' * {MB - 1})\nprint('the end')"
    cells: list[Any] = []
    took = timed(lambda: cells.append(session.run(source)))
    grown = (peak() - before) / MB
    assert cells[0].text.endswith("the end"), "the last line is missing"
    report.row(f"print {megabytes} MB", ms(took))
    report.row(f"print {megabytes} MB, host grows", f"{grown:.0f} MB", "", "", "32 MB")


def measure_turn(report: Report, runs: int) -> None:
    import cave
    from cave.testing import Finish, ScriptedOperator

    steps: list[Any] = []
    for n in range(runs + 5):
        steps += [f"y = {n}", Finish("done")]
    session = cave.open("turns", operator=ScriptedOperator(steps))
    for _ in range(5):
        session.ask("go")
    spent, times = [], []
    for _ in range(runs):
        began = cpu()
        times.append(timed(lambda: session.ask("go")))
        spent.append(cpu() - began)
    report.row("scripted turn of one cell, host CPU", ms(statistics.median(spent)), "", "", "10 ms")
    report.row("scripted turn of one cell", ms(statistics.median(times)))


def measure_caveagent(report: Report, python: str) -> None:
    peer = Path(__file__).with_name("peer_caveagent.py")
    done = subprocess.run([python, str(peer)], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        what, _, seconds = line.partition("\t")
        report.row(f"CaveAgent: {what}", "", ms(float(seconds)))
    if done.returncode:
        report.row("CaveAgent", "", f"failed: {done.stderr.strip().splitlines()[-1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs, no 1 GB frame")
    parser.add_argument("--caveagent", metavar="PYTHON")
    options = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="cv") as folder:
        os.environ["CAVE_HOME"] = folder
        import cave

        runs = 10 if options.quick else 200
        measure_import(report, 5 if options.quick else 15)
        measure_start(report, 2 if options.quick else 7)
        measure_round_trip(report, runs, Path(folder))
        measure_frames(report, [10, 100] if options.quick else [10, 100, 1024])
        measure_flood(report, 50 if options.quick else 300)
        measure_turn(report, 10 if options.quick else 50)
        for row in list(cave.sessions()):
            cave.delete(row.name)
    if options.caveagent:
        measure_caveagent(report, options.caveagent)
    report.console.print(report.table)


if __name__ == "__main__":
    main()
