"""A host on a system without Landlock: the calls fail, as where it is switched off.

`python -m tests.attacks._without require|go-on FOLDER`.
"""

from __future__ import annotations

import errno
import os
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


def main(folder: Path, *, require: bool) -> None:
    """Start a confined kernel without Landlock and print what is said and done."""
    privileges.no_new()
    code = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, NUMBERS["landlock_create_ruleset"]),
        (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    seccomp.install(b"".join(struct.pack("HBBI", *one) for one in code))
    host = Host(folder, confinement=Confinement(require=require))
    try:
        kernel = host.start()
        print(*kernel.facts.degraded, sep="\n")
        print("read a file:", text(host.run(_READ)))
        print("make a socket:", text(host.run(_SOCKET)))
        for whose, pid in (("host", os.getpid()), ("keeper", kernel.record.keeper)):
            print(f"process of the {whose}:", text(host.run(_PROCESS.format(pid=pid))))
    except KernelStartError as error:
        print(f"KernelStartError: {error}")
    finally:
        host.close()


if __name__ == "__main__":
    main(Path(sys.argv[2]), require=sys.argv[1] == "require")
