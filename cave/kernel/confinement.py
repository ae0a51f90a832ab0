"""The host's side of confinement: what a kernel is to be held to, and what came of it.

The layers themselves are in `cave/inkernel/confine`; the keeper puts them on between its fork
and the exec of the kernel's interpreter, and tells the host which there are.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cave import config
from cave.errors import KernelStartError
from cave.inkernel.confine import environment
from cave.inkernel.confine.layers import LAYERS
from cave.kernel import readable

_FIRST_UID, _UIDS = 2_000_000_000, 100_000_000
"""Users that no system gives to people or services."""

OPEN = {
    "data": "cells can use all memory of the machine",
    "file": "cells can write files of any length",
    "processes": "cells can start processes without end",
    "truncation": "cells can cut files of the user short",
    "signals": "cells can end other processes of the user",
    "limits": "cells can use all memory, disk and processes of the machine",
    "user": "cells run as root, without its capabilities",
    "capabilities": "cells keep the capabilities of the host",
    "no-new-privileges": "sudo and the like give cells what they give the user",
    "landlock": "cells can read and write every file of the user",
    "seccomp": "cells can reach the network and other programs of the user",
    "network": "cells can reach more of the network than the hosts that the policy names",
}
"""What is open without a layer."""

_LEFT = {
    "shared-memory": "cells can open what other programs of the user keep in /dev/shm",
    "processes": "cells can see which processes run, and their command lines",
    "disk": "cells can fill the disk: files are limited in length, not in number",
}
_LEFT_TO_SAME_USER = {
    "metadata": "cells can change modes and times of the user's files",
}


def left_open(*, another_user: bool) -> dict[str, str]:
    """What no layer stops here, in the words in which it is always told."""
    return _LEFT if another_user else {**_LEFT, **_LEFT_TO_SAME_USER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What a kernel is held to. Everything that is not named is refused."""

    profile: str = "confined"
    read: tuple[str, ...] = ()
    """Files and folders that cells may read, beside the interpreter and the session's own."""
    write: tuple[str, ...] = ()
    """Those that cells may also change."""
    network: tuple[str, ...] = ()
    """Hosts, by name or address; `*` among them: the internet, whole."""
    env: tuple[str, ...] = ()
    """Names of environment variables that cells may see, beside harmless ones."""
    require: bool = False
    """Refuse to start where a layer is missing."""
    memory: int | None = config.MEMORY
    """Bytes that a process of the kernel may write to; None: no limit. The same below."""
    file_size: int | None = config.FILE_SIZE
    """Bytes of the longest file."""
    processes: int | None = None
    """Processes and threads; None: by the number of processors."""
    cpu: int | None = None
    """Seconds of processor time of a process."""
    without: tuple[str, ...] = ()
    """Layers that are left out, to see what the others stop."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the kernel's proxy lets through; empty where it has none."""
        return () if "*" in self.network else self.network

    @property
    def digest(self) -> str:
        """The same for those that hold a kernel to the same."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, as the kernel's side names them."""
        found = {
            "data": self.memory,
            "file": self.file_size,
            "processes": self.processes or max(256, 128 + 8 * (os.cpu_count() or 1)),
            "cpu": self.cpu,
        }
        return {kind: number for kind, number in found.items() if number is not None}


@dataclass(frozen=True, slots=True)
class Layers:
    """What holds a kernel, as it was told when the kernel started."""

    applied: tuple[str, ...] = ()
    """Names of layers, with what is to be said of each."""
    degraded: tuple[str, ...] = ()
    """What is missing, and what is open by it; a line each."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one kernel that its confinement has to know."""

    session: Path
    home: Path
    """That of the kernel's spool and record."""
    workdir: Path
    runtime: Path

    @property
    def private(self) -> Path:
        """For temporary files, caches and settings of libraries; the session's, for good."""
        return self.session / "private"

    @property
    def written(self) -> list[Path]:
        """What the kernel itself writes to."""
        return [self.workdir, self.private, self.home / "spool", self.home / "pending"]


