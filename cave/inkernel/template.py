"""The template: a process that has imported what kernels need, and forks them.

`PYTHON .../inkernel --template SOCKET LOCK KEY ROOM`. It never runs anything of the user's, is not
confined, and has one thread whenever it forks. Each connection to SOCKET brings one request,
a line of JSON, and descriptors: the keeper's lifeline and log, then the kernel's sockets.

::

    key         what this template has to stand for (see `cave/kernel/template.py`)
    keeper      [STATUS, LOG, CWD, RUNTIME] of `cave/kernel/keeper.py`
    argv        the kernel's command, as it would be started cold
    environ     its whole environment
    umask       of its files

The answer is `{"keeper": PID}`, or `{"refused": WHY}`, with `stale` if it was the last. The fork
becomes the keeper; its child puts on the layers of the host's plan, makes itself what a fresh
interpreter would be, and runs the kernel. What stands in LOCK, a file that a template keeps
locked while it lives, is why none like it should be tried again soon. ROOM is a long word, whose
place in memory the command lines of forks take.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import select
import signal
import site
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import app, confine
from .confine import system
from .image import ready, serve  # noqa: F401 - as `app` does when a kernel is idle
from .shelf import Shelf

LIBRARIES = ("numpy", "pyarrow", "pandas")
"""In an order in which each brings in those before it."""
SOON = (
    "tornado.queues", "tornado.platform.asyncio", "IPython.core.oinspect",
    "IPython.core.completerlib", "IPython.core.logger", "IPython.extensions.storemagic",
    "unicodedata", "stack_data", "pygments.formatters.terminal256", "email.parser",
    *(f"{__package__}.{name}" for name in (
        "describe_connections", "describe_frames", "glance", "hints", "marks", "namespace",
    )),
)  # fmt: skip
"""What a kernel imports when it starts, and for its first cells."""
IDLE = 600.0
"""Seconds without a request after which a template ends."""
LOOK = 1.0
"""Seconds between looks at its socket's file."""
_PATIENCE = 5.0
_KEEPER = Path(__file__).resolve().parent.parent / "kernel" / "keeper.py"
_SET_DUMPABLE = 4
_STANDING = ("Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp", "Cap")
_ONLY_HERE = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Pyarrow's allocator would start a thread of its own."""

Stamp = dict[str, int]


class Refused(Exception):
    """No kernel is forked; the text says why."""


def main(argv: list[str]) -> None:
    """Serve until nobody asks any more, or the socket is gone."""
    path, lock, key, _ = argv
    _be_called([*sys.orig_argv[:3], path])
    try:
        template = Template(key)
        listener = _listen(path)
    except Refused as why:
        _say(int(lock), str(why))
        return
    except Exception:
        _say(int(lock), traceback.format_exc())
        return
    system.prctl(_SET_DUMPABLE, 0)  # nothing holds who can write to its memory
    _say(int(lock), "")
    _serve(template, listener, path)


def _say(lock: int, why: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, why.encode(), 0)


# -- what is imported ------------------------------------------------------------------------


class Template:
    """What this process has imported, and whether that is still what would be imported."""

    def __init__(self, key: str) -> None:
        """Raises `Refused` where a fork would not be as good as a start."""
        self.key = key
        self._shelf = Shelf()
        self._places = _stamp(_places())
        app.without_debugger()
        ready.load()
        for name in SOON:
            with contextlib.suppress(ImportError):  # other versions have other parts
                importlib.import_module(name)
        self._environ = _set_since()
        os.environ.update(_ONLY_HERE)
        self._shelf.load(LIBRARIES)
        self._keeper = _keeper()
        if _stamp(_places()) != self._places:
            raise Refused("packages changed while they were imported")
        self._files = _stamp(_files())
        _settle()
        gc.collect()
        gc.freeze()

    @property
    def stale(self) -> bool:
        """Whether a kernel that is started now would import something else."""
        return _stamp(_places()) != self._places or _stamp(self._files) != self._files

    def keep(self, request: dict[str, Any], fds: list[int]) -> None:
        """In the fork: keep one kernel, to its end."""
        line, log, *sockets = fds
        _only({*fds})
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(request["environ"])
        os.umask(request["umask"])
        argv = request["argv"]
        _be_called([argv[0], str(_KEEPER), *request["keeper"]])
        self._keeper.keep(
            request["keeper"],
            line,
            sockets,
            begin=lambda: self._begin(argv, sockets),
            layers=lambda: confine,
        )

    def _begin(self, argv: list[str], sockets: list[int]) -> None:
        """In the keeper's child, which is confined: run the kernel. Does not return."""
        try:
            signal.set_wakeup_fd(-1)
            system.prctl(_SET_DUMPABLE, 1)  # its keeper is not, and an exec would have
            lender = int(os.environ.get("CAVE_LENDER", "-1"))
            _only({*sockets, lender})
            self._refresh(argv)
            _be_called(argv)
            app.main(_told(argv[2:], sockets))
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _refresh(self, argv: list[str]) -> None:
        """Be as an interpreter is that has just started."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        for name, value in self._environ.items():
            os.environ.setdefault(name, value)
        time.tzset()
        tempfile.tempdir = None
        sys.orig_argv[:] = argv
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # Python's own generator is seeded by every fork
        if processes := sys.modules.get("multiprocessing.process"):
            processes.current_process().authkey = os.urandom(32)
        self._shelf.hide()
        importlib.invalidate_caches()
        gc.unfreeze()


def _set_since() -> dict[str, str]:
    """What the interpreter's start and imports have put into the environment."""
    given = set(Path("/proc/self/environ").read_bytes().split(b"\0"))
    return {k: v for k, v in os.environ.items() if os.fsencode(f"{k}={v}") not in given}


