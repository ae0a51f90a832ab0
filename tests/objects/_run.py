"""Many kinds of object in one session: made, killed with their kernel, and used.

A kind is a paragraph of `kinds/*.txt`: `== name | outcome [| needs libraries]`, the code that
makes it, `--`, the code that uses it and asserts. `$` stands for a prefix of its own, so that
kinds do not meet in the namespace that they share.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import cave
from cave.report import Entry, RestoreReport

FILES = sorted((Path(__file__).parent / "kinds").glob("*.txt"))
TOGETHER = 80
"""Kinds in one session."""
OWN_CELL = re.compile(r"\b(await|get_ipython|In|Out)\b")
"""What code says that only the shell can run or see."""
NEEDED = ("ipykernel", "dill", "pandas", "numpy")


@dataclass(frozen=True)
class Kind:
    """What is made, how it is used, what should come of it."""

    name: str
    prefix: str
    outcome: str
    needs: tuple[str, ...]
    make: str
    check: str


def read(path: Path) -> Iterator[Kind]:
    for part in re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        name, outcome, *rest = (entry.strip() for entry in head.split("|"))
        make, _, check = body.partition("\n--\n")
        prefix = re.sub(r"\W+", "_", f"{path.stem}_{name}__").lower()
        needs = tuple(rest[0].removeprefix("needs ").split()) if rest else ()
        yield Kind(name, prefix, outcome, needs, *(
            text.strip("\n").replace("$", prefix) for text in (make, check)
        ))  # fmt: skip


def kinds(only: str = os.environ.get("CAVE_OBJECTS_ONLY", "")) -> list[Kind]:
    found = [kind for path in FILES for kind in read(path)]
    names = [kind.prefix for kind in found]
    assert len(names) == len(set(names)), "two kinds of one name"
    return [kind for kind in found if re.search(only, kind.prefix)]


def lots(found: Sequence[Kind]) -> list[list[Kind]]:
    return [list(found[at : at + TOGETHER]) for at in range(0, len(found), TOGETHER)]


# -- interpreters --------------------------------------------------------------------------------


def pythons() -> list[str]:
    """Interpreters of other minor versions, as `CAVE_TEST_PYTHONS` lists them."""
    return [path for path in os.environ.get("CAVE_TEST_PYTHONS", "").split(os.pathsep) if path]


def libraries(python: str) -> set[str]:
    """Which of the libraries that kinds need an interpreter has."""
    wanted = {name for kind in kinds() for name in kind.needs} | set(NEEDED)
    if python == sys.executable:
        return {name for name in wanted if importlib.util.find_spec(name)}
    code = "import importlib.util, sys; print(*filter(importlib.util.find_spec, sys.argv[1:]))"
    asked = [python, "-c", code, *wanted]
    return set(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())


# -- what came of them ---------------------------------------------------------------------------


@dataclass
class Outcome:
    """By mode and kind: exact, rebuilt, lost, or what went wrong."""

    found: dict[tuple[str, str], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def put(self, mode: str, kind: Kind, outcome: str, why: str = "") -> None:
        self.found[mode, kind.name] = outcome
        right = kind.outcome.split()
        if mode == "twice" and "rebuilt" in right:
            right.append("exact")  # what was rebuilt once may need nothing the next time
        if outcome not in right:
            self.wrong.append(f"[{mode}] {kind.prefix}: {outcome}, not {kind.outcome}: {why}")


def judge(kind: Kind, error: str, report: RestoreReport) -> tuple[str, str]:
    """The outcome of a kind, and why: the error of its check against what the report says."""
    said = {
        label: [e for e in getattr(report, label) if _is_of(e, kind)]
        for label in ("rebuilt", "changed", "assumed", "lost")
    }
    notes = "; ".join(f"{label} {e}" for label, entries in said.items() for e in entries)
    if error:
        if "ObjectLost" not in error and "did not come back" not in error and "<lost" not in error:
            return "WRONG", f"{error[-700:]} [{notes or 'not noted'}]"
        named = [*said["lost"], *said["changed"]]
        if not named:
            return "UNNAMED", error[-300:]
        if not all(e.reason and e.type for e in named):
            return "NO REASON", notes
        return "lost", notes
    if said["assumed"]:
        return "ASSUMED", notes
    return ("rebuilt" if notes else "exact"), notes


def _is_of(entry: Entry, kind: Kind) -> bool:
    return entry.name.startswith(kind.prefix)


# -- a session of them ---------------------------------------------------------------------------


def live(lot: Iterable[Kind], python: str | None, outcome: Outcome, name: str, *,
         modes: Sequence[str] = ("kill", "back", "twice"), every: int = 1) -> None:  # fmt: skip
    """Make all, and use all: after a death, after a step back, after two more deaths."""
    s = cave.open(name, python=python, snapshot_every=every)
    made = []
    for kind in lot:
        cell = s.run(kind.make)
        if cell.ok:
            made.append(kind)
        else:
            outcome.put("make", kind, "WRONG", str(cell.error)[-700:])
    s.snapshot("made")
    if "control" in modes:
        for kind in made:
            if kind.outcome == "exact" and not (cell := s.run(kind.check)).ok:
                outcome.put("control", kind, "WRONG", str(cell.error)[-700:])
        s.restore(at="made")
    if "kill" in modes:
        _kill(s)
        s.run("pass")
        _use(s, made, outcome, "kill", at_once=True)
    if "back" in modes:
        report = s.restore(at="made")
        _use(s, made, outcome, "back", report)
    if "twice" in modes:
        s.restore(at="made")
        for generation in ("second", "third"):
            s.run(f"{generation}_generation = list(globals().values())[:0]")
            s.snapshot(generation)
            _kill(s)
        s.run("pass")
        _use(s, made, outcome, "twice", at_once=True)
        s.close()


def _use(s: cave.Session, made: Sequence[Kind], outcome: Outcome, mode: str,
         report: RestoreReport | None = None, *, at_once: bool = False) -> None:  # fmt: skip
    report = report or s.last_restore
    assert report is not None
    errors = _use_at_once(s, made) if at_once else {}
    for kind in made:
        pid = s.kernel.pid
        if kind.prefix not in errors:
            errors[kind.prefix] = str(s.run(kind.check).error or "")
        outcome.put(mode, kind, *judge(kind, errors[kind.prefix], report))
        assert s.kernel.pid == pid, f"{kind.name} killed the kernel ({mode})"


AT_ONCE = """
import json as _json
_errors = {{}}
for _name, _check in {checks!r}.items():
    _errors[_name] = ""
    try:
        exec(compile(_check, f"<{{_name}}>", "exec"), globals())
    except BaseException as _error:
        _errors[_name] = f"{{type(_error).__name__}}: {{_error}}"
print("\\n" + _json.dumps(_errors))
"""


def _use_at_once(s: cave.Session, made: Sequence[Kind]) -> dict[str, str]:
    """Use all in one cell, which is cheaper than one for each; but for those whose code wants a
    cell of its own."""
    checks = {kind.prefix: kind.check for kind in made if not OWN_CELL.search(kind.check)}
    cell = s.run(AT_ONCE.format(checks=checks))
    assert cell.ok, cell.text
    return dict(json.loads(cell.full_text().splitlines()[-1]))


def _kill(s: cave.Session) -> None:
    pid = s.kernel.pid
    assert pid is not None
    process = psutil.Process(pid)
    process.kill()
    psutil.wait_procs([process], timeout=30)
