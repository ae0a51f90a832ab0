"""Other clients: JupyterLab and consoles see the kernel, and run cells once admitted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from cave.kernel import Kernel, adopt
from cave.ports import SpooledCell
from tests.kernel._host import Host, text

LIMIT = 10


@pytest.fixture
def client(host: Host) -> Iterator[BlockingKernelClient]:
    """An ordinary client on the kernel's connection file."""
    client = BlockingKernelClient(connection_file=str(host.kernel.facts.connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=LIMIT)
        yield client
    finally:
        client.stop_channels()
        client.context.term()


def replies(client: BlockingKernelClient, ask: Any, *args: Any) -> dict[str, Any]:
    return client._recv_reply(ask(*args), timeout=LIMIT)["content"]


def test_any_jupyter_client_can_look(host: Host, client: BlockingKernelClient) -> None:
    """Clients without a lease get info, completions, inspection and histories."""
    host.run("visible_name = 3")
    assert replies(client, client.kernel_info)["status"] == "ok"
    assert "visible_name" in replies(client, client.complete, "visible_n")["matches"]
    assert replies(client, client.inspect, "visible_name")["found"]
    assert replies(client, client.is_complete, "1")["status"] == "complete"
    assert replies(client, client.comm_info)["status"] == "ok"


def test_cells_of_others_are_refused_with_a_hint(host: Host, client: BlockingKernelClient) -> None:
    """A cell without a lease does not run; its author is told what to type."""
    seen: list[dict[str, Any]] = []
    reply = client.execute_interactive(
        "intruded = 1", timeout=LIMIT, output_hook=seen.append, allow_stdin=False
    )
    assert reply["content"]["status"] == "error"
    assert "s.attach()" in reply["content"]["evalue"]
    assert [m["msg_type"] for m in seen if m["msg_type"] != "status"] == ["error"]
    assert text(host.run("'intruded' in globals()")) == "False"


@pytest.mark.parametrize("kind", ["shutdown_request", "cave_end_request", "cave_admit_request"])
def test_others_cannot_end_or_open_the_kernel(
    host: Host, client: BlockingKernelClient, kind: str
) -> None:
    """Requests on the control channel that change the kernel need the lease."""
    message = client.session.msg(kind, {"restart": False, "admit": True})
    client.control_channel.send(message)
    reply = client.get_control_msg(timeout=LIMIT)["content"]
    assert (reply["status"], reply["ename"]) == ("error", "NotAttached")
    assert not host(host.kernel.status())["admitted"]


def test_cells_cannot_sneak_in_on_control(host: Host, client: BlockingKernelClient) -> None:
    """An execute_request on the control channel is not served at all."""
    message = client.session.msg("execute_request", {"code": "sneaked = 1", "silent": False})
    client.control_channel.send(message)
    assert text(host.run("import time; time.sleep(0.2); 'sneaked' in globals()")) == "False"


def test_put_messages_of_others_are_refused(host: Host, client: BlockingKernelClient) -> None:
    """The host's own requests are refused without a lease too."""
    message = client.session.msg("cave_delete_request", {"names": ["precious"]})
    host.run("precious = 1")
    client.shell_channel.send(message)
    assert client.get_shell_msg(timeout=LIMIT)["content"]["ename"] == "NotAttached"
    assert text(host.run("precious")) == "1"


def test_admitted_clients_run_cells_that_the_host_is_told_of(
    make_host: Callable[..., Host],
) -> None:
    """After admission a foreign cell runs, sees the objects, and is told live and in the gap."""
    host = make_host()
    kernel = host.start()
    mine = host.run("shared = [1]")
    host(kernel.admit_foreign(lease=1))
    told: list[SpooledCell] = []
    kernel.on_foreign = told.append
    client = BlockingKernelClient(connection_file=str(kernel.facts.connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=LIMIT)
        reply = client.execute_interactive(
            "shared.append(2); print('foreign')", timeout=LIMIT, output_hook=lambda _: None
        )
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        client.context.term()
    host(asyncio.sleep(0.2))
    assert [(c.cell, c.source) for c in told] == [(None, "shared.append(2); print('foreign')")]
    found = host(kernel.catch_up(lease=1, after=mine.spool, running=None))
    (entry,) = [e for e in found if isinstance(e, SpooledCell)]
    assert entry.cell is None
    assert entry.executed is not None
    assert text(entry.executed) == "foreign\n"
    assert text(host.run("shared")) == "[1, 2]"


def test_a_foreign_cell_that_runs_at_the_catch_up_is_told_at_its_end(
    make_host: Callable[..., Host],
) -> None:
    """A host that comes in the middle of another client's cell gets all of it, once."""
    host = make_host()
    kernel = host.start()
    mine = host.run("1")
    host(kernel.admit_foreign(lease=1))
    client = BlockingKernelClient(connection_file=str(kernel.facts.connection_file))
    client.load_connection_file()
    client.start_channels()
    told: list[SpooledCell] = []
    try:
        client.wait_for_ready(timeout=LIMIT)
        client.execute("import time; print('a', flush=True); time.sleep(0.7); print('b')")
        host(asyncio.sleep(0.3))
        host(kernel.detach())
        again = host(adopt(host.root / "session", 1))
        assert isinstance(again, Kernel)
        host.kernels.append(again)
        again.on_foreign = told.append
        (found,) = host(again.catch_up(lease=2, after=mine.spool, running=None))
        assert isinstance(found, SpooledCell)
        assert found.executed is None
        host.lease = 2
        host.run("2")
    finally:
        client.stop_channels()
        client.context.term()
    assert [text(cell.executed) for cell in told if cell.executed] == ["a\nb\n"]
    assert told[0].source.startswith("import time")


def test_a_second_client_gets_every_message_undisturbed(
    host: Host, client: BlockingKernelClient
) -> None:
    """An ordinary client that watches sees the host's outputs in the ordinary form."""
    host.run("print('for all')")
    kinds = []
    while True:
        message = client.get_iopub_msg(timeout=LIMIT)
        kinds.append(message["msg_type"])
        if message["msg_type"] == "stream":
            assert message["content"] == {"name": "stdout", "text": "for all\n"}
        if message["content"].get("execution_state") == "idle" and "stream" in kinds:
            break
    assert "execute_input" in kinds


def test_jupyterlab_gets_an_ordinary_kernel(tmp_path: Path) -> None:
    """`python -m cave.inkernel -f FILE` serves foreign cells, and its banner says what it is."""
    file = tmp_path / "kernel.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "cave.inkernel", "-f", str(file), "--transport=ipc"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    client = BlockingKernelClient(connection_file=str(file))
    try:
        for _ in range(600):
            try:
                json.loads(file.read_text())
                break
            except (OSError, ValueError):
                __import__("time").sleep(0.02)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=30)
        assert "ordinary kernel" in replies(client, client.kernel_info)["banner"]
        reply = client.execute_interactive("x = 40 + 2", timeout=LIMIT)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        client.context.term()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
