"""Bringing a kernel up: folders, sockets, the keeper, and the record that outlives the host."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cave.errors import KernelStartError
from cave.events import KernelStart
from cave.kernel import confinement, processes, template, trial
from cave.kernel.confinement import Confinement, Layers, Places
from cave.kernel.template import Template

OWN = "cave-python"


class WarmFailed(KernelStartError):
    """A kernel that a template forked did not start; a cold one may."""

    def __init__(self, message: str, template: Template) -> None:
        super().__init__(message)
        self.template = template


_LONGEST_PATH = 107
_SCRUBBED = {"PYTHONPATH", "PYTHONHOME", "JPY_PARENT_PID", "PYTHONSAFEPATH", "PYTEST_CURRENT_TEST"}
_HERE = Path(__file__).resolve().parent
_PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "hb_port": 4, "control_port": 5}


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one kernel."""

    session: str
    folder: Path
    """The session's own folder on disk; spool and logs go to `folder/kernels/NUMBER`."""
    workdir: Path
    """The working directory of cells."""
    runtime: Path
    """Where sockets live, in a short subfolder; made with mode 0700, and checked."""
    number: int
    """Counts the session's kernels."""
    kernel: str = OWN
    """Name of a kernelspec."""
    python: str | None = None
    """Interpreter of the kernel; None means this one."""
    idle_timeout: float | None = None
    """Seconds after which a kernel that nobody uses ends by itself."""
    pending_after: float | None = 10.0
    """Seconds after a cell for which a host has to ask for an image; then the kernel writes one
    for the next host. None: it never does. Only kernels that were asked for an image do it."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment beside the host's."""
    hash_seed: int | None = None
    """Seed of `hash(str)`, so that another kernel of the session orders sets alike; one that
    the user has set in the environment wins."""

    confinement: Confinement | None = None
    """What the kernel is held to; None: it may do what its user may."""

    policy: str = ""
    """Stands for the policy that says so; only compared."""

    trials: Path | None = None
    """Where it is remembered whether the layers hold on this system; None: they are not tried."""

    cwd: Path | None = None
    """Where the user works, whom a path without a folder means; None: nobody says."""

    project: Path | None = None
    """The project that the user works in, which may be trusted."""

    templates: Path | None = None
    """Where templates have their sockets, one of which may fork it; None: it is started cold."""

    @property
    def home(self) -> Path:
        return home(self.folder, self.number)

    def places(self, runtime: Path) -> Places:
        """The folders of this kernel, whose sockets are in `runtime`."""
        return Places(self.folder, self.home, self.workdir, runtime)


def home(folder: Path, number: int) -> Path:
    """Where a kernel's spool, log and record are."""
    return folder / "kernels" / str(number)


@dataclass(frozen=True, slots=True)
class Record:
    """What is written down of a kernel, so that another host can take it over."""

    session: str
    number: int
    pid: int
    began: float
    keeper: int
    keeper_began: float
    boot: str
    base: str
    """Path of the sockets, without the port."""
    runtime: str
    """The folder of the sockets and the connection file; removed when the kernel has ended."""
    key: str
    profile: str = "open"
    python: str = ""
    executable: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[str] = ()
    degraded: Sequence[str] = ()
    policy: str = ""
    start: KernelStart = "cold"
    format: int = 1

    @property
    def connection_file(self) -> Path:
        return Path(self.runtime, "kernel.json")

    @property
    def door(self) -> Path:
        return Path(f"{self.base}-6")

    def write(self, path: Path) -> None:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(fields), "utf-8")
        new.replace(path)


def read_record(path: Path) -> Record | None:
    """The record; None when there is none that can be read."""
    try:
        fields = json.loads(path.read_text("utf-8"))
        return Record(**{k: v for k, v in fields.items() if k in Record.__dataclass_fields__})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


# -- folders and sockets ---------------------------------------------------------------------


def make_runtime(base: Path) -> Path:
    """A new private folder for sockets below `base`, or below a shorter one when that is long."""
    runtime = _short(base) / secrets.token_hex(4)
    runtime.mkdir(mode=0o700)
    return runtime


def _short(base: Path) -> Path:
    folder = _private(base)
    if len(os.fsencode(folder)) + len("/12345678/k-1") > _LONGEST_PATH:
        folder = _private(Path(tempfile.gettempdir(), f"cave-{os.getuid()}"))
    if len(os.fsencode(folder)) + len("/12345678/k-1") > _LONGEST_PATH:
        folder = _private(Path("/tmp", f"cave-{os.getuid()}"))  # noqa: S108 - checked to be ours
    return folder


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as exc:
        raise KernelStartError(f"the runtime folder {folder} cannot be made: {exc}") from exc
    if not stat.S_ISDIR(facts.st_mode):
        raise KernelStartError(f"the runtime folder {folder} is no folder; remove it")
    if facts.st_uid != os.getuid():
        raise KernelStartError(
            f"the runtime folder {folder} belongs to user {facts.st_uid}; "
            f"set another one: export CAVE_RUNTIME_DIR=..."
        )
    if facts.st_mode & 0o077:
        raise KernelStartError(
            f"the runtime folder {folder} is open to others; type: chmod 700 {folder}"
        )
    return folder.resolve()


