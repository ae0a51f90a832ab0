"""Starts the suite as root and as an ordinary user, and puts the outcomes side by side."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ORDINARY = 4321
_REPOSITORY = Path(__file__).resolve().parents[2]
_AS_USER = """
set -e
mount --make-rprivate /
if [ -n "$COVER" ]; then  # the interpreter lies where only root can go: show it to all
    mount --bind "$BASE" "$STAGE"
    mount -t tmpfs -o mode=755 none "$COVER"
    mkdir -p "$BASE"
    mount --bind "$STAGE" "$BASE"
fi
exec setpriv --reuid "$ID" --regid "$ID" --clear-groups --inh-caps=-all --bounding-set=-all "$@"
"""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of all attacks, and of the layers."""

    outcomes: Mapping[str, str]
    layers: tuple[str, ...]
    degraded: tuple[str, ...]
    reaches: bool
    """Whether the host that a policy named was reached."""

    @property
    def open(self) -> set[str]:
        """The attacks that succeeded."""
        return {name for name, said in self.outcomes.items() if not said.startswith("stopped")}


def can_be_ordinary() -> bool:
    """Whether `run` can start the suite as an ordinary user."""
    if os.getuid():
        return True
    tools = all(map(shutil.which, ("unshare", "setpriv")))
    return tools and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode


def run(profile: str, *, ordinary: bool) -> Found:
    """Every attack under a profile."""
    said = started("_suite", profile, ordinary=ordinary)
    found = json.loads(said.splitlines()[-1])
    told = tuple(found["layers"]), tuple(found["degraded"])
    return Found(found["outcomes"], *told, reaches=found["reaches"])


def started(module: str, mode: str, *, ordinary: bool) -> str:
    """What a module of these tests prints, given a mode and an empty folder.

    As an ordinary user root needs mount namespaces for it.
    """
    folder = Path(tempfile.mkdtemp(prefix="cva", dir="/tmp"))
    command = [sys.executable, "-m", f"tests.attacks.{module}", mode, str(folder / "at")]
    environment = {**os.environ, "CANARY": "canary!!"}
    (folder / "at").mkdir()
    (folder / "stage").mkdir()
    if ordinary and os.getuid() == 0:
        folder.chmod(0o755)
        os.chown(folder / "at", ORDINARY, ORDINARY)
        base = Path(sys.base_prefix)
        environment |= {
            "COVER": _cover(base), "BASE": str(base), "STAGE": str(folder / "stage"),
            "ID": str(ORDINARY), "HOME": str(folder / "at"), "USER": "ordinary",
        }  # fmt: skip
        command = ["unshare", "--mount", "sh", "-c", _AS_USER, "sh", *command]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=_REPOSITORY,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout
    finally:
        shutil.rmtree(folder)


def _cover(base: Path) -> str:
    """The first folder on the way to `base` where others may not go; nothing when all may."""
    for folder in reversed(base.parents):
        if not folder.stat().st_mode & 0o001:
            return str(folder)
    return ""


def table(found: Mapping[str, Found]) -> str:
    """Attacks in rows, runs in columns."""
    names = list(next(iter(found.values())).outcomes)
    wide = max(map(len, names)) + 2
    columns = [max(len(title), 26) for title in found]
    head = "attack".ljust(wide) + "  ".join(t.ljust(w) for t, w in zip(found, columns, strict=True))
    lines = [head.rstrip()]
    for name in names:
        cells = [f.outcomes[name].ljust(w) for f, w in zip(found.values(), columns, strict=True)]
        lines.append((name.ljust(wide) + "  ".join(cells)).rstrip())
    return "\n".join(lines)
