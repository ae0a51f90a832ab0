"""Layers tried on this system: each is put on in a child, which then attacks itself.

An attack counts only where it succeeds without the layer; where it does not, nothing can be
told by it here. The host runs this once for each start of the machine.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import environment
from .layers import apply
from .system import Missing, prctl, syscall

Attack = Callable[[], object]
Outcomes = dict[str, str]

_NEW_USER, _GET_NO_NEW_PRIVS = 0x10000000, 39


class Stopped(Exception):
    """What was tried did not work out, though no call failed."""


def run(plan: Mapping[str, Any], folder: str) -> dict[str, Outcomes]:
    """What came of each attack of each layer in `plan`: `stopped`, `open`, or `untried`.

    `folder` is the trial's own, and not named by the plan.
    """
    secret = os.path.join(folder, "secret")
    with open(secret, "w", encoding="ascii") as file:
        file.write("x")
    listening = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(b"\0cave-" + os.urandom(8).hex().encode())
    abstract.listen()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    attacks: dict[str, dict[str, Attack]] = {
        "environment": {"read a secret": _environment},
        "limits": _limits(plan["limits"], folder),
        "network": {
            "connect by TCP": lambda: _connected(socket.AF_INET, listening.getsockname()),
            "send a datagram": lambda: _sent(datagrams.getsockname()),
            "connect to a local name": lambda: _connected(socket.AF_UNIX, abstract.getsockname()),
        },
        "user": {"be root": lambda: _is(found=os.getuid() == 0)},
        "capabilities": {"give a file away": lambda: os.chown(secret, 1, 1)},
        "no-new-privileges": {"gain privileges": lambda: _is(found=not prctl(_GET_NO_NEW_PRIVS))},
        "landlock": {
            "read a file": lambda: os.close(os.open(secret, os.O_RDONLY)),
            "write a file": lambda: os.close(os.open(secret, os.O_WRONLY)),
            "make a file": lambda: _made(os.path.join(folder, "made")),
            "connect by TCP": lambda: _connected(socket.AF_INET, listening.getsockname()),
            "connect to a local name": lambda: _connected(socket.AF_UNIX, abstract.getsockname()),
            "signal its host": lambda: os.kill(os.getppid(), 0),
        },
        "seccomp": {
            "make a socket": lambda: socket.socket(socket.AF_UNIX).close(),
            "make a pair of datagrams": _pair,
            "make a user namespace": lambda: _in_child(lambda: syscall("unshare", _NEW_USER)),
            "read a key ring": lambda: syscall("keyctl", 0, -3, 1),
        },
    }
    return {name: _outcomes(name, attacks[name], plan) for name in attacks}


def _outcomes(layer: str, attacks: Mapping[str, Attack], plan: Mapping[str, Any]) -> Outcomes:
    wanted = {"user": ["landlock", "user"]}.get(layer, [layer])
    alone = {**plan, "layers": [*wanted, "no-new-privileges"], "sockets": "sealed", "hosts": []}
    given = None if layer == "environment" else alone
    found: Outcomes = json.loads(_told(lambda: _attacked(attacks, given)))
    return found


def _attacked(attacks: Mapping[str, Attack], plan: Mapping[str, Any] | None) -> str:
    before = {name: _attempt(attack) for name, attack in attacks.items()}
    if plan is not None:
        missing = apply(plan)["missing"]
        for layer in plan["layers"]:
            if layer in missing:
                return json.dumps({"to be put on": f"open: {missing[layer]}"})
    after = {name: _attempt(attack) for name, attack in attacks.items()}
    return json.dumps({
        name: after[name] if plan is None or before[name] == "open" else "untried"
        for name in attacks
    })  # fmt: skip


def _attempt(attack: Attack) -> str:
    try:
        attack()
    except (OSError, ValueError, MemoryError, Stopped, Missing) as exc:
        number = exc.errno if isinstance(exc, OSError) else None
        return f"stopped ({errno.errorcode.get(number or 0, type(exc).__name__)})"
    return "open"


def _told(work: Callable[[], str]) -> bytes:
    """What a child of ours says; it is confined and cannot go on with us."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said or b'{"to be put on": "open: the trial died"}'


def _in_child(work: Callable[[], object]) -> None:
    def number() -> str:
        try:
            work()
        except OSError as exc:
            return str(exc.errno)
        return "0"

    if failed := int(_told(number)):
        raise OSError(failed, os.strerror(failed))


def _is(*, found: bool) -> None:
    if not found:
        raise Stopped


def _environment() -> None:
    kept = environment.scrubbed({"CAVE_TRIAL_TOKEN": "x", "OMP_TOKEN": "x"}, own="/")
    _is(found="x" in kept.values())


def _limits(limits: Mapping[str, int], folder: str) -> dict[str, Attack]:
    found: dict[str, Attack] = {}
    if (data := limits.get("data")) is not None:
        found["take memory"] = lambda: mmap.mmap(
            -1, data, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        ).close()
    if (size := limits.get("file")) is not None:
        found["write a long file"] = lambda: _long(os.path.join(folder, "long"), size)
    found["raise a limit"] = lambda: _raised(resource.RLIMIT_DATA)
    return found


def _raised(what: int) -> None:
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (soft, hard if hard == resource.RLIM_INFINITY else hard + 4096))


def _long(path: str, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, b"x", size)
    finally:
        os.close(fd)
        os.unlink(path)


def _made(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(path)


def _connected(family: socket.AddressFamily, address: Any) -> None:
    with socket.socket(family) as made:
        made.connect(address)


def _sent(address: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(address)
        for _ in range(2):  # that nobody is there is told to the second
            made.send(b"x")


def _pair() -> None:
    for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        one.close()


def main() -> None:
    """The plan and the folder come on stdin as JSON; the outcomes go to stdout."""
    given = json.load(sys.stdin)
    print(json.dumps(run(given["plan"], given["folder"])))
