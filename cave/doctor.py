"""What `cave doctor` knows: each finding is tried, not assumed."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from cave import config, home
from cave.config import Options
from cave.display.told import OPEN
from cave.errors import CaveError
from cave.policy import Policy
from cave.portal import portal
from cave.session import AsyncSession
from cave.skills import trust

PACKAGES = ("ipykernel", "jupyter_client", "dill", "pandas", "pyarrow", "sqlalchemy", "anthropic")
EXTRAS = {"openai": "openai", "local": "xllamacpp", "excel": "openpyxl"}


State = Literal["ok", "DEGRADED", "FAILED", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    state: State
    what: str
    detail: str


def examine() -> list[Finding]:
    """Try everything that a session needs on this machine."""
    findings = [_python(), _packages(), _extras()]
    findings.append(_tried("settings", _settings))
    findings.append(_tried("home", _home))
    findings.append(_tried("journal", _journal))
    findings += _kernel_and_snapshots()
    findings += _confinement()
    findings += _operators()
    return findings


def verify(name: str) -> list[Finding]:
    """Check the hash chain of a session's journal. Raises `SessionNotFound`."""
    store = home.at().store
    row = portal().call(store.info(name))
    faults = portal().call(store.verify(name))
    if not faults:
        return [Finding("ok", name, f"{row.events} events, the hash chain is whole")]
    return [Finding("FAILED", name, f"event {f.seq}: {f.reason}") for f in faults]


def _tried(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", what, attempt())
    except (CaveError, OSError) as error:
        return Finding("FAILED", what, str(error))


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.release()}"
    known = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("ok" if known else "FAILED", "python", text)


def _packages() -> Finding:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("FAILED", "packages", f"not installed: {', '.join(missing)}")
    return Finding("ok", "packages", ", ".join(found))


def _extras() -> Finding:
    absent = [e for e, module in EXTRAS.items() if importlib.util.find_spec(module) is None]
    if not absent:
        return Finding("ok", "extras", ", ".join(EXTRAS))
    return Finding("missing", "extras", f"pip install 'cave-runtime[{','.join(absent)}]'")


def _settings() -> str:
    found = dataclasses.asdict(config.Settings.load())
    return ", ".join(f"{key} {value}" for key, value in found.items() if value is not None)


def _home() -> str:
    path = home.at().path
    probe = path / f".probe-{os.getpid()}"
    probe.write_bytes(b"x")
    probe.unlink()
    return str(path)


def _journal() -> str:
    rows = portal().call(home.at().sessions())
    return "1 session" if len(rows) == 1 else f"{len(rows)} sessions"


def _kernel_and_snapshots() -> list[Finding]:
    tracked: list[str] = []
    findings = [_tried("kernel", lambda: _kernel(tracked))]
    if tracked:
        how = "pages" if tracked[0].startswith("pages") else "hashes"
        state: State = "ok" if how == "pages" else "DEGRADED"
        findings.append(Finding(state, "snapshots", f"changed memory is found by {tracked[0]}"))
    return findings


def _kernel(tracked: list[str]) -> str:
    name = f"doctor-{secrets.token_hex(4)}"
    at = home.at()
    session = AsyncSession(at, name, Options())
    began = time.perf_counter()
    try:
        portal().call(session.open())
        started = time.perf_counter() - began
        began = time.perf_counter()
        cell = portal().call(session.run("6 * 7"))
        took = time.perf_counter() - began
        cell.raise_for_error()
        tracked += filter(None, [session.tracking])
        return f"started in {started:.2f} s, answered {cell.text} in {1000 * took:.0f} ms"
    finally:
        portal().call(session.close())
        portal().call(at.forget(name))


def _confinement() -> list[Finding]:
    """The layers of the profile `confined`, each attacked here and now."""
    from cave.kernel.confinement import OPEN as WITHOUT
    from cave.kernel.confinement import left_open, trial_plan
    from cave.kernel.trial import absent, fallen, tried

    try:
        findings = [_profile()]
    except CaveError as error:
        findings = [Finding("FAILED", "confinement", str(error))]
    with tempfile.TemporaryDirectory(prefix="cave-doctor-") as folder:
        try:
            plan = trial_plan(Path(folder))
            found = tried(plan, None)
        except CaveError as error:
            return [*findings, Finding("FAILED", "confinement", str(error))]
    through = {**fallen(found), **absent(found)}
    for layer, outcomes in found.items():
        if layer in through:
            detail = f"{WITHOUT.get(layer, 'it does not hold')} ({through[layer]})"
            findings.append(Finding("DEGRADED", layer, detail))
            continue
        stopped = sum(said.startswith("stopped") for said in outcomes.values())
        untried = "" if stopped else "; this user could not do them anyway"
        told = f"{stopped} of {len(outcomes)} attacks stopped{untried}"
        findings.append(Finding("ok", layer, told))
    left = left_open(another_user=plan["uid"] is not None and "user" not in through)
    return [*findings, *(Finding("DEGRADED", name, words) for name, words in left.items())]


def _profile() -> Finding:
    """What sessions that are opened here, without a policy of their own, let cells do."""
    profile = config.Settings.load().profile
    policy = Policy.of_files(profile)
    if (policy.holds_as if policy else profile) == "open":
        return Finding("DEGRADED", "confinement", OPEN)
    project = trust.openable()
    told = f"profile {policy.profile if policy else profile}"
    if project is None:
        return Finding("ok", "confinement", told)
    type_ = f"not trusted (cave skills trust {project})"
    state = "trusted: cells can read it" if trust.readable() else type_
    return Finding("ok", "confinement", f"{told}; the project {project} is {state}")


def _operators() -> list[Finding]:
    from cave.operators.models import known

    return [Finding("ok" if m.ready else "missing", m.spec, m.detail) for m in known()]
