"""A proxy on the wire: real servers, real connections, a resolver that the tests hold."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cave.proxy import server
from cave.proxy.bodies import Body
from cave.proxy.heads import Refused
from cave.proxy.hosts import Hosts

DEADLINE = 30.0


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked; keeps connections open, as servers do."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        head = {name.lower(): self.headers.get_all(name) for name in self.headers}
        said = json.dumps({"line": self.requestline, "head": head, "body": body.decode()}).encode()
        self.server.seen.append(self.requestline)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.send_header("Keep-Alive", "timeout=5")
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_GET  # noqa: N815  as the class expects it

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Wire:
    """Two servers, of which a policy names one, and the proxy between."""

    allowed: int
    other: int
    proxy: int
    log: Path
    names: dict[str, list[str]]
    """What the resolver says; a test may change it."""
    asked: list[str]
    """The names that were resolved."""
    seen: list[str] = field(default_factory=list)
    """What reached the other server."""

    def ask(self, data: bytes) -> bytes:
        """Send bytes as they are; all that comes until the end."""
        with socket.create_connection(("127.0.0.1", self.proxy), DEADLINE) as client:
            client.sendall(data)
            return _all(client)

    def status(self, data: bytes) -> int:
        return int(self.ask(data).split(b" ")[1])

    def get(self, target: str, *headers: str) -> tuple[int, Any]:
        """One request through the proxy; its status, and what the server saw."""
        lines = [f"GET {target} HTTP/1.1", *(headers or ["Host: x"])]
        head, _, body = self.ask("\r\n".join([*lines, "", ""]).encode()).partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        return status, json.loads(body) if status == 200 else body.decode()

    def logged(self) -> list[tuple[str, str]]:
        lines = map(json.loads, self.log.read_text().splitlines())
        return [(line["host"], line["outcome"]) for line in lines]


def _all(client: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            data += part
    return data


@contextlib.contextmanager
def _served(handler: Any = Echo) -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        made.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """A policy that names `127.0.0.1` at one port, and `named.test` at all."""
    with contextlib.ExitStack() as stack:
        allowed, other = (stack.enter_context(_served()) for _ in range(2))
        names = {"named.test": ["127.0.0.1"], "local.test": ["127.0.0.1"]}
        asked: list[str] = []

        def resolve(name: str, _: int) -> list[str]:
            asked.append(name)
            return names.get(name, [name])

        hosts = Hosts([f"127.0.0.1:{allowed.server_port}", "named.test", "local.test:80"])
        proxy = server.Proxy(hosts, server.Log(str(tmp_path / "log")), resolve)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1200))
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        seen: list[str] = other.seen  # type: ignore[attr-defined]
        yield Wire(
            allowed.server_port, other.server_port, port, tmp_path / "log", names, asked, seen
        )
        listener.shutdown(socket.SHUT_RDWR)


def test_what_is_allowed_is_passed_on(wire: Wire) -> None:
    """A request for http, with its body, and a tunnel: by address and by name."""
    for host in ("127.0.0.1", "named.test", "NAMED.test."):
        status, seen = wire.get(f"http://{host}:{wire.allowed}?q=1", "Host: x", "X-Mine: 1")
        assert (status, seen["line"]) == (200, "GET /?q=1 HTTP/1.1")
        assert seen["head"]["host"] == [f"{host}:{wire.allowed}"]
        assert (seen["head"]["x-mine"], seen["head"]["connection"]) == (["1"], ["close"])
    through = http.client.HTTPConnection("127.0.0.1", wire.proxy, timeout=DEADLINE)
    through.set_tunnel("named.test", wire.allowed)
    for body in ("a", "b" * 3_000_000):  # in a tunnel a connection stays
        through.request("POST", "/t", body)
        assert json.loads(through.getresponse().read())["body"] == body
    through.close()
    assert set(wire.logged()) == {("127.0.0.1", "allowed"), ("named.test", "allowed")}


@pytest.mark.parametrize("how", ["GET http://{}/ HTTP/1.1", "CONNECT {} HTTP/1.1"])
def test_what_the_policy_does_not_name_is_refused(wire: Wire, how: str) -> None:
    """By every way to write it; the name is not even resolved, and nothing gets there."""
    for host in (
        f"127.0.0.1:{wire.other}", f"localhost:{wire.other}", f"[::1]:{wire.other}",
        f"[::ffff:127.0.0.1]:{wire.other}", f"2130706433:{wire.allowed}", f"127.1:{wire.other}",
        f"0x7f000001:{wire.other}", f"0:{wire.other}", "169.254.169.254:80",
        "metadata.google.internal:80", "exfiltrated.named.test:443", "xnamed.test:443",
    ):  # fmt: skip
        said = wire.ask(f"{how.format(host)}\r\nHost: named.test\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 403 cells may not reach the host '"), (host, said)
    post = f"POST http://xnamed.test/ HTTP/1.1\r\nContent-Length: {1 << 23}\r\n\r\n"
    assert wire.status(post.encode() + bytes(1 << 23)) == 403, "though it had much to say"
    assert not wire.asked
    assert not wire.seen
    assert {outcome for _, outcome in wire.logged()} == {"refused"}


def test_a_name_that_is_bound_anew_reaches_nothing_local(wire: Wire) -> None:
    """What an allowed name resolves to is looked at each time, and that very address is used."""
    said = wire.ask(b"CONNECT local.test:80 HTTP/1.1\r\n\r\n")
    assert b"403 cells may not reach the host 'local.test:80' at the local address '127.0" in said
    connect = f"CONNECT named.test:{wire.other} HTTP/1.1\r\n\r\n".encode()
    assert wire.status(connect) == 403
    wire.names["named.test"] = ["169.254.169.254", "::ffff:127.0.0.1", "10.0.0.1", "::1"]
    assert wire.status(connect) == 403
    assert wire.asked == ["local.test", "named.test", "named.test"]
    wire.names["named.test"] = ["169.254.169.254", "127.0.0.1"]
    assert wire.get(f"http://named.test:{wire.allowed}/")[0] == 200, "the good one of several"
    wire.names["named.test"] = []
    assert wire.status(connect) == 502
    assert not wire.seen


def test_the_host_of_the_target_is_the_host(wire: Wire) -> None:
    """Another one in the header goes nowhere, and neither does what is about one connection."""
    status, seen = wire.get(
        f"http://127.0.0.1:{wire.allowed}/",
        "Host: evil.test", "HOST: evil.test", "Connection: keep-alive, X-Hop", "X-Hop: 1",
        "Proxy-Authorization: Basic eA==", "Upgrade: websocket",
    )  # fmt: skip
    assert status == 200
    assert seen["head"] == {"host": [f"127.0.0.1:{wire.allowed}"], "connection": ["close"]}


def test_a_second_request_goes_nowhere(wire: Wire) -> None:
    """A connection is for one request: what is sent behind it, or in its body, is not one."""
    second = f"GET http://127.0.0.1:{wire.other}/evil HTTP/1.1\r\nHost: x\r\n\r\n"
    fronted = "GET /evil HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    head = f"POST http://127.0.0.1:{wire.allowed}/ HTTP/1.1\r\nHost: x\r\n"
    for framing, body in (
        ("Content-Length: 2\r\n", "ab"),
        ("Transfer-Encoding: chunked\r\n", "1;x=y\r\na\r\n1\r\nb\r\n0\r\nTrailer: 1\r\n\r\n"),
    ):
        for more in (second, fronted):
            said = wire.ask(f"{head}{framing}\r\n{body}{more}".encode())
            assert said.count(b"HTTP/1.1 200") == 1
            assert json.loads(said.partition(b"\r\n\r\n")[2])["body"] == "ab"
            assert b"connection: close" in said.lower()
            assert b"keep-alive" not in said.lower()
    assert not wire.seen


def test_what_can_be_understood_in_two_ways_is_refused(wire: Wire) -> None:
    """Heads that another program could read otherwise; none of them is passed on."""
    target = f"http://127.0.0.1:{wire.allowed}/"
    get = f"GET {target} HTTP/1.1\r\nHost: x\r\n"
    for head in (
        f"{get}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        f"{get}Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        f"{get}Content-Length: +1\r\n\r\n",
        f"{get}Transfer-Encoding: gzip, chunked\r\n\r\n",
        f"{get}Transfer-Encoding : chunked\r\n\r\n",
        f"{get}X: a\r\n folded: b\r\n\r\n",
        f"{get}X: a\nY: b\r\n\r\n",
        f"{get}X: a\rY: b\r\n\r\n",
        f"{get}X: a\0\r\n\r\n",
        f"{get}no colon\r\n\r\n",
        f"GET  {target} HTTP/1.1\r\n\r\n",
        f"GET {target} HTTP/2.0\r\n\r\n",
        f"GET {target}\r\n\r\n",
        f"GET {target}#x HTTP/1.1\r\n\r\n",
        f"GET http://user@127.0.0.1:{wire.allowed}/ HTTP/1.1\r\n\r\n",
        f"GET http://127.0.0.1:{wire.allowed}\\@evil.test/ HTTP/1.1\r\n\r\n",
        "GET http:///x HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: named.test\r\n\r\n",
        "GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        f"GET https://127.0.0.1:{wire.allowed}/ HTTP/1.1\r\n\r\n",
        "CONNECT named.test HTTP/1.1\r\n\r\n",
        "CONNECT named.test:0 HTTP/1.1\r\n\r\n",
        f"CONNECT 127.0.0.1:{wire.allowed}/ HTTP/1.1\r\n\r\n",
        "\r\n\r\n",
    ):
        assert wire.status(head.encode()) == 400, head
    assert not wire.log.exists()


def test_a_chunk_that_lies_ends_the_request(wire: Wire) -> None:
    """The body is read as the server has to read it; else the connection is over."""
    head = f"POST http://127.0.0.1:{wire.allowed}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body in (
        "-1\r\n", "1\r\nab\r\n", "x\r\n", "1\n", "10\n", "1;\r;x\r\n", "1 1\r\n", "0\r\nx: y\n",
        "1" * 16 + "\r\n", "0" * 5000,
    ):  # fmt: skip
        with pytest.raises(Refused):
            Body(None).feed(body.encode())
    assert b" 200 " not in wire.ask((head + "1\r\nab\r\n").encode())


def test_nothing_makes_it_hang_or_grow(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head without end, one that does not come, and a thousand connections: each is told, or
    ended, and the next request is served."""
    long = wire.ask(b"GET http://named.test/" + b"x" * (3 << 16))
    assert long.startswith(b"HTTP/1.1 431") or not long
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    assert wire.status(b"GET http://named.test/ HTTP/1.1\r\nX: y") == 408
    monkeypatch.setattr(server, "HEAD_SECONDS", DEADLINE)
    with contextlib.ExitStack() as stack:
        many = [
            stack.enter_context(socket.create_connection(("127.0.0.1", wire.proxy), DEADLINE))
            for _ in range(1000)
        ]
        told = [_all(one)[:12] for one in many[server.CONNECTIONS :]]
        assert set(told) <= {b"HTTP/1.1 503", b""}
        assert threading.active_count() < server.CONNECTIONS + 50
    until = time.monotonic() + DEADLINE
    while (status := wire.get(f"http://127.0.0.1:{wire.allowed}/")[0]) == 503:
        assert time.monotonic() < until, "those that left make room"
    assert status == 200


