"""Heads of HTTP/1.1 messages, read strictly: what could be understood in two ways is refused.

https://www.rfc-editor.org/rfc/rfc9112. A request goes on with one `Host`, that of its target,
and on a connection of its own; so does its answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .hosts import authority, normal

LONGEST = 1 << 16
"""Bytes of a head."""

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) (HTTP/1\.[01])")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_ONE_CONNECTION = frozenset({
    b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade", b"http2-settings",
    b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info",
})  # fmt: skip
Fields = list[tuple[bytes, bytes]]


class Refused(Exception):
    """What was asked is not done: a status, and a line that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks of the proxy."""

    host: str
    """Normal."""
    port: int
    head: bytes = b""
    """What the host is sent; empty for a tunnel."""
    length: int | None = 0
    """Bytes of the body; None: it comes in chunks."""

    @property
    def tunnels(self) -> bool:
        """Whether it is a CONNECT."""
        return not self.head


def request(head: bytes) -> Request:
    """A request's head, with its empty line. Raises `Refused`."""
    first, *rest = head[:-4].split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise Refused(400, "that is no request")
    method, target, version = line.groups()
    fields = _fields(rest)
    if method == b"CONNECT":
        host, port = _place(target.decode(), None)
        return Request(host, port)
    scheme, _, behind = target.decode().partition("://")
    if scheme.lower() != "http" or not behind:
        raise Refused(400, "cells reach hosts by CONNECT, or by requests for http://...")
    at, path = re.match(r"([^/?#]*)(.*)", behind, re.DOTALL).groups()  # type: ignore[union-attr]
    if "#" in path:
        raise Refused(400, "that is no target")
    host, port = _place(at, 80)
    length = _length(fields)
    sent = [
        b"%b %b %b" % (method, (path if path[:1] == "/" else f"/{path}").encode(), version),
        b"Host: " + at.encode(),
        *(b": ".join(field) for field in _passed(fields) if field[0].lower() != b"host"),
        b"Connection: close",
    ]
    return Request(host, port, b"\r\n".join(sent) + b"\r\n\r\n", length)


def answer(head: bytes) -> tuple[bytes, bool]:
    """An answer's head as the client gets it, and whether another follows (1xx).
    Raises `Refused`."""
    first, *rest = head[:-4].split(b"\r\n")
    found = re.fullmatch(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: .*)?", first)
    if found is None or found[1] == b"101":
        raise Refused(502, "the host did not answer in HTTP/1.1")
    if found[1][:1] == b"1":
        return head, True
    lines = [first, *(b": ".join(field) for field in _passed(_fields(rest, status=502)))]
    return b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n", False


def _place(text: str, port: int | None) -> tuple[str, int]:
    try:
        host, said = authority(text)
        if said is None and port is None:
            raise Refused(400, "CONNECT needs a port")
        return normal(host), said or port or 0
    except ValueError:
        raise Refused(400, "that is no host") from None


def _fields(lines: list[bytes], status: int = 400) -> Fields:
    found = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused(status, "there is a header that is none")
        found.append((name, value.strip(b" \t")))
    return found


def _all(fields: Fields, wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _passed(fields: Fields) -> Fields:
    """Without what is about one connection."""
    listed = b",".join(_all(fields, b"connection")).lower().split(b",")
    dropped = _ONE_CONNECTION | {name for name in map(bytes.strip, listed) if name not in _FRAMING}
    return [field for field in fields if field[0].lower() not in dropped]


_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host"})


def _length(fields: Fields) -> int | None:
    """How long the body is; None for chunks."""
    lengths, codings = _all(fields, b"content-length"), _all(fields, b"transfer-encoding")
    if codings:
        if lengths or [coding.lower() for coding in codings] != [b"chunked"]:
            raise Refused(400, "how long the body is can be understood in two ways")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise Refused(400, "how long the body is can be understood in two ways")
    return int(lengths[0])
