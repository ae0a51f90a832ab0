"""The proxy of one kernel: takes connections from a listening socket and serves each in a thread.

What a client can make it use is bounded: connections, the size of a head, the seconds until it
has come, names that are looked up at once. Each host that was asked for is written to the log
once, with whether it was let through.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from . import heads
from .bodies import Answer, Body, Tunnel
from .heads import Refused, Request
from .hosts import Hosts
from .relay import relay

CONNECTIONS = 128
"""Served at once; one more is told so."""
HEAD_SECONDS = 20.0
"""Seconds until a request's head has come."""
_CONNECT_SECONDS = 10.0
"""Seconds for one address of a host."""
_ADDRESSES = 4
_LOG = 1 << 20
"""Bytes of the log, at most."""
_MEMORY = 1 << 30

Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host."""


class Proxy:
    """Serves the connections of one kernel."""

    def __init__(self, hosts: Hosts, log: Log, resolve: Resolve | None = None) -> None:
        self._hosts = hosts
        self._log = log
        self._resolve = resolve or addresses
        self._places = threading.BoundedSemaphore(CONNECTIONS)

    def serve(self, listener: socket.socket) -> None:
        """Take connections until the socket is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                if listener.fileno() < 0:
                    return
                time.sleep(0.05)  # no descriptors are left for a moment, or it was given up
                continue
            self.take(client)

    def take(self, client: socket.socket) -> None:
        """Serve one connection, beside others."""
        if not self._places.acquire(blocking=False):
            _refuse(client, Refused(503, f"cells have {CONNECTIONS} connections open already"))
            client.close()
            return
        try:
            threading.Thread(target=self._serve_one, args=(client,), daemon=True).start()
        except RuntimeError:  # no more threads here
            self._places.release()
            client.close()

    def _serve_one(self, client: socket.socket) -> None:
        try:
            with client:
                self._answer(client)
                _part(client)
        finally:
            self._places.release()

    def _answer(self, client: socket.socket) -> None:
        down = Answer()
        try:
            head, rest = _head(client)
            asked = heads.request(head)
            with self._connected(asked) as host:
                if asked.tunnels:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    relay(client, host, Tunnel(), Tunnel(), rest)
                else:
                    up = Body(asked.length)
                    relay(client, host, up, down, asked.head + up.feed(rest))
        except Refused as said:
            if not down.begun:
                _refuse(client, said)
        except OSError:  # one of the two has gone: the other learns it by the end of the connection
            return

    @contextlib.contextmanager
    def _connected(self, asked: Request) -> Iterator[socket.socket]:
        """A connection to the host that was asked for. Raises `Refused`."""
        name, port = asked.host, asked.port
        place = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        if not self._hosts.names(name, port):
            self._log.add(name, port, "refused", "the policy does not name it")
            raise Refused(403, f"cells may not reach the host {place!r}")
        found = self._looked_up(name, port)
        good = [one for one in found if self._hosts.admits(one, port)]
        if not good:
            self._log.add(name, port, "refused", f"its address is {found[0]}")
            raise Refused(
                403, f"cells may not reach the host {place!r} at the local address {found[0]!r}"
            )
        self._log.add(name, port, "allowed", good[0])
        with _connect(good[:_ADDRESSES], port, place) as host:
            yield host

    def _looked_up(self, name: str, port: int) -> Sequence[str]:
        try:
            found = self._resolve(name, port)
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise Refused(502, f"the host {name!r} has no address")
        return found


class Log:
    """One line of JSON for each host, port and outcome; it ends when it is long."""

    def __init__(self, path: str) -> None:
        """`path`: a file that may be there already; empty: nothing is written down."""
        self._path = path
        self._said: set[tuple[str, int, str, str]] = set()
        self._lock = threading.Lock()
        self._left = _LOG - (os.path.getsize(path) if os.path.exists(path) else 0)

    def add(self, host: str, port: int, outcome: str, why: str) -> None:
        """Write it down, where it is new."""
        with self._lock:
            if (host, port, outcome, why) in self._said or self._left < 0 or not self._path:
                return
            said = {"at": time.time(), "host": host, "port": port, "outcome": outcome, "why": why}
            line = json.dumps(said).encode() + b"\n"
            self._said.add((host, port, outcome, why))
            self._left -= len(line)
            if self._left < 0:
                line = b'{"outcome": "more, which are not written down"}\n'
            with contextlib.suppress(OSError), open(self._path, "ab") as file:
                file.write(line)  # where the disk is full, work goes on


def addresses(name: str, port: int) -> list[str]:
    """The addresses of a host, as this system finds them. Raises `OSError`."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _connect(found: Sequence[str], port: int, place: str) -> socket.socket:
    why = "no address"
    for address in found:
        try:
            host = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
        except OSError as fault:
            why = fault.strerror or "it does not answer"
            continue
        host.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return host
    raise Refused(502, f"the host {place!r} cannot be reached: {why}")


def _head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head, and what came behind it. Raises `Refused`, `OSError`."""
    data, until = bytearray(), time.monotonic() + HEAD_SECONDS
    while (end := data.find(b"\r\n\r\n") + 4) < 4:
        left = until - time.monotonic()
        if left <= 0:
            raise Refused(408, "the head of the request did not come")
        if len(data) > heads.LONGEST:
            raise Refused(431, "the head of the request is too long")
        client.settimeout(left)
        try:
            part = client.recv(1 << 14)
        except TimeoutError:
            continue
        if not part:
            raise ConnectionError
        data += part
    client.settimeout(HEAD_SECONDS)
    return bytes(data[:end]), bytes(data[end:])


def _refuse(client: socket.socket, said: Refused) -> None:
    """Answer with the reason; libraries show their users its first line alone."""
    text = f"{said.why} (cave)".encode("ascii", "replace")
    head = b"HTTP/1.1 %d %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"
    sent = head % (said.status, text, len(text) + 1) + b"Connection: close\r\n\r\n" + text + b"\n"
    with contextlib.suppress(OSError):
        client.settimeout(1)
        client.sendall(sent)


def _part(client: socket.socket) -> None:
    """Let the client read all that it was sent: bytes of its that nobody reads would reset it."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_WR)
        until = time.monotonic() + 2
        while (left := until - time.monotonic()) > 0:
            client.settimeout(left)
            if not client.recv(1 << 16):
                return


def main(argv: list[str]) -> None:
    """`LISTENER LOG HOSTS`: a descriptor, a path, a list in JSON."""
    listener, log, hosts = argv
    for what, number in (("RLIMIT_DATA", _MEMORY), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 2 * _LOG)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, what), (number, number))
    threading.stack_size(1 << 18)
    os.umask(0o077)
    proxy = Proxy(Hosts(json.loads(hosts)), Log(log))
    proxy.serve(socket.socket(fileno=int(listener)))


if __name__ == "__main__":
    main(sys.argv[1:])
