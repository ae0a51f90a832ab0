"""Hosts that cells reach: whatever library asks, through the proxy of their kernel alone."""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import cave
from tests.conftest import home_of_its_own, sessions_deleted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these layers")
TABLE = b"region,amount\nnorth,1\n"
IN_A_PROCESS = """import subprocess, sys
code = 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode(), end="")'
got = subprocess.run([sys.executable, '-c', code, '{url}'], capture_output=True).stdout"""


class Files(http.server.BaseHTTPRequestHandler):
    """A table for everybody who asks; `/gone` is not there."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/gone" else 200)
        self.send_header("Content-Length", str(len(TABLE)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(TABLE)

    do_HEAD = do_GET  # noqa: N815  as the class expects it

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Desk:
    """A session that may reach one server on this machine, and what is below one name."""

    place: str
    home: Path
    session: cave.Session

    def refused(self, source: str) -> str:
        """The hint of a cell that is refused something."""
        cell = self.session.run(source)
        assert cell.error is not None, source
        return cell.error.hint

    def proxies(self) -> list[int]:
        """The siblings of the kernel."""
        kernel = self.session.kernel.pid
        assert kernel is not None
        fields = Path(f"/proc/{kernel}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{fields[1]}/task/{fields[1]}/children").read_text().split()
        return [int(pid) for pid in children if int(pid) != kernel]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One session for all."""
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server,
        pytest.MonkeyPatch.context() as patch,
        home_of_its_own(patch),
    ):
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        place = f"127.0.0.1:{server.server_port}"
        policy = cave.Policy(network=[place, "*.example.org"])
        with sessions_deleted():
            s = cave.open("desk", policy=policy)
            yield Desk(place, Path(os.environ["CAVE_HOME"]), s)
        server.shutdown()


@pytest.mark.parametrize(
    "read",
    [
        "import urllib.request as u; got = u.urlopen('{url}').read()",
        "import requests; got = requests.get('{url}').content",
        "import httpx2; got = httpx2.get('{url}').content",
        "import pandas as pd; got = pd.read_csv('{url}').to_csv(index=False).encode()",
        IN_A_PROCESS,
    ],
    ids=lambda read: read.split()[1],
)
def test_libraries_reach_what_is_allowed(desk: Desk, read: str) -> None:
    """They find the proxy by themselves, and processes that cells start do, too."""
    desk.session.run(read.replace("{url}", f"http://{desk.place}/t.csv")).raise_for_error()
    assert desk.session["got"] == TABLE


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import urllib.request as u; u.urlopen('https://api.test/')", "example.org', 'api.test']"),
        ("import urllib.request as u; u.urlopen('http://api.test/')", "example.org', 'api.test']"),
        ("import requests; requests.get('https://api.test:8443/')", ", 'api.test:8443'])"),
        ("import requests; requests.get('http://api.test/').raise_for_status()", ", 'api.test'])"),
        ("import httpx2; httpx2.get('https://api.test/')", "not let cells reach 'api.test:443'"),
        ("import pandas as pd; pd.read_csv('https://api.test/x.csv')", "network=['{place}', "),
        ("import requests; requests.get('https://localhost/')", ", 'localhost'])"),
        ("import socket; socket.create_connection(('127.0.0.1', {port}))", "reach {place}, *."),
        ("import socket; socket.getaddrinfo('a.example.org', 80)", "*.example.org alone, by HTTP"),
        ("import socket; socket.socket(type=socket.SOCK_DGRAM)", "runs='host', or cave.Policy("),
    ],
)  # fmt: skip
def test_a_refusal_names_the_host_to_allow(desk: Desk, source: str, told: str) -> None:
    """The setting with that host in it; and where no proxy can help, what else there is."""
    names = {"{place}": desk.place, "{port}": desk.place.partition(":")[2]}
    for name, value in names.items():
        source, told = source.replace(name, value), told.replace(name, value)
    assert told in desk.refused(source)


def test_what_a_host_itself_says_has_no_such_hint(desk: Desk) -> None:
    """Its own refusals are its own."""
    source = f"import urllib.request as u; u.urlopen('http://{desk.place}/gone')"
    assert "Policy" not in desk.refused(source)


def test_the_layer_is_told_and_the_hosts_are_written_down(desk: Desk) -> None:
    """Which hosts cells have asked for is in a file of the kernel's that cells cannot change."""
    kernel = desk.session.kernel
    assert any(line.startswith("network: its own") for line in kernel.layers) or any(
        line.startswith("DEGRADED network: ") for line in kernel.degraded
    )
    desk.session.run("import requests; requests.get('http://never.test/')")
    desk.session.run(f"requests.get('http://{desk.place}/')").raise_for_error()
    log = max(desk.home.glob("**/kernels/*/network"), key=lambda path: int(path.parent.name))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    found = {(f"{line['host']}:{line['port']}", line["outcome"]) for line in lines}
    assert {(desk.place, "allowed"), ("never.test:80", "refused")} <= found
    error = desk.session.run(f"open({str(log)!r}, 'a')").error
    assert error is not None
    assert error.name == "PermissionError"


def test_the_proxy_has_no_rights_beyond_its_user(desk: Desk) -> None:
    """It reads what cells send: it holds no capability, even as root, and can get none."""
    [proxy] = desk.proxies()
    status = Path(f"/proc/{proxy}/status").read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in status)
    assert (int(facts["CapPrm"], 16), facts["NoNewPrivs"]) == (0, "1")


def test_the_proxy_is_started_again_and_ends_with_the_kernel(desk: Desk) -> None:
    """Its death is not the end of the kernel's network; the kernel's end is the proxy's."""
    reads = f"import requests; got = requests.get('http://{desk.place}/').content"
    desk.session.run(reads).raise_for_error()
    [before] = desk.proxies()
    os.kill(before, signal.SIGKILL)
    until = time.monotonic() + 60
    while (now := desk.proxies()) in ([], [before]):
        assert time.monotonic() < until
        desk.session.run("pass")
    desk.session.run(reads).raise_for_error()
    [after] = now
    desk.session.restart()
    assert desk.proxies() != [after]
    assert not Path(f"/proc/{after}").exists()
    desk.session.run(reads).raise_for_error()
    assert desk.session["got"] == TABLE