def listen(base: str) -> list[socket.socket]:
    """Five channels and the door, bound and listening before there is a kernel."""
    sockets: list[socket.socket] = []
    try:
        for port in range(1, 7):
            kind = socket.SOCK_SEQPACKET if port == 6 else socket.SOCK_STREAM
            listener = socket.socket(socket.AF_UNIX, kind)
            sockets.append(listener)
            listener.bind(f"{base}-{port}")
            listener.listen(128)
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def write_connection_file(path: Path, base: str, key: str, kernel: str) -> None:
    """A connection file as every Jupyter client reads it."""
    content = {
        **_PORTS,
        "transport": "ipc",
        "ip": base,
        "key": key,
        "signature_scheme": "hmac-sha256",
        "kernel_name": kernel,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1), "utf-8")


# -- the keeper ------------------------------------------------------------------------------


@dataclass(slots=True)
class Kept:
    """A keeper that was just started, and its kernel."""

    keeper: int
    pid: int
    line: socket.socket
    """Closing it without `confirm` ends them."""
    report: Any = None
    """Which layers the kernel has, when it is confined."""
    fallen: Mapping[str, str] = field(default_factory=dict)
    """The layers that do not hold on this system."""
    start: KernelStart = "cold"
    template: Template | None = None
    """The one that forked them, or that may fork the next."""

    def confirm(self) -> None:
        """The kernel is recorded: from now on it outlives us."""
        self.line.send(b"+")
        self.line.close()

    def give_up(self) -> None:
        """End both: without confirmation the keeper ends all; returns when it has."""
        self.line.close()
        _await_end(self.keeper)


def spawn(launch: Launch, argv: Sequence[str], runtime: Path, fds: Sequence[int]) -> Kept:
    """Start a keeper that starts `argv`, confined as `launch` says."""
    plan, fallen = None, {}
    if (held := launch.confinement) is not None:
        places = launch.places(runtime)
        plan = confinement.prepare(held, places, python=launch.python, sealed=bool(fds))
        if launch.trials is not None:
            fallen = trial.fallen(trial.tried(plan, launch.trials))
    paths = (launch.home / "end", launch.home / "log", launch.workdir, runtime)
    command = _Command(
        tuple(map(str, paths)),
        launch.home / "keeper.log",
        argv,
        _environment(launch, runtime),
        fds,
    )
    found = None if plan and plan["hosts"] else _fitting(launch, command)  # no fork has a proxy
    kept = None if found is None else _warm(found, command, plan)
    kept = kept or _started(command, plan, _keeper)
    assert kept is not None
    kept.fallen, kept.template = fallen, found
    return kept


@dataclass(frozen=True, slots=True)
class _Command:
    """What a keeper is told, whoever starts it."""

    paths: tuple[str, ...]
    """Those of its end record, the kernel's log, the working folder and the sockets' folder."""
    log: Path
    argv: Sequence[str]
    environ: dict[str, str]
    fds: Sequence[int]


def _fitting(launch: Launch, command: _Command) -> Template | None:
    """The template to ask; None where there can be none."""
    if launch.templates is None or launch.kernel != OWN:
        return None
    try:
        folder = _short(launch.templates)
    except KernelStartError:
        return None
    return template.fitting(folder, command.argv[0], command.environ)


def _warm(found: Template, command: _Command, plan: Any) -> Kept | None:
    """A kernel that a template forks, if it runs.

    Raises `WarmFailed` once there is a keeper: its end takes the sockets with it.
    """
    try:
        kept = _started(command, plan, functools.partial(_forked, found))
    except (KernelStartError, OSError) as exc:
        raise WarmFailed(str(exc), found) from exc
    if kept is not None:
        kept.start = "warm"
    return kept


def _forked(found: Template, command: _Command, line: int) -> int | None:
    with command.log.open("ab") as log:
        return found.fork(
            keeper=command.paths,
            argv=command.argv,
            environ=command.environ,
            fds=[line, log.fileno(), *command.fds],
        )


