"""The layers in the order in which they have to come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import landlock, limits, network, privileges, seccomp
from .system import Missing

LAYERS = ("limits", "network", "user", "capabilities", "no-new-privileges", "landlock", "seccomp")
"""What `apply` puts on; the scrubbed environment is the host's doing. `network` is there for
kernels that have a proxy alone."""

Hand = Callable[[int, Mapping[str, str]], None]
"""Hands on the socket that a proxy listens on, a descriptor that is closed then, and the
variables of the environment by which programs find it."""

Report = dict[str, dict[str, str]]
"""`applied` and `missing`: a layer's name, and what is to be said of it."""


def apply(plan: Mapping[str, Any], hand: Hand | None = None) -> Report:
    """Put on the layers that the plan names, as far as this system has them. What listens for
    the proxy of the plan's `hosts` is given to `hand`."""
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
        fd, version = landlock.build(plan, sealed=plan["sockets"] in {"sealed", "proxied"})
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
    put("network", network.isolate)
    if plan["hosts"]:
        bounded = ruleset if plan["sockets"] == "proxied" else []
        _listen(report, bounded, hand)
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


def _listen(report: Report, ruleset: list[int], hand: Hand | None) -> None:
    """Make the socket of the proxy, which is all that may be connected to from now on."""
    alone = "network" in report["applied"]
    try:
        with network.listen(network.PORT if alone else 0) as listener:
            port = listener.getsockname()[1]
            if known := bool(ruleset) and landlock.abi() >= landlock.PORTS:
                landlock.connects(ruleset[0], port)
            if hand is not None:
                hand(listener.fileno(), network.environ(listener))
    except OSError as exc:
        report["missing"]["network"] = f"there is no way to the proxy: {exc}"
        return
    if alone:
        report["applied"]["network"] = "its own, with nothing but the way to the proxy"
    elif "network" in report["missing"]:
        held = f"port {port} of every host alone" if known else "no host and no port"
        report["missing"]["network"] += f"; connections are held to {held}"


def _restricted(ruleset: int, said: str) -> str:
    landlock.restrict(ruleset)
    return said


_SOCKETS = {
    "sealed": "no new sockets",
    "proxied": "sockets of TCP only, to connect with",
    "internet": "sockets of the internet only",
    "any": "sockets of every kind",
}


def _filtered(sockets: str) -> str:
    seccomp.install(seccomp.program(sockets=sockets))
    return _SOCKETS[sockets]
