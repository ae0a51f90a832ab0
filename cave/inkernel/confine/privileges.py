"""Who a kernel is: no new privileges, no capabilities, and another user where root starts it.

Another user keeps one capability where Landlock bounds it: to read and search what the
layers below allow although the files are root's own (an interpreter below /root, the
session's folder). It can write to nothing by it.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .system import prctl, require_linux, syscall

_DROP_BOUND, _SECURE_BITS, _NO_NEW_PRIVS, _SET_DUMPABLE = 24, 28, 38, 4
_NO_ROOT, _NO_FIXUP = 0b11, 0b1100
"""Being root gives nothing, and changing users takes nothing (else `access` would not count
what a capability gives); both for good."""
_AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR = 47, 2, 4
_VERSION = 0x20080522
_SETPCAP = 8
READ_SEARCH = 2
"""CAP_DAC_READ_SEARCH."""
_LAST = 64


def become(uid: int) -> None:
    """Be another user who can still read as root could. Raises `OSError`; call as root."""
    require_linux()
    prctl(_SECURE_BITS, _NO_ROOT | _NO_FIXUP)
    _bound({READ_SEARCH})
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _hold({READ_SEARCH})
    prctl(_AMBIENT, _AMBIENT_RAISE, READ_SEARCH)
    prctl(_SET_DUMPABLE, 1)


def drop() -> None:
    """Give up every capability, for good. Raises `OSError`."""
    require_linux()
    if _SETPCAP in holding():
        prctl(_SECURE_BITS, _NO_ROOT)
        _bound(set())
    prctl(_AMBIENT, _AMBIENT_CLEAR)
    _hold(set())


def holding() -> set[int]:
    """The capabilities that count now."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        mask = next((int(line.split()[1], 16) for line in file if line.startswith("CapEff")), 0)
    return {number for number in range(_LAST) if mask >> number & 1}


def no_new() -> None:
    """Programs that would give privileges (sudo) give none. Raises `OSError`."""
    require_linux()
    prctl(_NO_NEW_PRIVS, 1)


def hide() -> None:
    """Who is not root cannot look into this process or steer it, of the same user or not: no
    environment, memory, descriptors, tracing. Raises `OSError`, `Missing`."""
    require_linux()
    prctl(_SET_DUMPABLE, 0)


def _bound(kept: set[int]) -> None:
    for number in range(_LAST):
        if number not in kept:
            try:
                prctl(_DROP_BOUND, number)
            except OSError:  # there are no more, or it may not be dropped and then counts little
                continue


def _hold(kept: set[int]) -> None:
    low = sum(1 << number for number in kept)
    head = ctypes.create_string_buffer(struct.pack("II", _VERSION, 0), 8)
    sets = struct.pack("6I", low, low, low, 0, 0, 0)
    syscall("capset", head, ctypes.create_string_buffer(sets, len(sets)))