def _started(
    command: _Command, plan: Any, begin: Callable[[_Command, int], int | None]
) -> Kept | None:
    """The kernel of a keeper that `begin` starts on its end of a lifeline, if it does."""
    keeper = None
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            keeper = begin(command, theirs.fileno())
        if keeper is None:
            ours.close()
            return None
        ours.settimeout(10)
        ours.sendall(json.dumps(plan).encode() + b"\n")
        pid, _, report = _line(ours).partition(b" ")
    except BaseException:
        ours.close()  # a keeper that is there ends by it, unless it hangs
        if keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
            _await_end(keeper)
        raise
    if not pid:
        ours.close()
        _await_end(keeper)
        tail = read_tail(command.log)
        raise KernelStartError(f"the kernel's keeper did not start; it printed:\n{tail}")
    return Kept(keeper, int(pid), ours, json.loads(report))


def _line(line: socket.socket) -> bytes:
    """What comes until the end of a line, or of the connection."""
    text = b""
    while not text.endswith(b"\n"):
        try:
            part = line.recv(1 << 16)
        except ConnectionError:
            part = b""
        if not part:
            return b""
        text += part
    return text


def _keeper(command: _Command, line: int) -> int:
    fds = command.fds
    args = [*command.paths, str(line), ",".join(map(str, fds)), "--", *command.argv]
    with command.log.open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HERE / "keeper.py"), *args],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[line, *fds],
            env=command.environ,
            start_new_session=True,
            cwd="/",
        )
    keeper.returncode = 0  # it outlives us on purpose; `reap` buries it when it ends
    return keeper.pid


def _environment(launch: Launch, runtime: Path) -> dict[str, str]:
    inherited = environment({}, hash_seed=launch.hash_seed)
    if (held := launch.confinement) is not None:
        inherited = confinement.environ(held, launch.places(runtime), inherited)
    return {**inherited, **launch.env}


def reap(pid: int) -> None:
    """Bury a keeper, when it is our child."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _await_end(keeper: int) -> None:
    """Of one that is ending, whoever started it."""
    reap(keeper)
    with contextlib.suppress(ProcessLookupError):
        processes.await_end(keeper)


def environment(extra: Mapping[str, str], *, hash_seed: int | None = None) -> dict[str, str]:
    """What a kernel inherits: ours without what would break it or is not its business."""
    seed = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _SCRUBBED and not name.startswith("CAVE_") and not name.endswith("_API_KEY")
    }
    return {**seed, **kept, **extra}


def own_argv(launch: Launch, runtime: Path, fds: Sequence[int]) -> list[str]:
    """The command of our own kernel."""
    held, places = launch.confinement, launch.places(runtime)
    settings = {
        "fds": list(fds),
        "folder": str(launch.home),
        "runtime": str(runtime),
        "idle_timeout": launch.idle_timeout,
        "pending_after": launch.pending_after,
        "held": {
            "cwd": str(launch.cwd or ""),
            **({} if held is None else confinement.told(held, places, project=launch.project)),
        },
    }
    return [
        launch.python or sys.executable,
        str(_HERE.parent / "inkernel"),
        "-f",
        str(runtime / "kernel.json"),
        "--cave",
        json.dumps(settings),
    ]


def spec_argv(launch: Launch, runtime: Path) -> list[str]:
    """The command of another kernelspec. Raises `KernelStartError` when there is none."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(launch.kernel)
    except NoSuchKernel:
        names = ", ".join(sorted({OWN, *manager.find_kernel_specs()}))
        raise KernelStartError(f"no kernelspec {launch.kernel!r}; there are: {names}") from None
    values = {"connection_file": str(runtime / "kernel.json"), "resource_dir": spec.resource_dir}
    argv = [_substituted(part, values) for part in spec.argv]
    if argv and argv[0] in {
        "python",
        "python3",
        f"python{sys.version_info[0]}.{sys.version_info[1]}",
    }:
        argv[0] = launch.python or sys.executable
    return argv


def _substituted(part: str, values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", str(value))
    return part


def read_tail(path: Path, size: int = 4000) -> str:
    """The end of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - size, 0))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def remove(folder: Path) -> None:
    """Remove a folder of ours and what is in it; no error when it is gone."""
    shutil.rmtree(folder, ignore_errors=True)


def newborn(kept: Kept, launch: Launch, runtime: Path, key: str) -> Record:
    """The record of a kernel that was just started. Raises `KernelStartError` where a layer is
    required and missing."""
    held = launch.confinement
    layers = Layers() if held is None else confinement.layers(held, kept.report, kept.fallen)
    return Record(
        session=launch.session,
        number=launch.number,
        pid=kept.pid,
        began=processes.started(kept.pid),
        keeper=kept.keeper,
        keeper_began=processes.started(kept.keeper),
        boot=processes.boot_id(),
        base=str(runtime / "k"),
        runtime=str(runtime),
        key=key,
        profile="open" if held is None else held.profile,
        layers=layers.applied,
        degraded=layers.degraded,
        policy=launch.policy,
        start=kept.start,
    )
