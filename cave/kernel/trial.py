"""Whether the layers hold on this system: each attacked itself, once for each start of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cave.errors import KernelStartError
from cave.kernel import processes

_INKERNEL = Path(__file__).resolve().parent.parent / "inkernel"
_RUN = "import sys; sys.path.append(sys.argv[1]); from confine import trial; trial.main()"

Trial = Mapping[str, Mapping[str, str]]
"""By layer, what came of each of its attacks."""


def tried(plan: Mapping[str, Any], remembered: Path | None) -> Trial:
    """The outcomes, from the file `remembered` where they are of now."""
    stamp = _stamp()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        known = json.loads(remembered.read_text("utf-8")) if remembered else {}
        if known["stamp"] == stamp:
            return {
                str(k): {str(a): str(o) for a, o in v.items()} for k, v in known["tried"].items()
            }
    found = _run(plan)
    if remembered is not None:
        new = remembered.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # it is tried again next time
            new.write_text(json.dumps({"stamp": stamp, "tried": found}, indent=1), "utf-8")
            new.replace(remembered)
    return found


def fallen(found: Trial) -> dict[str, str]:
    """The layers that an attack went through, and which."""
    return {
        layer: "; ".join(
            f"a trial could {name}" for name, said in outcomes.items() if said == "open"
        )
        for layer, outcomes in found.items()
        if "open" in outcomes.values()
    }


def absent(found: Trial) -> dict[str, str]:
    """The layers that could not be put on by that trial's plan, and why."""
    return {
        layer: said.removeprefix("open: ")
        for layer, outcomes in found.items()
        for said in outcomes.values()
        if said.startswith("open: ")
    }


def _run(plan: Mapping[str, Any]) -> Trial:
    with tempfile.TemporaryDirectory(prefix="cave-trial-") as folder:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _RUN, str(_INKERNEL)],
            input=json.dumps({"plan": dict(plan), "folder": folder}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd="/",
        )
    if done.returncode != 0:
        raise KernelStartError(f"the layers could not be tried: {done.stderr.strip()[-1000:]}")
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def _stamp() -> list[str]:
    """Changes with the machine's start, the user, the interpreter and our own code."""
    digest = hashlib.sha256()
    for path in sorted((_INKERNEL / "confine").glob("*.py")):
        digest.update(path.read_bytes())
    return [processes.boot_id(), str(os.getuid()), sys.executable, digest.hexdigest()]
