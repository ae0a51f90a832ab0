"""Calls of the system that Python has no functions for, and their numbers."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SUPPORTED = {"x86_64", "aarch64"}
MACHINE = platform.machine()

_PLACES = {
    "x86_64": {
        "socket": 41, "connect": 42, "sendto": 44, "sendmsg": 46, "bind": 49, "listen": 50,
        "socketpair": 53, "clone": 56, "sendmmsg": 307,
        "ioctl": 16, "ptrace": 101, "syslog": 103, "capset": 126, "personality": 135,
        "ustat": 136, "sysfs": 139, "modify_ldt": 154, "pivot_root": 155, "_sysctl": 156,
        "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
        "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
        "setdomainname": 171, "iopl": 172, "ioperm": 173, "create_module": 174,
        "init_module": 175, "delete_module": 176, "query_module": 178, "quotactl": 179,
        "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
        "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300,
        "fanotify_mark": 301, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
        "kcmp": 312, "finit_module": 313, "seccomp": 317, "kexec_file_load": 320, "bpf": 321,
        "uselib": 134, "vhangup": 153,
    },
    "aarch64": {
        "socket": 198, "connect": 203, "sendto": 206, "bind": 200, "listen": 201,
        "socketpair": 199, "sendmsg": 211, "sendmmsg": 269, "clone": 220, "ioctl": 29,
        "ptrace": 117, "syslog": 116, "capset": 91,
        "personality": 92, "pivot_root": 41, "adjtimex": 171, "chroot": 51, "acct": 89,
        "settimeofday": 170, "mount": 40, "umount2": 39, "swapon": 224, "swapoff": 225,
        "reboot": 142, "sethostname": 161, "setdomainname": 162, "init_module": 105,
        "delete_module": 106, "quotactl": 60, "nfsservctl": 42, "lookup_dcookie": 18,
        "clock_settime": 112, "kexec_load": 104, "add_key": 217, "request_key": 218,
        "keyctl": 219, "migrate_pages": 238, "unshare": 97, "move_pages": 239,
        "perf_event_open": 241, "fanotify_init": 262, "fanotify_mark": 263,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266,
        "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "seccomp": 277, "kexec_file_load": 294, "bpf": 280, "vhangup": 58,
    },
}  # fmt: skip
_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442,
    "quotactl_fd": 443, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
    "landlock_restrict_self": 446, "open_tree_attr": 467,
}  # fmt: skip
NUMBERS: dict[str, int] = {**_PLACES.get(MACHINE, {}), **_COMMON}
"""Numbers of the calls that are named here, on this machine."""

_libc = ctypes.CDLL(None, use_errno=True)


class Missing(Exception):
    """This system lacks a layer; the text says what is lacking."""


def require_linux() -> None:
    """Raises `Missing` where calls cannot be made by number."""
    if sys.platform != "linux":
        raise Missing(f"{platform.system()} has no such thing")
    if MACHINE not in SUPPORTED:
        raise Missing(f"nothing is known of {MACHINE} processors")


def syscall(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call the system by name. Raises `OSError`."""
    given = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(_libc.syscall(ctypes.c_long(NUMBERS[name]), *given))


def prctl(option: int, *args: int) -> int:
    """`prctl`. Raises `OSError`."""
    given = [ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(ctypes.c_int(option), *given))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
