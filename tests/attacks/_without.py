"""A host on a system that lacks a layer: its call fails, as where that is switched off.

`python -m tests.attacks._without "CALL go-on" FOLDER`, or `"CALL require"`: without
`landlock_create_ruleset` no Landlock, without `unshare` no network of a kernel's own.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from pathlib import Path

from cave.errors import KernelStartError
from cave.inkernel.confine import privileges, seccomp
from cave.inkernel.confine.system import NUMBERS
from cave.kernel import Confinement
from tests.kernel._host import Host, text

_READ = (
    "try: open('/etc/hosts').close()\nexcept OSError as e: print('stopped', e)\nelse: print('open')"
)
_PROCESS = """
for what in ('environ', 'mem'):
    try: open(f'/proc/{pid}/{{what}}', 'rb' if what == 'environ' else 'r+b', 0).read(1)
    except PermissionError as e: print(what, 'stopped', end=' ')
    except OSError: print(what, 'open', end=' ')
    else: print(what, 'open', end=' ')
"""
"""An address of nothing is an error only for who may look."""
_SOCKET = "import socket\ntry: socket.socket()\nexcept OSError as e: print('stopped', e)"
_WAYS = {
    "connect": "socket.create_connection({at!r}, 5).close()",
    "send": "socket.socket().sendto(b'x', socket.MSG_FASTOPEN, {at!r})",
    "send a message": "socket.socket().sendmsg([b'x'], [], socket.MSG_FASTOPEN, {at!r})",
}
"""Ways to open a connection of TCP."""
_PROXY = "import os; print(os.environ['HTTP_PROXY'].rpartition(':')[2])"
_CONNECT = """import socket
try: {how}
except OSError as e: print('stopped', e)
else: print('open')"""


def main(call: str, folder: Path, *, require: bool) -> None:
    """Start a confined kernel without a layer and print what is said and done."""
    privileges.no_new()
    code = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, NUMBERS[call]),
        (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    seccomp.install(b"".join(struct.pack("HBBI", *one) for one in code))
    hosts = ("a.test",) if call == "unshare" else ()
    host = Host(folder, confinement=Confinement(network=hosts, require=require))
    try:
        kernel = host.start()
        print(*kernel.facts.degraded, sep="\n")
        if hosts:
            _network(host)
        else:
            _look(host, kernel.record.keeper)
    except KernelStartError as error:
        print(f"KernelStartError: {error}")
    finally:
        host.close()


def _look(host: Host, keeper: int) -> None:
    """What else a cell can do."""
    print("read a file:", text(host.run(_READ)))
    print("make a socket:", text(host.run(_SOCKET)))
    for whose, pid in (("host", os.getpid()), ("keeper", keeper)):
        print(f"process of the {whose}:", text(host.run(_PROCESS.format(pid=pid))))


def _network(host: Host) -> None:
    """Other hosts, at the port of the proxy and at another."""
    proxy = int(text(host.run(_PROXY)))
    for name, port in (("the proxy's port", proxy), ("another port", 0)):
        with socket.create_server(("127.0.0.2", port)) as other:
            for way, how in _WAYS.items():
                source = _CONNECT.format(how=how.format(at=other.getsockname()))
                print(f"{way} to {name}: {text(host.run(source))}")


if __name__ == "__main__":
    called, mode = sys.argv[1].split()
    main(called, Path(sys.argv[2]), require=mode == "require")
