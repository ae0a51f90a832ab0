"""Kinds of object that cross from a process that is killed to another one, many at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[3]
_COMMON = """
import json, os, pickle, signal, sys, traceback, warnings
sys.path.insert(0, {root!r})
T = {folder!r}
os.chdir(T)
from tests import _inkernel
pickler, reader, definitions, remarks = (
    _inkernel.load("image." + name) for name in ("pickler", "reader", "definitions", "remarks"))
cases = json.loads(open("cases.json").read())
warnings.simplefilter("ignore")
def too_long(*_): raise TimeoutError("this case hangs")
signal.signal(signal.SIGALRM, too_long)
"""
_WRITER = """
written = {}
kept = []
for name, case in cases.items():
    space = {"T": T, "kept": kept}
    signal.alarm(90)
    try:
        exec(case["make"], space)
        roots = {key: value for key, value in space.items()
                 if key[0] != "_" and key not in ("T", "kept") and type(value) is not type(sys)}
        kept.append(space)
        known = definitions.Definitions()
        made = pickler.write(roots, known)
        defs = {"def:" + key: known.find(key) for key in made.uses}
        inline = pickler.write(defs, known, inline=True)
        if case["after"]:
            exec(case["after"], space)
    except BaseException:
        written[name] = {"error": traceback.format_exc()}
        continue
    written[name] = {
        "notes": [[n.kind, n.name, n.type, n.reason] for n in made.notes + inline.notes],
        "streams": [(bytes(w.stream), [bytes(b.raw()) for b in w.buffers])
                    for w in (inline, made)],
    }
with open("written", "wb") as file:
    pickle.dump(written, file)
signal.alarm(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
_READER = """
results = {}
with open("written", "rb") as file:
    written = pickle.load(file)
for name, case in cases.items():
    got = written[name]
    if "error" in got:
        results[name] = {"error": got["error"], "notes": [], "size": 0}
        continue
    notes = got["notes"]
    error = ""
    space = {"T": T}
    signal.alarm(90)
    try:
        known = definitions.Definitions()
        for stream, buffers in got["streams"]:
            loaded = reader.read(stream, [memoryview(bytearray(b)) for b in buffers], known)
            notes += [[n.kind, n.name, n.type, n.reason] for n in loaded.notes]
            kept = space.setdefault("_definitions", [])
            kept.append(loaded)
            space.update(loaded.roots)
        notes += [[n.kind, n.name, n.type, n.reason] for n in remarks.take()]
        space["notes"] = notes
        exec(case["use"], space)
    except BaseException:
        error = traceback.format_exc()
    results[name] = {"error": error, "notes": notes}
with open("results.json", "w") as file:
    file.write(json.dumps(results))
sys.stdout.flush()
os._exit(0)
"""


@dataclass
class Case:
    make: str
    use: str
    label: str = "exact"
    """exact (no note), rebuilt, changed or lost: the worst note that is expected."""
    after: str = ""
    """Runs when it was written, before the kill."""
    secrets: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def run(cases: dict[str, Case], folder: Path, *envs: dict[str, str]) -> dict[str, Any]:
    """What became of each case."""
    plain = {name: {"make": dedent(case.make), "use": dedent(case.use), "after": dedent(case.after)}
             for name, case in cases.items()}  # fmt: skip
    Path(folder, "cases.json").write_text(json.dumps(plain), "utf-8")
    common = _COMMON.format(root=str(ROOT), folder=str(folder))
    first = _python(common + _WRITER, folder, {**(envs[0] if envs else {}), "MPLBACKEND": "agg"})
    assert first.returncode == -9, first.stderr
    later = envs[1] if len(envs) > 1 else {}
    second = _python(common + _READER, folder, {**later, "MPLBACKEND": "agg"})
    assert second.returncode == 0, second.stderr
    results: dict[str, Any] = json.loads(Path(folder, "results.json").read_text("utf-8"))
    results["stream"] = Path(folder, "written").read_bytes()
    return results


def _python(source: str, folder: Path, env: dict[str, str]) -> Any:
    return subprocess.run(
        [sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, timeout=100,
        env={**os.environ, **env}, check=False,
    )  # fmt: skip


_ORDER = ("exact", "rebuilt", "changed", "lost")


def check(result: dict[str, Any], case: Case) -> None:
    """The case was used without an error, and its notes say what they should."""
    assert not result["error"], result["error"] + repr(result["notes"])
    worst = max((note[0] for note in result["notes"]), key=_ORDER.index, default="exact")
    assert worst == case.label, result["notes"]
    assert all(note[3] for note in result["notes"])
