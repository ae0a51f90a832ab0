"""Other people's stateful benchmarks as sessions that are killed: same state, each effect once.

    python benchmarks/conformance.py --install
    python benchmarks/conformance.py --cases DIR [--only bfcl] [--limit N] [--kill any] [--seed N]

Cases are the official solutions of BFCL (multi-turn) and tau2-bench, one cell a turn or step;
their tools are skills with `runs="host"`, clients of a process that outlives hosts and kernels.
A case is run once without cave, in one process, and once in a session: after every cell, and
inside it right after a call, the host, its kernel or both are killed with SIGKILL, and what a
person would do follows (settle, resume). Then the state of the tools, the results of all calls,
errors and variables must be the same, and every effect that writes must have been executed once.

Exits with 1 when something differs. What is not there is skipped by name.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from worlds import environment
from worlds.client import Doubt, Effect, Tool, ask
from worlds.drive import Driver, Plan, Tally
from worlds.host import HostGone, delete_all

Cases = dict[str, dict[str, Any]]

SUITES = {
    "bfcl": "bfcl_multi_turn_base*.json",
    "tau2-airline": "tau2_airline*.json",
    "tau2-retail": "tau2_retail*.json",
    "tau2-telecom": "tau2_telecom*.json",
}
"""Names, and the files of their cases."""
IMPORTED = ("cave.facade", "cave.records", "cave.store.journal", "fsspec", "pydantic.dataclasses",
            "sqlalchemy.dialects.sqlite", "sqlite3")  # fmt: skip
"""What hosts find imported when they are forked: nothing that starts a thread."""
A_SESSION = 10
"""Cases that share a session and, where nobody kills it, a kernel."""
DOUBTS: tuple[Doubt, ...] = ("retry", "probe", "ask")


def cases_of(folder: Path, suite: str, limit: int | None) -> Cases:
    """The cases of a suite by name, in the order of the files."""
    found: Cases = {}
    for path in sorted(folder.glob(SUITES[suite])):
        tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
        found |= tasks if isinstance(tasks, dict) else {task["id"]: task for task in tasks}
    return dict(list(found.items())[:limit])


@contextmanager
def served(place: Path, suite: str, folder: Path) -> Iterator[str]:
    """The process that holds the tools of a suite; gives the path of its socket."""
    path = str(folder / suite)
    script = Path(__file__).parent / "worlds" / "server.py"
    command = [str(environment.python(place)), str(script), path, suite]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"{suite}: its tools do not start; try: {' '.join(command)}")
        try:
            yield path
        finally:
            ask(path, op="end")


def offered(world: str, plains: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """The tools with their effects: as the package says, else as the plain runs show."""
    calls = [call for plain in plains for cell in plain["calls"] for call in cell]
    wrote = {call["tool"] for call in calls if call["kind"] == "write"}
    gave_nothing = {call["tool"] for call in calls if call.get("value") is None}
    tools = []
    for n, told in enumerate(ask(world, op="tools")):
        name, doubt = told["name"], DOUBTS[n % len(DOUBTS)]
        if doubt == "probe" and name in gave_nothing:
            doubt = "ask"  # a probe cannot tell "done, and gave nothing" from "not done"
        effect: Effect = told["kind"] or ("write" if name in wrote else "read")
        tools.append(Tool(name, [tuple(p) for p in told["parameters"]], effect, doubt))
    return tools


def run(suite: str, cases: Cases, place: Path, plan: Plan) -> Tally:
    """All cases of a suite."""
    total, driver = Tally(), None
    folder = Path(tempfile.mkdtemp(prefix="cw"))
    with served(place, suite, folder) as world:
        plains = {name: ask(world, op="plain", case=case) for name, case in cases.items()}
        tools = offered(world, list(plains.values()))
        for n, (name, case) in enumerate(cases.items(), 1):
            driver = driver or Driver(f"{suite}-{n}", tools, plan)
            socket = str(folder / f"c{n}")
            ask(world, op="begin", case=case, socket=socket)
            tally = one(driver, f"{suite}/{name}", case, socket, plains[name])
            ask(socket, op="end")
            say(suite, n, len(cases), name, tally)
            total.add(tally)
            if tally.faults:
                driver.give_up()
                driver = None
            elif n % A_SESSION == 0 or n == len(cases):
                driver.close()
                driver = None
    shutil.rmtree(folder)
    return total


def one(
    driver: Driver, name: str, case: Mapping[str, Any], socket: str, plain: Mapping[str, Any]
) -> Tally:
    """One case; a host that ends by itself is a difference too."""
    began = time.monotonic()
    try:
        driver.case(name, case, socket, plain)
    except HostGone as gone:
        driver.tally.different += 1
        driver.tally.faults.append(str(gone))
    driver.tally.seconds = time.monotonic() - began
    return driver.tally


def say(suite: str, n: int, of: int, name: str, tally: Tally) -> None:
    kills = tally.hosts + tally.kernels
    told = f"{suite} {n}/{of} {name}: {tally.cells} cells, {kills} kills, {tally.seconds:.1f} s"
    print(told + ("" if not tally.faults else " DIFFERENT"), flush=True)
    for fault in tally.faults:
        print(f"  {fault}", flush=True)


def table(tallies: Mapping[str, Tally]) -> Table:
    """What was run and what came of it, a row a suite."""
    shown = Table("suite", "cases", "cells", "hosts killed", "kernels killed", "reads", "writes",
                  "doubled", "lost", "different", "seconds")  # fmt: skip
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    for name, t in {**tallies, "all": total}.items():
        numbers = (t.cases, t.cells, t.hosts, t.kernels, t.reads, t.writes, t.doubled, t.lost,
                   t.different)  # fmt: skip
        shown.add_row(name, *map(str, numbers), f"{t.seconds:.0f}")
    return shown


def arguments() -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=Path, metavar="DIR", help="folder of the case files")
    parser.add_argument("--only", choices=SUITES, help="one suite")
    parser.add_argument("--limit", type=int, help="the first cases of each suite")
    parser.add_argument("--kill", choices=("host", "kernel", "both", "any", "none"), default="any",
                        help="who dies; any: drawn at each place")  # fmt: skip
    parser.add_argument("--at", choices=("boundary", "call", "all"), default="all",
                        help="after cells, inside them right after a call, or both")  # fmt: skip
    parser.add_argument("--most", type=int, metavar="N",
                        help="kill at N places of each case, drawn; all if not said")  # fmt: skip
    parser.add_argument("--seed", type=int, help="repeats the choices of a run that printed it")
    parser.add_argument("--environment", type=Path, default=environment.PLACE, metavar="DIR",
                        help="where the tools' packages are")  # fmt: skip
    parser.add_argument("--install", action="store_true", help="make that environment first")
    return parser.parse_args()


def chosen(wanted: argparse.Namespace) -> dict[str, Cases]:
    """The suites that can run; says of the others what is missing, and what to type."""
    found: dict[str, Cases] = {}
    for suite in [wanted.only] if wanted.only else SUITES:
        package = suite.split("-")[0]
        if wanted.cases is None:
            print(f"{suite}: skipped, no cases; type --cases DIR, a folder with {SUITES[suite]}")
        elif not environment.complete(wanted.environment).exists():
            print(f"{suite}: skipped, {environment.PACKAGES[package]} is not in "
                  f"{wanted.environment}; type: python {sys.argv[0]} --install")  # fmt: skip
        elif not (cases := cases_of(wanted.cases, suite, wanted.limit)):
            print(f"{suite}: skipped, no {SUITES[suite]} in {wanted.cases}; "
                  f"type --cases DIR, a folder that has it")  # fmt: skip
        else:
            found[suite] = cases
    return found


def main() -> int:
    """The exit code: whether anything differed."""
    wanted = arguments()
    if wanted.install:
        environment.install(wanted.environment)
    seed = wanted.seed if wanted.seed is not None else random.SystemRandom().randrange(1 << 32)
    plan = Plan(wanted.kill, wanted.at, wanted.most, seed)
    suites = chosen(wanted)
    if not suites:
        return 0
    print(f"seed {seed}, kill {plan.kill}, at {plan.at}", flush=True)
    for module in IMPORTED:
        import_module(module)
    with tempfile.TemporaryDirectory(prefix="cv") as home:
        os.environ["CAVE_HOME"] = home
        try:
            tallies = {s: run(s, cases, wanted.environment, plan) for s, cases in suites.items()}
        finally:
            delete_all()
    Console(width=130).print(table(tallies))
    return int(any(tally.faults for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