def environ(held: Confinement, places: Places, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a confined kernel."""
    return environment.scrubbed(inherited, allowed=held.env, own=str(places.private))


def prepare(
    held: Confinement, places: Places, *, python: str | None, sealed: bool
) -> dict[str, Any]:
    """Make the folders that the kernel writes to, and the plan of what it puts on."""
    for folder in [*places.written, *map(Path, environment.folders(str(places.private)))]:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    extra = [str(_resolved(path)) for path in held.write]
    uid = _user(places.session, extra)
    if uid is not None:
        for folder in places.written:
            _give(folder, uid)
    own = [places.home, places.runtime / "kernel.json"]
    return {
        "read": [
            *readable.of_system(),
            *readable.of_python(python or sys.executable),
            *(str(_resolved(path)) for path in held.read),
            *map(str, own),
        ],
        "write": [*map(str, places.written), *extra],
        "devices": readable.devices(),
        "limits": held.limits,
        "sockets": _sockets(held, sealed=sealed),
        "hosts": list(held.hosts),
        "uid": uid,
        "layers": [name for name in _of(held) if name not in held.without],
        "require": held.require,
    }


def _sockets(held: Confinement, *, sealed: bool) -> str:
    if held.network and not held.hosts:
        return "internet"
    return "any" if not sealed else "proxied" if held.hosts else "sealed"


def _of(held: Confinement) -> list[str]:
    """The layers of such a kernel."""
    return [name for name in LAYERS if name != "network" or held.hosts]


def told(held: Confinement, places: Places, *, project: Path | None) -> dict[str, Any]:
    """What the kernel has to know, to say which setting would allow what it was refused."""
    return {
        "profile": held.profile,
        "network": bool(held.network),
        "hosts": list(held.hosts),
        "own": [str(places.workdir), str(places.private)],
        "limits": held.limits,
        "user": os.getuid(),
        "project": "" if project is None else str(project),
        "trusted": str(project) in held.read,
    }


def trial_plan(folder: Path) -> dict[str, Any]:
    """The plan of an ordinary confined kernel, to try the layers with, in a folder of its own."""
    places = Places(folder, folder / "kernel", folder / "work", folder / "run")
    return prepare(Confinement(), places, python=None, sealed=True)


def reader_plan(paths: Iterable[str]) -> dict[str, Any]:
    """The plan of the process that reads first what kernels send: it finds modules on `paths`,
    writes no file and reaches nobody."""
    return {
        "read": [*readable.of_system(), *readable.of_python(sys.executable), *paths],
        "write": [],
        "devices": readable.devices(),
        "limits": {"file": 0},
        "sockets": "sealed",
        "hosts": [],
        "uid": _user(Path("/reader"), []),
        "layers": _of(Confinement()),
    }


def layers(
    held: Confinement,
    report: Mapping[str, Mapping[str, str]],
    fallen: Mapping[str, str] | None = None,
) -> Layers:
    """What came of a plan, and of the trial on this system (`fallen`: layers that do not hold).

    Raises `KernelStartError` where a layer is required and missing.
    """
    left_out = dict.fromkeys(held.without, "it was left out")
    through = {k: v for k, v in (fallen or {}).items() if k != "network" or held.hosts}
    missing = {**through, **report["missing"], **left_out}
    degraded = tuple(degradation(name, why) for name, why in missing.items())
    if degraded and held.require:
        raise KernelStartError(
            f"the kernel was not started, because confinement='require': {'; '.join(degraded)}; "
            f"for more type: cave doctor"
        )
    put_on = {"environment": "scrubbed", **report["applied"]}
    names = [name for name in ("environment", *LAYERS) if name in put_on and name not in missing]
    applied = {name: put_on[name] for name in names}
    return Layers(tuple(f"{k}: {v}" if v else k for k, v in applied.items()), degraded)


def degradation(layer: str, why: str) -> str:
    """A line that names what is open."""
    open_ = OPEN.get(layer, "it does not hold")
    if layer == "landlock" and os.getuid():  # root keeps those off who have no capabilities
        open_ += ", and the memory of the user's programs"
    return f"DEGRADED {layer}: {open_} ({why})"


def _resolved(path: str) -> Path:
    return Path(path).expanduser().resolve()


# -- another user ------------------------------------------------------------------------------


def _user(session: Path, extra: list[str]) -> int | None:
    """Whom the kernel of a session becomes where the host is root.

    A folder of root's that the policy opens for writing is not writable for anybody else: then
    the kernel stays root, without capabilities.
    """
    if sys.platform != "linux" or os.getuid() != 0:
        return None
    if any(not _open_to_all(path) for path in extra):
        return None
    digest = hashlib.sha256(os.fsencode(session.resolve())).digest()
    uid = _FIRST_UID + int.from_bytes(digest[:8], "big") % _UIDS
    return uid if _mapped(uid) else None


def _open_to_all(path: str) -> bool:
    try:
        return bool(Path(path).stat().st_mode & 0o002)
    except OSError:
        return True


def _mapped(uid: int) -> bool:
    """Whether this system (a container, say) has such a user."""
    try:
        lines = Path("/proc/self/uid_map").read_text("ascii").splitlines()
        spans = [tuple(map(int, line.split())) for line in lines]
    except (OSError, ValueError):
        return False
    return any(first <= uid < first + count for first, _, count in spans)


def _give(folder: Path, uid: int) -> None:
    """Let a user own a folder and all that is in it; links are not followed."""
    os.chown(folder, uid, uid, follow_symlinks=False)
    for _, folders, files, at in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            facts = os.stat(name, dir_fd=at, follow_symlinks=False)
            if facts.st_uid != uid:
                os.chown(name, uid, uid, dir_fd=at, follow_symlinks=False)
