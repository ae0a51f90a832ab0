"""Two shells of IPython in two processes: the first is killed, the second comes back to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[3]
_COMMON = """
import json, os, pickle, signal, sys, traceback
sys.path.append({root!r})
os.chdir({folder!r})
home = {folder!r} + "/"
from tests import _inkernel
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
pickler, reader, definitions, remarks, roots, hidden = (_inkernel.load("image." + name) for name in
    ("pickler", "reader", "definitions", "remarks", "roots", "hidden"))
shell = InteractiveShell.instance(config=Config({{"HistoryManager": {{"enabled": False}}}}),
                                  user_module=sys.modules["__main__"])
plan = json.load(open("plan.json"))
hidden.remember()
def run(source):
    result = shell.run_cell(source, store_history=True)
    if not result.success:
        os.write(2, f"{{source}}: {{result.error_in_exec or result.error_before_exec!r}}".encode())
        os._exit(1)
def groups(found):
    first = {{k: v for k, v in found.items() if k in roots.FIRST}}
    return first, {{k: v for k, v in found.items() if k not in first}}
"""
_FIRST = """
for cell in plan["cells"]:
    run(cell)
    roots.roots(shell)
known = definitions.Definitions()
written = [pickler.write(group, known) for group in groups(roots.roots(shell))]
uses = set().union(*(w.uses for w in written))
inline = pickler.write({"def:" + k: known.find(k) for k in uses}, known, inline=True)
made = [written[0], inline, written[1]]
with open(home + "image", "wb") as file:
    pickle.dump([(bytes(w.stream), [bytes(b.raw()) for b in w.buffers],
                  [[n.kind, n.name, n.type, n.reason] for n in w.notes]) for w in made], file)
os.kill(os.getpid(), signal.SIGKILL)
"""
_SECOND = """
for cell in plan["before"]: run(cell)
known = definitions.Definitions()
loaded, notes, kept = {}, [], []
for stream, buffers, said in pickle.load(open(home + "image", "rb")):
    got = reader.read(stream, [memoryview(bytearray(b)) for b in buffers], known)
    kept.append(got)
    notes += said + [[n.kind, n.name, n.type, n.reason] for n in got.notes]
    loaded.update({k: v for k, v in got.roots.items() if not k.startswith("def:")})
    if len(kept) == 1:
        roots.begin(loaded)
notes += [[n.kind, n.name, n.type, n.reason] for n in roots.bind(shell, loaded, ())]
results = {}
shell.user_ns["notes"] = notes
for name, source in plan["checks"].items():
    try:
        exec(source, shell.user_ns)
        results[name] = ""
    except BaseException:
        results[name] = traceback.format_exc() + json.dumps(notes)
with open(home + "results.json", "w") as file:
    json.dump(results, file)
os._exit(0)
"""


def run(
    folder: Path,
    cells: list[str],
    checks: dict[str, str],
    *,
    env: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    before: tuple[str, ...] = (),
) -> dict[str, str]:
    """Run the cells, kill, come back, check. Gives the errors of the checks by name.

    `env` is for the two processes; `before` are cells of the second one before it is restored.
    """
    Path(folder, "plan.json").write_text(
        json.dumps(
            {
                "cells": list(map(dedent, cells)),
                "checks": {name: dedent(check) for name, check in checks.items()},
                "before": list(map(dedent, before)),
            }
        ),
        "utf-8",
    )
    common = _COMMON.format(root=str(ROOT), folder=str(folder))
    first = _python(common + _FIRST, folder, env[0])
    assert first.returncode == -9, first.stderr
    second = _python(common + _SECOND, folder, env[1])
    assert second.returncode == 0, second.stderr
    results: dict[str, Any] = json.loads(Path(folder, "results.json").read_text("utf-8"))
    return results


def _python(source: str, folder: Path, env: dict[str, str]) -> Any:
    apart = f"exec({source!r}, {{'__name__': 'harness'}})"  # `__main__` is for the cells
    return subprocess.run(
        [sys.executable, "-c", apart], cwd=folder, capture_output=True, text=True, timeout=100,
        env={**os.environ, "MPLBACKEND": "agg", "IPYTHONDIR": str(folder), **env}, check=False,
    )  # fmt: skip
