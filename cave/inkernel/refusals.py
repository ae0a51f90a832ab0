"""Hints for what confinement refuses: the setting of the session that would allow it.

The host says what this kernel is held to when it starts it. A hint is given where the layers
refused and the user's own rights would not have: a file of root's is not allowed by a policy.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import kinds
from .faults import Place

_LINKS = 20
"""Exceptions that are looked at, from the one that was told to what it came from."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the host said of this kernel's confinement."""

    profile: str = "open"
    network: bool = True
    hosts: Sequence[str] = ()
    """Those that cells reach, through a proxy alone; empty where there is none."""
    own: Sequence[str] = ()
    """Folders that cells may write to."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Bytes of memory (`data`) and of the longest file (`file`), where they are limited."""
    user: int = -1
    """That of its host; the kernel's own may be another."""
    cwd: str = ""
    """The folder in which the host was started."""
    project: str = ""
    """The project that the user works in."""
    trusted: bool = False
    """Whether cells can read what is in it."""


_held = Held()


def remember(said: dict[str, Any] | None) -> None:
    """Take what the host passes; nothing is refused where it says nothing."""
    global _held  # noqa: PLW0603  # one process is one kernel
    _held = Held() if said is None else Held(**said)


def of(fault: BaseException, place: Place) -> str:
    """What was refused and the setting that allows it; empty where nothing was."""
    if kinds.derives(type(fault), FileNotFoundError):
        name = OSError.__dict__["filename"].__get__(fault)
        return _elsewhere(name) if type(name) is str else ""
    if _held.profile == "open":
        return ""
    if any(code.co_filename.endswith(_BY_SOCKETS) for code in _codes(fault)):
        return f"the profile {_held.profile!r} has no Manager and no forkserver; use a Pool"
    links = [*_chain(fault)]
    told = (rule(link, place) for rule in (_of_one, _of_a_text) for link in links)
    return next(filter(None, told), "")


def _of_one(fault: BaseException, place: Place) -> str:
    kind, text = type(fault), _text(fault)
    if kinds.derives(kind, MemoryError):
        return _limit("memory", "data", "a process of cells has", "8 GB")
    if kinds.derives(kind, LookupError):
        return _variables(fault, text)
    number = OSError.__dict__["errno"].__get__(fault) if kinds.derives(kind, OSError) else None
    if number == errno.EFBIG:
        return _limit("file_size", "file", "a file of cells may have", "2 GB")
    if number in (errno.EACCES, errno.EPERM):
        path = OSError.__dict__["filename"].__get__(fault)
        if path := os.fsdecode(path) if type(path) in (str, bytes) else _path_in(text):
            return _file(path, place)
        return _network() if number == errno.EACCES else ""
    return ""


def _of_a_text(fault: BaseException, place: Place) -> str:
    """Libraries that are not written in Python have exceptions of their own."""
    text = _text(fault)
    if told := _REFUSED.search(text):
        return _host(told[1], told[2])
    if _UNREACHED.search(text):
        return _network()
    if _DENIED.search(text):
        path = _path_in(text)
        return _file(path, place) if path else _network() if _CONNECTING.search(text) else ""
    if "unable to open database file" in text:
        return next((said for path in _named(place) if (said := _file(path, place))), "")
    return ""


def _chain(fault: BaseException) -> Iterator[BaseException]:
    """An exception, those in its arguments, and those that it came from."""
    waiting, seen = [fault], set[int]()
    while waiting and len(seen) < _LINKS:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        args: Any = BaseException.__dict__["args"].__get__(link)
        inner = [*args[:4], (kinds.attributes(link) or {}).get("reason")]
        inner += [BaseException.__dict__[name].__get__(link) for name in _BEFORE]
        waiting += [one for one in inner if kinds.derives(type(one), BaseException)]


_BEFORE = ("__cause__", "__context__")
_GETITEM = type(os.environ).__getitem__.__code__
_RESOURCE = re.compile(r"the resource .* needs ([\w, ]+) in the environment$")
_BY_SOCKETS = ("multiprocessing/managers.py", "multiprocessing/forkserver.py")


def _text(fault: BaseException) -> str:
    """Its own texts; nothing of the user runs for them."""
    args: Any = BaseException.__dict__["args"].__get__(fault)
    told = [
        *args[:4],
        (kinds.attributes(fault) or {}).get("msg"),
    ]  # where urllib's HTTPError has it
    return " ".join(one[:2000] for one in told if type(one) is str)


def _codes(fault: BaseException) -> Iterator[types.CodeType]:
    """The functions that it went through, the innermost last."""
    trace: Any = BaseException.__dict__["__traceback__"].__get__(fault)
    for _ in range(5000):
        if trace is None:
            return
        yield trace.tb_frame.f_code
        trace = trace.tb_next


# -- what is said ------------------------------------------------------------------------------

_DENIED = re.compile(r"[Pp]ermission denied|Operation not permitted|os error 13|errno = 13|EACCES")
_CONNECTING = re.compile(r"[Cc]onnect|socket|[Hh]ost|server|url|http", re.IGNORECASE)
_UNREACHED = re.compile(
    r"[Nn]ame resolution|Name or service not known|translate host name|[Cc]ould not resolve|"
    r"lookup address|dns error|tunnel error|nodename nor servname|getaddrinfo|NameResolutionError"
)
_REFUSED = re.compile(
    r"cells may not reach the host \\?'([^'\\]+)\\?'(?: at the local address \\?'([^'\\]+))?"
)
"""The line of the proxy that says so."""
_PATH = re.compile(r"(/[^/'\"\n:;,()][^'\"\n:;,()]*)")


