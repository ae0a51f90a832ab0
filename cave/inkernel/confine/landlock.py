"""Landlock: which files a process and its children can open, and whom they can reach.

https://docs.kernel.org/userspace-api/landlock.html. What an older system cannot restrict is
said. The right to a file is checked when it is opened: descriptors that are open stay so.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Mapping

from .system import Missing, require_linux, syscall

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL = (1 << 16) - 1
_TCP = 0b11
"""Binding and connecting."""
_SCOPES = 0b11
"""Abstract unix sockets and signals."""
_BENEATH, _TO_PORT = 1, 2
_CONNECT = 0b10
_ABI = 1
PORTS = 4
"""The first version that knows of TCP."""


def abi() -> int:
    """The version of Landlock here. Raises `Missing`."""
    require_linux()
    try:
        return syscall("landlock_create_ruleset", None, 0, _ABI)
    except OSError as exc:
        raise Missing(f"this system has no Landlock, or it is switched off ({exc})") from exc


def build(plan: Mapping[str, list[str]], *, sealed: bool) -> tuple[int, int]:
    """A ruleset as a descriptor, and the version it is made for. Raises `Missing`, `OSError`.
    `sealed`: no connection by TCP, but to what `connects` adds.

    To be built while all paths can still be opened; no path is missed that is not there.
    """
    version = abi()
    rights = _RIGHTS.get(version, _ALL)
    net = _TCP if version >= PORTS and sealed else 0
    scoped = _SCOPES if version >= 6 else 0
    attributes = struct.pack("QQQ", rights, net, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = syscall("landlock_create_ruleset", attributes[:size], size, 0)
    everything = _ALL & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
    _allow(ruleset, plan["read"], (EXECUTE | READ_FILE | READ_DIR) & rights)
    _allow(ruleset, plan["write"], everything & rights)
    _allow(ruleset, plan["devices"], (everything | _IOCTL_DEV) & rights)
    return ruleset, version


def connects(ruleset: int, port: int) -> None:
    """Let connections to a port through; of whatever host, Landlock knows none. Raises `OSError`.
    The version has to be at least `PORTS`."""
    rule = ctypes.create_string_buffer(struct.pack("<QQ", _CONNECT, port), 16)
    syscall("landlock_add_rule", ruleset, _TO_PORT, rule, 0)


def restrict(ruleset: int) -> None:
    """From now on only what the ruleset allows; it is closed."""
    syscall("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def lacking(version: int) -> dict[str, str]:
    """What a version of Landlock leaves open, with the Linux that does not."""
    needed = {"truncation": (3, "6.2"), "signals": (6, "6.12")}
    return {
        what: f"Landlock {version} does not cover it, that of Linux {linux} does"
        for what, (least, linux) in needed.items()
        if version < least
    }


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            folder = stat.S_ISDIR(os.fstat(fd).st_mode)
            granted = rights if folder else rights & _OF_FILES
            rule = ctypes.create_string_buffer(struct.pack("<Qi", granted, fd), 12)
            syscall("landlock_add_rule", ruleset, _BENEATH, rule, 0)
        finally:
            os.close(fd)