def _told(argv: list[str], sockets: list[int]) -> list[str]:
    """The arguments of a kernel whose sockets have other numbers here."""
    at = argv.index("--cave") + 1
    settings = {**json.loads(argv[at]), "fds": sockets}
    return [*argv[:at], json.dumps(settings), *argv[at + 1 :]]


def _keeper() -> Any:
    spec = importlib.util.spec_from_file_location("_cave_keeper", _KEEPER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _places() -> list[str]:
    """Folders of packages, and files that add to them: what installing anything changes."""
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {path for path in sys.path if path.endswith("-packages")}
    added = [str(file) for folder in folders for file in Path(folder).glob("*.pth")]
    return [*folders, *added]


def _files() -> list[str]:
    """What was imported, and all of ours."""
    own = Path(__file__).resolve().parent
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    named = [file for file in files if isinstance(file, str)]
    python = [sys.executable, os.path.realpath(sys.executable), f"{sys.prefix}/pyvenv.cfg"]
    return [*named, *python, str(_KEEPER), *map(str, own.rglob("*.py"))]


def _stamp(paths: Iterable[str]) -> Stamp:
    """When each was changed; 0 for what is not there."""
    found = {}
    for path in paths:
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:
            found[path] = 0
    return found


def _settle() -> None:
    """See to it that a fork finds one thread. Raises `Refused`.

    OpenBLAS ends its own before a fork, for good as far as the template goes; they come again
    where they are used.
    """
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        names = [Path(f"/proc/self/task/{one}/comm").read_text().strip() for one in threads]
        raise Refused(f"libraries have threads, which a fork would not have: {sorted(names)}")


# -- whom it serves --------------------------------------------------------------------------


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)
    return listener


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _serve(template: Template, listener: socket.socket, path: str) -> None:
    mine, last = _inode(path), time.monotonic()
    keepers: dict[int, int] = {}
    """By the descriptor that tells of its end."""
    while _inode(path) == mine and _KEEPER.exists() and time.monotonic() - last < IDLE:
        watched: list[Any] = [listener, *keepers]
        told = select.select(watched, [], [], LOOK)[0]
        for ended in {*told} & {*keepers}:
            os.close(ended)
            os.waitpid(keepers.pop(ended), 0)
        if listener not in told:
            continue
        last = time.monotonic()
        answer = _answer(template, listener.accept()[0])
        if keeper := answer.get("keeper"):
            keepers[os.pidfd_open(keeper)] = keeper
        if answer.get("stale"):
            break
    if _inode(path) == mine:
        os.unlink(path)
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.lock")


def _answer(template: Template, asking: socket.socket) -> dict[str, Any]:
    """Serve one request; what was answered."""
    answer: dict[str, Any]
    fds: list[int] = []
    with asking:
        try:
            request = _request(asking, fds)
            if _standing(_peer(asking)) != _standing("self"):
                raise Refused("who asks is held to something else than this process")
            if request["key"] != template.key:
                raise Refused("another template has this name")
            if template.stale:
                answer = {"refused": "packages have changed", "stale": True}
            else:
                answer = {"keeper": _forked(lambda: template.keep(request, fds))}
        except (OSError, ValueError, KeyError, Refused) as why:
            answer = {"refused": str(why)}
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(OSError):  # who asked is gone: its keeper ends by itself
            asking.sendall(json.dumps(answer).encode() + b"\n")
    return answer


def _request(asking: socket.socket, fds: list[int]) -> dict[str, Any]:
    """One line, and what came with it. Raises `OSError`, `ValueError`."""
    asking.settimeout(_PATIENCE)
    text, given, _, _ = socket.recv_fds(asking, 1 << 16, 16)
    fds += given
    while not text.endswith(b"\n"):
        part = asking.recv(1 << 16)
        if not part:
            raise ValueError("the request was cut")
        text += part
    request: dict[str, Any] = json.loads(text)
    return request


def _peer(asking: socket.socket) -> str:
    credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return str(int.from_bytes(credentials[:4], sys.byteorder))


def _standing(pid: str) -> list[str]:
    """Who a process is, and what it may not do: one that is confined gets no kernel that is not."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    return [line for line in status.splitlines() if line.startswith(_STANDING)]


def _forked(work: Callable[[], None]) -> int:
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _be_called(argv: list[str]) -> None:
    """What `ps` shows, and all who look for processes by their command line."""
    fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if start and start < end:
        text = b"".join(os.fsencode(part) + b"\0" for part in argv)[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def _only(fds: set[int]) -> None:
    """Close all other descriptors, as an exec would have."""
    kept = sorted(fd for fd in {0, 1, 2, *fds} if fd >= 0)
    for low, high in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(low + 1, high)
