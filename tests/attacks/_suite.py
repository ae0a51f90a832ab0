"""Runs every attack cell in one kernel and prints what came of each, as JSON.

`python -m tests.attacks._suite PROFILE FOLDER`, by whatever user, with a canary in the
environment: `_run.py` decides.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import site
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cave import artefacts
from cave.errors import ConfigError
from cave.inkernel.confine import system
from cave.kernel import Confinement
from tests.attacks import _cells
from tests.kernel._host import Host, alive, text


def main(profile: str, folder: Path) -> None:
    """Run all attacks under a profile and print their outcomes."""
    found: dict[str, str] = {}
    held = None if profile == "open" else Confinement()
    with _targets(folder) as targets:
        host = Host(folder, confinement=held)
        try:
            kernel = host.start()
            targets |= {
                "kernel": str(host.launch().home),
                "keeper": kernel.record.keeper,
                "runtime": kernel.record.runtime,
            }
            host.run(_cells.TOOLS.format(numbers=system.NUMBERS, targets=targets))
            for name, body in {**_cells.LISTED, **_cells.MORE}.items():
                code = textwrap.indent(textwrap.dedent(body), "    ")
                done = host.run(f"def body():\n{code}\nprint(attempt(body))", timeout=30)
                found[name] = text(done).strip()[-200:]
            found |= _files(host, targets)
            found["unkillable"] = _unkillable(host)
        finally:
            host.close()
    facts = {"layers": kernel.facts.layers, "degraded": kernel.facts.degraded}
    print(json.dumps({"outcomes": found, **facts}))


def _files(host: Host, targets: dict[str, Any]) -> dict[str, str]:
    """What cells leave in the workdir for the host to stumble over."""
    found = {}
    host.run("import os; os.mkfifo('report.csv')\nos.symlink(T['secret'], 'top.txt')")
    for name, file in (("fifo_artifact", "report.csv"), ("symlink_out", "top.txt")):
        try:
            artefacts.save(host.root / "work", file, Path(targets["outside"]) / file)
            found[name] = "open"
        except ConfigError:
            found[name] = "stopped by the host"
    return found


def _unkillable(host: Host) -> str:
    """A cell that blocks signals, in its process and in daemons that left its group."""
    source = """
        import os, signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                for number in (1, 2, 3, 15):
                    signal.signal(number, signal.SIG_IGN)
                if os.fork() == 0:
                    open('daemons', 'a').write(f'{os.getpid()}\\n')
                    while True: time.sleep(60)
                os._exit(0)
        while True:
            if os.path.exists('daemons') and open('daemons').read().count('\\n') == 2: break
        print('ready', flush=True)
        while True: pass"""
    import asyncio

    async def stop() -> float:
        ready = asyncio.Event()
        sent = asyncio.ensure_future(
            host.send(textwrap.dedent(source), on_output=lambda _: ready.set())
        )
        await ready.wait()
        began = time.perf_counter()
        await host.kernel.end(reason="closed")
        took = time.perf_counter() - began
        await asyncio.wait([sent])
        sent.exception()
        return took

    took = host(stop())
    daemons = [int(line) for line in (host.root / "work" / "daemons").read_text().split()]
    left = [pid for pid in [host.kernel.facts.pid, *daemons] if alive(pid)]
    return "open" if left or len(daemons) != 2 else f"stopped in {1000 * took:.0f} ms"


@contextmanager
def _targets(folder: Path) -> Iterator[dict[str, Any]]:
    """What is outside of the session and belongs to its user."""
    outside, session = folder / "outside", folder / "session"
    home = folder / "home"
    for path in (outside, session / "snapshots", home / ".ssh"):
        path.mkdir(parents=True)
    for path in (
        outside / "secret",
        outside / "kept",
        outside / "gone",
        outside / "cut",
        home / ".ssh" / "id_rsa",
        home / ".bashrc",
    ):
        path.write_text("canary!!")
        path.chmod(0o600)
    shared = Path("/dev/shm", f"cave-test-{secrets.token_hex(4)}")
    memory = ctypes.create_string_buffer(b"canary!!")
    abstract = f"cave-test-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        shared.write_text("canary!!")
        shared.chmod(0o600)
        stack.callback(shared.unlink)
        victim = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
        stack.callback(victim.kill)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = _bound(stack, str(folder / "u"), socket.SOCK_STREAM)
        _bound(stack, "\0" + abstract, socket.SOCK_STREAM)
        datagram = _bound(stack, str(folder / "d"), socket.SOCK_DGRAM)
        yield {
            "home": str(home), "outside": str(outside), "secret": str(outside / "secret"),
            "session": str(session), "packages": site.getsitepackages()[0],
            "shm": str(shared), "victim": victim.pid, "host": os.getpid(),
            "tcp": tcp.getsockname(), "unix": unix, "abstract": abstract,
            "datagram": datagram, "address": ctypes.addressof(memory),
            "disk": _disk(),
        }  # fmt: skip


def _bound(stack: ExitStack, address: str, kind: socket.SocketKind) -> str:
    made = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
    made.bind(address)
    if kind == socket.SOCK_STREAM:
        made.listen()
    return address


def _disk() -> str:
    names = [path for path in Path("/sys/block").iterdir() if not path.name.startswith("loop")]
    return f"/dev/{names[0].name}" if names else "/dev/mem"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
