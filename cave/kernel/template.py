"""Templates: processes that have imported what kernels need, and fork them; see
`cave/inkernel/template.py` for what they do.

There is one for all hosts of a user whose kernels would start alike: by the same interpreter,
under the same environment (as far as it is read when an interpreter starts), limits, groups,
capabilities, namespaces. Whatever else a kernel is given comes with the request. A host that
finds none begins one for the next kernel, and starts its own cold; so it does whenever the
template does not answer, refuses, or is not ready. Nothing waits for a template.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_INKERNEL = Path(__file__).resolve().parent.parent / "inkernel"
_FORMAT = 1
"""Of requests."""
_PATIENCE = 5.0
"""Seconds in which a template forks."""
_BARRED = 600.0
"""Seconds in which one that failed is not tried again."""
_ROOM = "." * 3000
"""For the command lines of kernels."""
_AT_START = re.compile(
    r"PYTHON(?!_HISTORY)|LANG|LC_|LOCPATH$|LD_|GLIBC_|GCONV_|MALLOC_|MIMALLOC_|JE_|HOME$|NO_COLOR$|"
    r"FORCE_COLOR$|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|BLIS_|NPY_|NUMPY_|NUMEXPR_|PANDAS_|"
    r"ARROW_|PYARROW_|POLARS_|ZMQ_|PYZMQ_|JUPYTER_PLATFORM|TRAITLETS_|PYDEVD_|CUDA_|TZ"
)
"""Variables that an interpreter, or a library, reads once."""
_SAME = re.compile(
    r"^(?:Uid|Gid|Groups|NoNewPrivs|Seccomp|Seccomp_filters|Cap\w+|Cpus_allowed|"
    r"Mems_allowed):.*$",
    re.MULTILINE,
)
_OF_PROCESS = ("limits", "cgroup", "attr/current", "oom_score_adj", "timerslack_ns", "root")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "user", "uts")

_begun: list[int] = []
"""Those of this process, to be buried."""


class Template:
    """The template that fits a kernel, whether or not it runs."""

    def __init__(self, folder: Path, python: str, environ: Mapping[str, str]) -> None:
        self._python = python
        self._environ = {k: v for k, v in environ.items() if _AT_START.match(k)}
        told = json.dumps([_FORMAT, python, sorted(self._environ.items()), _inherited()])
        self._key = hashlib.sha256(told.encode()).hexdigest()
        self._path = folder / f"t-{self._key[:10]}"
        self._lock = self._path.with_suffix(".lock")

    def fork(
        self,
        *,
        keeper: Sequence[str],
        argv: Sequence[str],
        environ: Mapping[str, str],
        fds: Sequence[int],
    ) -> int | None:
        """The keeper of a new kernel; None when there is to be a cold start."""
        request = {
            "key": self._key,
            "keeper": list(keeper),
            "argv": list(argv),
            "environ": dict(environ),
            "umask": _umask(),
        }
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_PATIENCE)
            try:
                asking.connect(os.fspath(self._path))
                return _asked(asking, json.dumps(request).encode() + b"\n", fds)
            except TimeoutError:
                self.end("it did not answer")
            except (OSError, ValueError, KeyError):
                return None
        return None

    def begin(self) -> None:
        """Start it, unless it is there, or somebody starts it, or it has failed lately."""
        with contextlib.suppress(OSError):  # the next kernel starts cold, too
            self._begin()

    def _begin(self) -> None:
        _begun[:] = [pid for pid in _begun if not _buried(pid)]
        if self._running():
            return
        with self._locked() as lock:
            if lock is None or self._barred():
                return
            os.pwrite(lock, b"it did not get ready", 0)
            arguments = [str(self._path), str(lock), self._key, _ROOM]
            begun = subprocess.Popen(
                [self._python, str(_INKERNEL), "--template", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[lock],
                env={**self._environ, "PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
                cwd="/",
            )
            begun.returncode = 0  # it outlives us on purpose
            _begun.append(begun.pid)

    def end(self, why: str) -> None:
        """End it, and have none like it started for a while. Kernels that it forked stay."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_PATIENCE)
            asking.connect(os.fspath(self._path))
            pid, uid = _peer(asking)
            if uid == os.getuid():
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._lock.write_text(why, "utf-8")

    def _running(self) -> bool:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_PATIENCE)
            return asking.connect_ex(os.fspath(self._path)) == 0

    def _barred(self) -> bool:
        facts = self._lock.stat()
        return bool(facts.st_size) and time.time() - facts.st_mtime < _BARRED

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The lock, as a descriptor; None when another has it."""
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
        else:
            yield lock
        finally:
            os.close(lock)


def fitting(folder: Path, python: str, environ: Mapping[str, str]) -> Template | None:
    """The template of a kernel to be started; None where none can be as good as a cold start.

    All kernels of a template have one seed of `hash(str)`: one that is not given would be a
    new one at each cold start.
    """
    if sys.platform != "linux" or not environ.get("PYTHONHASHSEED", "").isdigit():
        return None
    return Template(folder, python, environ)


def _asked(asking: socket.socket, request: bytes, fds: Sequence[int]) -> int:
    """Raises `OSError`, `ValueError`, and `KeyError` when it was refused."""
    if _peer(asking)[1] != os.getuid():
        raise PermissionError("the template belongs to somebody else")
    sent = socket.send_fds(asking, [request], fds)
    asking.sendall(request[sent:])
    answer = b""
    while not answer.endswith(b"\n"):
        if not (part := asking.recv(4096)):
            raise ConnectionError("the template is gone")
        answer += part
    return int(json.loads(answer)["keeper"])


def _peer(asking: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", found)
    return pid, uid


def _buried(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # another fork of this process has begun it
        return True


def _umask() -> int:
    """Ours; to ask the system by setting it would be seen by other threads."""
    return int(_found(r"^Umask:\s*(\d+)", _read("status")) or "22", 8)


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _inherited() -> list[str]:
    """What a process has of its parent, and a kernel would have of its host."""
    spaces = [str(Path("/proc/self/ns", name).readlink()) for name in _NAMESPACES]
    facts = [_SAME.findall(_read("status")), *map(_read, _OF_PROCESS)]
    return [*spaces, *map(str, facts), str(os.nice(0))]


def _read(name: str) -> str:
    path = Path("/proc/self", name)
    try:
        return str(path.readlink()) if name == "root" else path.read_text("utf-8", "replace")
    except OSError:
        return ""