def test_who_leaves_is_not_waited_for() -> None:
    """A client that goes before it is answered takes the connection to the host with it."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        port = made.getsockname()[1]
        ours, theirs = socket.socketpair()
        server.Proxy(Hosts([f"127.0.0.1:{port}"]), server.Log("")).take(theirs)
        with ours:
            ours.sendall(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
            made.settimeout(DEADLINE)
            there, _ = made.accept()
            with there:
                there.settimeout(DEADLINE)
                assert there.recv(1 << 16)
                ours.close()
                assert not there.recv(1 << 16)


def test_a_server_that_does_not_speak_http_is_told() -> None:
    """What answers with anything else, or with a protocol of its own, is a 502."""
    for answer in (b"220 mail\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"x" * (2 << 16)):
        with socket.create_server(("127.0.0.1", 0)) as made:
            port = made.getsockname()[1]
            hosts = Hosts([f"127.0.0.1:{port}"])
            ours, theirs = socket.socketpair()
            server.Proxy(hosts, server.Log("")).take(theirs)
            with ours:
                ours.settimeout(DEADLINE)
                ours.sendall(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
                made.settimeout(DEADLINE)
                there, _ = made.accept()
                with there:
                    there.recv(1 << 16)
                    there.sendall(answer)
                assert _all(ours).startswith(b"HTTP/1.1 502 ")


def test_the_log_ends_when_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host is written down once, and a cell that asks for a million fills no disk."""
    monkeypatch.setattr(server, "_LOG", 2000)
    log = server.Log(str(tmp_path / "log"))
    for n in range(1000):
        log.add(f"{n // 2}.test", 443, "refused", "the policy does not name it")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line.get("host") for line in lines[:-1]] == [f"{n}.test" for n in range(len(lines) - 1)]
    assert lines[-1] == {"outcome": "more, which are not written down"}
    assert (tmp_path / "log").stat().st_size < 2100
