"""Audit events of Python as one line each: what running code is about to do to the world.

`DEEDS` has a reader for each event that can mean a side effect; it gives the line, or None
where there is none: a file opened for reading, an in-memory database, a folder that is there
already. The line is made before the act, so it also stands for one that fails.
https://docs.python.org/3/library/audit_events.html
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

Args = tuple[Any, ...]
Reader = Callable[[Args], "str | None"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_LOOKS_ONLY = frozenset({"uname", "lscpu", "ldconfig", "nproc", "getconf", "fc-list"})
"""Programs by which libraries learn of the machine."""
_LONGEST = 200

_root: list[str] = []
ignored: list[str] = []
"""Beginnings of paths that do not count: the kernel's own folders, caches."""


def ignore(*paths: str) -> None:
    """What is at or below these paths is no side effect."""
    ignored.extend(os.path.realpath(path) for path in paths if path and path != "/")


def place(root: str) -> None:
    """Paths are told from this folder on, where they are below it."""
    _root[:] = [os.path.join(os.path.realpath(root), ""), os.path.join(root, "")]


def shown(path: str) -> str:
    """The path as it is told."""
    full = os.path.abspath(path)
    root = next((root for root in _root if full.startswith(root)), "")
    return full[len(root) :]


def caches() -> list[str]:
    """Folders in which interpreters and libraries keep what they can make again."""
    home = os.path.expanduser("~")
    found = [os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")]
    found.append(os.environ.get("MPLCONFIGDIR") or os.path.join(home, ".config", "matplotlib"))
    found.append(os.environ.get("NUMBA_CACHE_DIR", ""))
    found.append(os.environ.get("PYTHONPYCACHEPREFIX", ""))
    return found


def path_of(path: Any) -> str | None:
    """The path as text; None for a descriptor and for what does not count."""
    try:
        text = os.fsdecode(os.fspath(path))
    except TypeError:
        return None
    return None if is_ignored(text) else text


def is_ignored(path: str) -> bool:
    """Whether writing there is nobody's concern."""
    if path.endswith(".pyc") or "__pycache__" in path:
        return True
    full = os.path.abspath(path)
    if full.startswith(_DEVICES) or full.startswith(("/dev/std", "/dev/fd/", "/proc/self/fd/")):
        return True
    return any(full == one or full.startswith(one + "/") for one in ignored)


def clip(text: str) -> str:
    """One line of bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _open(args: Args) -> str | None:
    path, _, flags = args
    if not isinstance(flags, int) or not flags & _WRITES:
        return None
    name = path_of(path)
    return None if name is None else f"wrote {shown(name)}"


def _on_path(said: str, *, at: int = 0, dir_fd: int | None = None, there: bool = True) -> Reader:
    """For events with a path at `at`, when it is `there` (unless relative to a descriptor)."""

    def read(args: Args) -> str | None:
        if isinstance(args[at], int):
            return f"{said} the file of a descriptor"
        name = path_of(args[at])
        if name is None:
            return None
        placed = dir_fd is None or args[dir_fd] == -1
        if placed and os.path.lexists(name) is not there:
            return None  # it will fail
        return f"{said} {shown(name) if placed else name}"

    return read


def _rename(args: Args) -> str | None:
    source, target = path_of(args[0]), path_of(args[1])
    if target is None or (source is not None and args[2] == -1 and not os.path.lexists(source)):
        return None
    if source is None:
        return f"wrote {shown(target)}"
    if args[2] != -1:
        return f"renamed {source} to {target}"
    return f"renamed {shown(source)} to {shown(target)}"


def _link(args: Args) -> str | None:
    target = path_of(args[1])
    return None if target is None or os.path.lexists(target) else f"linked {shown(target)}"


def _address(address: Any) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
    if isinstance(address, bytes):
        return os.fsdecode(address).replace("\0", "@")
    return str(address)


def _on_address(said: str) -> Reader:
    def read(args: Args) -> str | None:
        return None if args[1] is None else f"{said} {_address(args[1])}"

    return read


def _words(args: Any) -> str:
    if isinstance(args, (str, bytes)):
        return os.fsdecode(args)
    try:
        return " ".join(os.fsdecode(os.fspath(word)) for word in args)
    except TypeError:
        return str(args)


def _popen(args: Args) -> str | None:
    executable, words = args[0], args[1]
    if isinstance(words, (list, tuple)) and words:
        program = os.path.basename(_words([words[0]]))
        if program in _LOOKS_ONLY:
            return None
    return f"ran {_words(words) or executable}"


def _spawn(args: Args) -> str | None:
    return f"ran {_words(args[1]) or args[0]}"


def _urllib(args: Args) -> str | None:
    place = urlsplit(str(args[0]))
    if place.scheme in {"file", "data", ""}:
        return None
    method = args[3] or ("GET" if args[1] is None else "POST")
    host = place.netloc.rpartition("@")[2]  # without a name and password
    return f"requested {method} {place.scheme}://{host}{place.path}"


def _sqlite(args: Args) -> str | None:
    name = args[0]
    text = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else str(name)
    if text in {"", ":memory:"} or text.startswith(("file::memory:", "file:?")):
        return None
    if text.startswith("file:") and any(
        word in text for word in ("mode=memory", "mode=ro", "immutable=1")
    ):
        return None
    return None if is_ignored(text) else f"opened the database {_database(text)}"


def _database(name: str) -> str:
    return name if name.startswith("file:") else shown(name)


def _kill(args: Args) -> str | None:
    pid, number = args[0], args[1]
    return None if number == 0 or pid == os.getpid() else f"sent signal {number} to process {pid}"


def _dlsym(args: Args) -> str | None:
    return f"used {args[1]} of {getattr(args[0], '_name', None) or 'a C library'}"


def _dlopen(args: Args) -> str | None:
    return None if not args[0] else f"loaded the library {args[0]}"


DEEDS: dict[str, Reader] = {
    "open": _open,
    "os.remove": _on_path("removed", dir_fd=1),
    "os.rmdir": _on_path("removed", dir_fd=1),
    "os.rename": _rename,
    "os.mkdir": _on_path("made", dir_fd=2, there=False),
    "os.link": _link,
    "os.symlink": _link,
    "os.chmod": _on_path("changed the mode of", dir_fd=2),
    "os.chown": _on_path("changed the owner of", dir_fd=3),
    "os.chflags": _on_path("changed the flags of"),
    "os.truncate": _on_path("truncated"),
    "os.utime": _on_path("changed the times of", dir_fd=3),
    "os.setxattr": _on_path("changed the attributes of"),
    "os.removexattr": _on_path("changed the attributes of"),
    "socket.connect": _on_address("connected to"),
    "socket.bind": _on_address("bound a socket to"),
    "socket.sendto": _on_address("sent to"),
    "socket.sendmsg": _on_address("sent to"),
    "urllib.Request": _urllib,
    "subprocess.Popen": _popen,
    "os.posix_spawn": _spawn,
    "os.spawn": lambda args: f"ran {_words(args[2]) or args[1]}",
    "os.exec": _spawn,
    "os.system": lambda args: f"ran {_words(args[0])}",
    "os.fork": lambda _: "forked",
    "os.forkpty": lambda _: "forked",
    "os.kill": _kill,
    "os.killpg": lambda args: f"sent signal {args[1]} to process group {args[0]}",
    "sqlite3.connect": _sqlite,
    "ctypes.dlsym": _dlsym,
    "ctypes.dlsym/handle": _dlsym,
    "ctypes.dlopen": _dlopen,
    "syslog.syslog": lambda _: "wrote to the system's log",
    "webbrowser.open": lambda args: f"opened {args[0]} in a browser",
}
"""By the name of the event."""
