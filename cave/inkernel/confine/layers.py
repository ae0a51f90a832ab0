"""The layers in the order in which they have to come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import landlock, limits, privileges, seccomp
from .system import Missing

LAYERS = ("limits", "user", "capabilities", "no-new-privileges", "landlock", "seccomp")
"""What `apply` puts on; the scrubbed environment is the host's doing."""

Report = dict[str, dict[str, str]]
"""`applied` and `missing`: a layer's name, and what is to be said of it."""


def apply(plan: Mapping[str, Any]) -> Report:
    """Put on the layers that the plan names, as far as this system has them."""
    wanted, report = set(plan["layers"]), Report(applied={}, missing={})
    ruleset: list[int] = []

    def put(name: str, work: Callable[[], str | None]) -> None:
        if name not in wanted:
            return
        try:
            report["applied"][name] = work() or ""
        except (Missing, OSError) as exc:
            report["applied"].pop(name, None)
            report["missing"][name] = str(exc)

    def rules() -> str:
        fd, version = landlock.build(plan, sealed=plan["sockets"] == "sealed")
        ruleset.append(fd)
        report["missing"] |= landlock.lacking(version)
        return f"version {version}"

    put("landlock", rules)  # paths are opened before another user may not
    another = _another(plan, bounded=bool(ruleset)) if "user" in wanted else ""
    uid = plan["uid"] if another is None else os.getuid()

    def limited() -> str:
        said, lacking = limits.apply(plan["limits"], uid=uid)
        report["missing"] |= lacking
        return said

    put("limits", limited)
    if another is None:
        put("user", lambda: _become(uid))
    elif another:
        report["missing"]["user"] = another
    changed = "user" in report["applied"]
    put(
        "capabilities",
        lambda: "one, to read what Landlock allows" if changed else privileges.drop(),
    )
    put("no-new-privileges", privileges.no_new)
    if ruleset:
        put("landlock", lambda: _restricted(ruleset[0], report["applied"]["landlock"]))
    put("seccomp", lambda: _filtered(plan["sockets"]))
    return report


def _another(plan: Mapping[str, Any], *, bounded: bool) -> str | None:
    """Why the kernel does not become another user; empty when it need not, None when it does."""
    if os.getuid() != 0:
        return ""
    if plan["uid"] is None:
        return "a folder of root's is to be written to, or this system has no other user"
    if not bounded:
        return "without Landlock another user could not be let read the interpreter alone"
    return None


def _become(uid: int) -> str:
    privileges.become(uid)
    return f"uid {uid}"


def _restricted(ruleset: int, said: str) -> str:
    landlock.restrict(ruleset)
    return said


_SOCKETS = {
    "sealed": "no new sockets",
    "internet": "sockets of the internet only",
    "any": "sockets of every kind",
}


def _filtered(sockets: str) -> str:
    seccomp.install(seccomp.program(sockets=sockets))
    return _SOCKETS[sockets]
