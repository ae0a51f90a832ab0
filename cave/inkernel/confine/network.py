"""A network of its own for a process: nothing is in it but the way to a proxy.

The process goes into a new network namespace (https://man7.org/linux/man-pages/man7/
network_namespaces.7.html), which has a loopback interface alone, and makes a listening socket
there. Whoever is handed that socket can accept connections from where it is: sockets stay in
the namespace that made them. Without namespaces the socket listens beside all others of the
machine, and what else can be reached is for other layers to say.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from .system import Missing, prctl, require_linux, syscall

PORT = 3128
"""Of the proxy in a namespace: the same in each, since libraries keep it in their objects."""
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SET_DUMPABLE = 4
_SET_FLAGS, _UP = 0x8914, 0x1
"""SIOCSIFFLAGS, IFF_UP."""
_ADDRESS = "127.0.0.1"


def isolate() -> None:
    """Go into a network of its own, for good. Raises `Missing`, and is where it was then.

    To be called after limits are set: those of a new user namespace count from here on. Whoever
    is not root needs one, and has no capability in it once the layers are on.
    """
    require_linux()
    if number := _tried():
        raise Missing(f"this system gives no network namespace ({os.strerror(number)})")
    _go()


def _tried() -> int:
    """What hinders a child that does so; 0: nothing. Going half of the way is not undone."""
    pid = os.fork()
    if not pid:
        number = errno.EPERM
        try:
            _go()
            number = 0
        except OSError as exc:
            number = exc.errno or number
        finally:
            os._exit(number)
    return abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _go() -> None:
    user, group = os.getuid(), os.getgid()
    if user == 0:
        syscall("unshare", _NEW_NET)
    else:
        prctl(_SET_DUMPABLE, 1)  # else its own entry in /proc belongs to root
        syscall("unshare", _NEW_USER | _NEW_NET)
        _write("setgroups", "deny")
        _write("uid_map", f"{user} {user} 1")
        _write("gid_map", f"{group} {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def listen(port: int = 0) -> socket.socket:
    """The socket that a proxy takes connections from. Raises `OSError`."""
    return socket.create_server((_ADDRESS, port), backlog=128)


def environ(listener: socket.socket) -> dict[str, str]:
    """The variables of the environment by which programs find the proxy."""
    proxy = f"http://{_ADDRESS}:{listener.getsockname()[1]}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    trusting = '{"client_kwargs": {"trust_env": true}}'
    return {
        **dict.fromkeys((*names, *map(str.upper, names)), proxy),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
        "FSSPEC_HTTP": trusting,
        "FSSPEC_HTTPS": trusting,
    }


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)
