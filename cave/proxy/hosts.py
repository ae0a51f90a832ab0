"""Which hosts a policy names, and which addresses may be connected to for them.

An entry is a name (`api.example.com`), the names below one (`*.example.com`), an address or a
network (`10.1.2.3`, `::1`, `10.0.0.0/8`), each with `:port` where one port is meant. `localhost`
stands for the loopback addresses too. Addresses that the internet does not have (loopback,
private, link-local with the metadata services of clouds) are reached only where an entry names
the address: a name that is allowed may resolve to whatever its owner likes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_LONGEST = 253
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOOPBACK = ("127.0.0.1", "::1")


def normal(host: str) -> str:
    """A host's name as it is compared: lower case, ASCII (IDNA), no dot at the end; an address
    in its shortest form. Raises `ValueError` for what is no host."""
    text = host.removeprefix("[").removesuffix("]") if host[:1] == "[" else host
    if (address := _address(text)) is not None:
        return str(address)
    if len(host) > _LONGEST + 1:
        raise ValueError(f"{host[:40]!r}... is too long for a host")
    name = host.lower().removesuffix(".")
    if not name.isascii():
        name = name.encode("idna").decode("ascii")  # raises UnicodeError, a ValueError
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise ValueError(f"{host!r} is not the name of a host")
    return name


def authority(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[address]:port` as host and port. Raises `ValueError`."""
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text.partition("]")
        host += closed
        if not closed or port[:1] not in {"", ":"} or port == ":":
            raise ValueError(f"{text!r} is not a host with a port")
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not port:
            raise ValueError(f"{text!r} has no port behind its colon")
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r} has a port that is none")
    return host, int(port) if port else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a policy."""

    name: str = ""
    """Of one host; with a dot before it that of all below it; empty for addresses."""
    network: Network | None = None
    port: int | None = None
    """None: any."""

    def at(self, port: int) -> bool:
        """Whether it is about this port."""
        return self.port in {None, port}

    def covers(self, name: str) -> bool:
        """Whether it is about this name, which is normal."""
        return (
            name.endswith(self.name) if self.name[:1] == "." else bool(name) and name == self.name
        )


def entries(text: str) -> list[Entry]:
    """What an entry of a policy stands for. Raises `ValueError` for what is none."""
    host, port = authority(text)
    try:
        return [Entry(network=ipaddress.ip_network(host.strip("[]")), port=port)]
    except ValueError:
        if "/" in host or host.strip("[]") != host:
            raise
    wild = host.startswith("*.")
    name = normal(host[2:] if wild else host)
    if _looks_like_an_address(name):
        raise ValueError(f"{text!r} is neither an address nor the name of a host")
    found = [Entry(name=f".{name}" if wild else name, port=port)]
    if name == "localhost" and not wild:
        found += [Entry(network=ipaddress.ip_network(one), port=port) for one in _LOOPBACK]
    return found


class Hosts:
    """What one policy lets through."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises `ValueError` for an entry that is none."""
        self._entries = [entry for text in texts for entry in entries(text)]

    def names(self, host: str, port: int) -> bool:
        """Whether the policy names this host, which is normal, at this port."""
        if (address := _address(host)) is not None:
            return self._names_address(address, port)
        return any(one.at(port) and one.covers(host) for one in self._entries)

    def admits(self, address: str, port: int) -> bool:
        """Whether this address may be connected to for a host that the policy names."""
        found = _address(address)
        if found is None:
            return False
        return _of_the_internet(found) or self._names_address(found, port)

    def _names_address(self, address: Address, port: int) -> bool:
        return any(
            one.at(port) and one.network is not None and address in one.network
            for one in self._entries
        )


def _address(text: str) -> Address | None:
    """An address; one of IPv4 that is written as one of IPv6 is that of IPv4."""
    if "%" in text:  # a link-local one with its interface
        return None
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _looks_like_an_address(name: str) -> bool:
    """Whether a resolver would take it for a number (`127.1`, `0x7f000001`)."""
    return re.fullmatch(r"[0-9]+|0x[0-9a-f]*", name.rpartition(".")[2]) is not None


def _of_the_internet(address: Address) -> bool:
    """Whether it is one that everybody may reach; an IPv4 one inside of it is looked at too."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if not all(one is None or _of_the_internet(one) for one in inner):
            return False
        if address.is_site_local:
            return False
    return address.is_global and not (
        address.is_multicast
        or (address.is_reserved and address not in _NAT64)
        or address.is_loopback
        or address.is_link_local
        or address.is_private
        or address.is_unspecified
    )
