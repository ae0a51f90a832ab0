"""A filter of system calls: what no data work needs, and the seal on sockets.

A classic BPF program (https://docs.kernel.org/userspace-api/seccomp_filter.html). The seal
leaves a process the sockets that it has, and pairs of connected streams, which go nowhere
else: asyncio needs them. userfaultfd, memfds, forks and threads stay.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from .system import MACHINE, NUMBERS, Missing, require_linux, syscall

DENIED = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
    "perf_event_open", "bpf", "add_key", "request_key", "keyctl", "mount", "umount2",
    "pivot_root", "chroot", "setns", "unshare", "open_tree", "open_tree_attr", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "kexec_load",
    "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module",
    "query_module", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark", "swapon",
    "swapoff", "reboot", "acct", "syslog", "iopl", "ioperm", "modify_ldt", "clock_settime",
    "clock_adjtime", "adjtimex", "settimeofday", "sethostname", "setdomainname", "quotactl",
    "quotactl_fd", "lookup_dcookie", "vhangup", "uselib", "ustat", "sysfs", "_sysctl",
    "nfsservctl", "personality", "migrate_pages", "move_pages",
)  # fmt: skip
"""Calls that fail with EPERM."""
SEALED = ("socket", "connect", "bind")
"""Calls that fail with EACCES under the seal."""
PROXIED = ("bind", "listen")
"""Calls that fail with EACCES where a proxy is all that may be connected to."""

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NAMESPACES = 0x7E020080
_X32 = 0x40000000
_TIOCSTI, _TIOCSETD, _TIOCLINUX = 0x5412, 0x5423, 0x541C
_AF_UNIX, _AF_INET, _AF_NETLINK, _AF_INET6, _STREAM, _KIND = 1, 2, 16, 10, 1, 0xF
_TCP, _FAST_OPEN = 6, 0x20000000
_FILTER = 1
"""SECCOMP_SET_MODE_FILTER."""

Instruction = tuple[int, int, int, int]


def program(*, sockets: str) -> bytes:
    """The filter; `sockets` as in a plan. Raises `Missing` on a machine it is not made for."""
    require_linux()
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[MACHINE]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if MACHINE == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for name in DENIED:
        code += _fails(name, errno.EPERM)
    code += _fails("clone3", errno.ENOSYS)  # its flags cannot be seen; libraries then use clone
    code += _when("clone", [*_argument(0), (_ANY_BIT, 0, 1, _NAMESPACES), _failing(errno.EPERM)])
    code += _when("ioctl", _unless_any(1, (_TIOCSTI, _TIOCSETD, _TIOCLINUX)))
    if sockets != "any":
        code += _pairs() + _SOCKETS[sockets]()
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *one) for one in code)


def install(code: bytes) -> None:
    """Filter this thread and all that it starts. Raises `OSError`."""
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    syscall("seccomp", _FILTER, 0, ctypes.create_string_buffer(head, len(head)))


def _argument(index: int) -> list[Instruction]:
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * index)]


def _failing(number: int) -> Instruction:
    return (_RETURN, 0, 0, _FAIL | number)


def _fails(name: str, number: int) -> list[Instruction]:
    """The call fails; nothing where the machine has no such call."""
    if name not in NUMBERS:
        return []
    return [(_EQUAL, 0, 1, NUMBERS[name]), _failing(number)]


def _when(name: str, body: list[Instruction]) -> list[Instruction]:
    """Look at the arguments of a call, which is allowed unless `body` returns."""
    return [(_EQUAL, 0, len(body) + 1, NUMBERS[name]), *body, (_RETURN, 0, 0, _ALLOW)]


def _unless_any(index: int, values: tuple[int, ...]) -> list[Instruction]:
    body = _argument(index)
    for value in values:
        body += [(_EQUAL, 0, 1, value), _failing(errno.EPERM)]
    return body


def _pairs() -> list[Instruction]:
    """Pairs are of connected streams: one of datagrams could send to any path."""
    good = [
        *_argument(0), (_EQUAL, 1, 0, _AF_UNIX), _failing(errno.EACCES),
        *_argument(1), (_AND, 0, 0, _KIND), (_EQUAL, 1, 0, _STREAM), _failing(errno.EACCES),
    ]  # fmt: skip
    return _when("socketpair", good)


def _seal() -> list[Instruction]:
    code = [one for name in SEALED for one in _fails(name, errno.EACCES)]
    return code + _when("sendto", _addressed())


def _addressed() -> list[Instruction]:
    """Nothing is sent to an address."""
    low, high = _argument(4), [(_LOAD, 0, 0, _ARGUMENTS + 8 * 4 + 4)]
    return [
        *low, (_EQUAL, 1, 0, 0), _failing(errno.EACCES),
        *high, (_EQUAL, 1, 0, 0), _failing(errno.EACCES),
    ]  # fmt: skip


def _proxied() -> list[Instruction]:
    """TCP and nothing else, to where `connect` is let: TCP that opens by sending would pass
    Landlock by, and so would other protocols of streams."""
    code = [one for name in PROXIED for one in _fails(name, errno.EACCES)]
    kind = [
        *_argument(0), (_EQUAL, 2, 0, _AF_INET), (_EQUAL, 1, 0, _AF_INET6), _failing(errno.EACCES),
        *_argument(1), (_AND, 0, 0, _KIND), (_EQUAL, 1, 0, _STREAM), _failing(errno.EACCES),
        *_argument(2), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, _TCP), _failing(errno.EACCES),
    ]  # fmt: skip
    code += _when("socket", kind) + _when("sendto", _addressed())
    for name, flags in (("sendmsg", 2), ("sendmmsg", 3)):
        opening = [*_argument(flags), (_ANY_BIT, 0, 1, _FAST_OPEN), _failing(errno.EACCES)]
        code += _when(name, opening)
    return code


def _families() -> list[Instruction]:
    """Without the seal: the internet, but no socket of a local service."""
    families = (_AF_INET, _AF_INET6, _AF_NETLINK)
    body = _argument(0)
    for left, family in zip(reversed(range(len(families))), families, strict=True):
        body.append((_EQUAL, left + 1, 0, family))
    body.append(_failing(errno.EACCES))
    return _when("socket", body)


_SOCKETS = {"sealed": _seal, "proxied": _proxied, "internet": _families}


def supported() -> None:
    """Raises `Missing` where there are no filters."""
    require_linux()
    try:
        syscall("seccomp", 2, 0, ctypes.create_string_buffer(struct.pack("I", _FAIL), 4))
    except OSError as exc:
        raise Missing(f"this system has no seccomp filters ({exc})") from exc
