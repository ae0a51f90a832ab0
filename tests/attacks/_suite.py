"""Runs every attack cell in one kernel and prints what came of each, as JSON.

`python -m tests.attacks._suite PROFILE FOLDER`, by whatever user, with a canary in the
environment: `_run.py` decides.
"""

from __future__ import annotations

import ctypes
import http.server
import json
import os
import secrets
import site
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from cave import artefacts
from cave.errors import ConfigError
from cave.inkernel.confine import network, system
from cave.kernel import Confinement, Kernel
from tests.attacks import _cells
from tests.kernel._host import WARM, Host, alive, text


def main(profile: str, folder: Path) -> None:
    """Run all attacks under a profile and print their outcomes."""
    found: dict[str, str] = {}
    with _targets(folder) as targets, closing(_host(folder, profile)) as host:
        kernel = _forked(host) if WARM else host.start()
        found |= _attacked(host, targets, {**_cells.LISTED, **_cells.MORE})
        found |= _files(host, targets)
        found["unkillable"] = _unkillable(host)
        degraded = kernel.facts.degraded
        named = f"127.0.0.1:{targets['named'][1]}"
        (folder / "hosts").mkdir()
        with closing(_host(folder / "hosts", profile, network=(named,))) as reaching:
            facts = reaching.start().facts
            found |= _attacked(reaching, targets, _cells.HOSTS)
            reached = reaching.run("print(b' 200 ' in ask(request('Connection: close')))")
    degraded = tuple(dict.fromkeys((*degraded, *facts.degraded)))
    outcomes = {"outcomes": found, "reaches": text(reached).strip() == "True"}
    print(json.dumps({**outcomes, "layers": facts.layers, "degraded": degraded}))


def _host(folder: Path, profile: str, **options: Any) -> Host:
    return Host(folder, confinement=None if profile == "open" else Confinement(**options))


def _forked(host: Host) -> Kernel:
    """A kernel that a template of this user has forked."""
    for number in range(1, 60):
        kernel = host.start(number, templates=host.root / "t")
        if kernel.facts.start == "warm":
            return kernel
        host(kernel.end(reason="closed"))
        time.sleep(1)
    raise TimeoutError("no template got ready")


def _attacked(host: Host, targets: dict[str, Any], attacks: Mapping[str, str]) -> dict[str, str]:
    """What came of each attack in a host's kernel."""
    record = host.kernel.record
    proxies = [pid for pid in _children(record.keeper) if pid != record.pid]
    mine = {
        "kernel": str(host.launch(record.number).home), "keeper": record.keeper,
        "runtime": record.runtime, "proxy": proxies[0] if proxies else targets["victim"],
    }  # fmt: skip
    host.run(_cells.TOOLS.format(numbers=system.NUMBERS, targets={**targets, **mine}))
    found = {}
    for name, body in attacks.items():
        code = textwrap.indent(textwrap.dedent(body), "    ")
        done = host.run(f"def body():\n{code}\nprint(attempt(body))", timeout=30)
        found[name] = text(done).strip()[-200:]
    return found


def _children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class _Named(http.server.BaseHTTPRequestHandler):
    """Says what it was asked, and keeps connections open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        said = str(self.headers).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


def _named(stack: ExitStack) -> tuple[str, int]:
    """A server that a policy names, in a thread."""
    server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Named))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return "127.0.0.1", server.server_port


def _elsewhere(stack: ExitStack) -> Any:
    """A server on another address, at the port at which kernels find their proxy."""
    for port in (network.PORT, 0):
        try:
            made = socket.create_server(("127.0.0.2", port))
        except OSError:
            continue
        return stack.enter_context(made).getsockname()
    raise AssertionError("there is no other loopback address")


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
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        yield {
            "home": str(home), "outside": str(outside), "secret": str(outside / "secret"),
            "session": str(session), "packages": site.getsitepackages()[0],
            "shm": str(shared), "victim": victim.pid, "host": os.getpid(),
            "tcp": tcp.getsockname(), "unix": unix, "abstract": abstract,
            "datagram": datagram, "address": ctypes.addressof(memory),
            "disk": _disk(), "udp": udp.getsockname(), "named": _named(stack),
            "elsewhere": _elsewhere(stack),
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