def _path_in(text: str) -> str:
    """The first absolute path in a message."""
    for found in _PATH.finditer(text):
        path = found[1].partition(". Detail")[0].rstrip(" .")
        if os.path.lexists(path) or os.path.dirname(path) != "/":
            return path
    return ""


def _named(place: Place) -> Iterator[str]:
    """Paths that the failing expression spells out, or that its variables hold."""
    for node in ast.walk(place.node) if place.node is not None else ():
        value = node.value if isinstance(node, ast.Constant) else place.find(node)
        path = value.removeprefix("sqlite:///") if type(value) is str else ""
        if path.startswith("/"):
            yield path


def _file(path: str, place: Place) -> str:
    path = os.path.abspath(path)
    if any(_below(path, folder) for folder in _held.own):
        return ""
    return _refusal(path, writes=_writes(path, place))


def _refusal(path: str, *, writes: bool) -> str:
    if not _of_the_user(path, writes=writes):
        return ""
    verb, setting = ("change", "write") if writes else ("read", "read")
    ways = f"cave.Policy({setting}=[{_widest(path)!r}])"
    project = _held.project
    if project and not (_held.trusted or writes) and _below(path, project):
        ways = f"`cave skills trust {project}` in a terminal (for all sessions), or {ways}"
    return _allowed(f"does not let cells {verb} {path!r}", ways)


def _elsewhere(name: str) -> str:
    """Of a file that a cell did not find: that it is there where the user works."""
    path = os.path.join(_held.cwd, name)
    if not _held.cwd or os.path.isabs(name) or not os.path.exists(path):
        return ""
    told = f"cells work in a folder of their own; there is {path!r}"
    if _held.profile == "open" or _readable(path) or not (why := _refusal(path, writes=False)):
        return told
    return f"{told}, and {why}"


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _widest(path: str) -> str:
    """The folder that would be opened: that of the file, unless it is a broad or a hidden one."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    broad = folder.count("/") < 2 or folder == os.path.expanduser("~") or "/." in folder
    return path if broad else folder


_WRITING = re.compile(
    r"^(?:to_|write|save|dump|mkdir|makedirs|unlink|remove|rename|replace$|touch|symlink|link|"
    r"chmod|chown|rmdir|rmtree|utime|truncate|mkfifo|mkstemp)"
)
_MODE = re.compile(r"^[rbt]*[wax+][bt+]*$")


def _writes(path: str, place: Place) -> bool:
    """Whether it was to be changed: it can be read, is not there, or the expression says so."""
    if not os.path.lexists(path):
        return True
    for node in ast.walk(place.node) if place.node is not None else ():
        if isinstance(node, ast.Call) and _writing(node):
            return True
    return _readable(path)


def _writing(call: ast.Call) -> bool:
    """Whether a call changes files by its name, or opens one for it."""
    name = str(getattr(call.func, "attr", getattr(call.func, "id", "")))
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [one.value for one in given if isinstance(one, ast.Constant)]
    modes = [text for text in texts if type(text) is str and _MODE.match(text)]
    return bool(_WRITING.match(name) or (name == "open" and modes))


def _readable(path: str) -> bool:
    try:
        if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return False
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _of_the_user(path: str, *, writes: bool) -> bool:
    """Whether it could be done without confinement; `access` asks the file's own rights."""
    if not writes:
        return os.access(path, os.R_OK)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.getuid() != _held.user or os.access(path, os.W_OK)


def _network() -> str:
    if _held.hosts:
        return (
            f"the profile {_held.profile!r} lets cells reach {', '.join(_held.hosts)} alone, by "
            f"HTTP through the proxy that HTTPS_PROXY names; for more use a skill with "
            f"runs='host', or cave.Policy(network=['*']), then s.restart()"
        )
    if _held.network:
        return ""
    ways = (
        "cave.Policy(network=['api.example.com']) for one host, cave.Policy(network=['*']) for all"
    )
    return _allowed("does not let cells reach the network", ways)


def _host(place: str, address: str | None) -> str:
    """Of a host that the proxy did not let through."""
    if not _held.hosts:
        return ""
    name, _, port = place.rpartition(":")
    wanted = address or (name if port in {"80", "443"} else place)
    return _allowed(
        f"does not let cells reach {place!r}{f' at {address!r}' if address else ''}",
        f"cave.Policy(network={[*_held.hosts, wanted]})",
    )


def _variables(fault: BaseException, text: str) -> str:
    """Variables of the environment that a cell, a library or a resource looked up."""
    found = _RESOURCE.match(text)
    if found is None and next(reversed([*_codes(fault)]), None) is not _GETITEM:
        return ""
    names = found[1].split(", ") if found else [text]
    return (
        f"under the profile {_held.profile!r} cells see {', '.join(map(repr, names))} of the "
        f"environment with cave.Policy(env={names}) alone; then s.restart()"
    )


def _limit(setting: str, kind: str, what: str, example: str) -> str:
    limit = _held.limits.get(kind)
    if limit is None:
        return ""
    more = f"allow more with cave.Policy({setting}={example!r}), then s.restart()"
    told = f"{limit / 1e9:.3g} GB" if limit >= 1e9 else f"{limit / 1e6:.3g} MB"
    return f"{what} {told}; {more}"


def _allowed(what: str, ways: str) -> str:
    return f"the profile {_held.profile!r} {what}; allow it with {ways}, then s.restart()"
