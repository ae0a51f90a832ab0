from __future__ import annotations

import pytest

from cave.proxy.hosts import Hosts, entries, normal

NAMED = [
    "api.example.com", "*.example.org", "BÜCHER.example", "only.test:8443", "10.1.2.3",
    "10.9.0.0/16", "[fd00::1]:80", "::2", "localhost:9000", "1.2.3.4:443",
]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        ("api.example.com", 443, True),
        ("API.Example.com.", 80, True),
        ("api.example.com..", 80, None),
        ("xapi.example.com", 443, False),
        ("api.example.com.evil.test", 443, False),
        ("api.example.co", 443, False),
        ("a.example.org", 443, True),
        ("a.b.example.org", 443, True),
        ("example.org", 443, False),
        ("evilexample.org", 443, False),
        (".example.org", 443, None),
        ("bücher.example", 443, True),
        ("xn--bcher-kva.example", 443, True),
        ("only.test", 8443, True),
        ("only.test", 443, False),
        ("10.1.2.3", 5432, True),
        ("10.1.2.4", 5432, False),
        ("10.9.8.7", 1, True),
        ("[fd00::1]", 80, True),
        ("fd00:0::1", 80, True),
        ("[fd00::1]", 81, False),
        ("0::2", 22, True),
        ("127.0.0.1", 9000, True),
        ("[::1]", 9000, True),
        ("[::ffff:127.0.0.1]", 9000, True),
        ("127.0.0.1", 9001, False),
        ("1.2.3.4", 443, True),
        ("16909060", 443, False),
        ("0x01020304", 443, False),
        ("169.254.169.254", 80, False),
        ("fe80::1%eth0", 80, None),
        ("a b", 80, None),
        ("api.example.com@evil.test", 80, None),
        ("api.example.com/x", 80, None),
        ("api.example.com\r\nx", 80, None),
        ("", 80, None),
        ("a" * 64, 80, None),
        ("a." * 130, 80, None),
    ],
)
def test_what_a_policy_names(host: str, port: int, named: bool | None) -> None:
    """Names and addresses are compared as they are meant, whatever way they are written; None:
    that is no host at all."""
    if named is None:
        with pytest.raises(ValueError, match="host"):
            normal(host)
        return
    assert Hosts(NAMED).names(normal(host), port) is named


@pytest.mark.parametrize(
    ("address", "port", "admitted"),
    [
        ("93.184.215.14", 443, True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", 443, True),
        ("64:ff9b::5db8:d70e", 443, True),
        ("10.1.2.3", 5432, True),
        ("10.9.1.1", 443, True),
        ("127.0.0.1", 9000, True),
        ("127.0.0.1", 443, False),
        ("127.9.9.9", 9000, False),
        ("0.0.0.0", 443, False),
        ("10.1.2.4", 443, False),
        ("172.16.0.1", 443, False),
        ("192.168.1.1", 443, False),
        ("100.64.0.1", 443, False),
        ("169.254.169.254", 80, False),
        ("224.0.0.1", 80, False),
        ("255.255.255.255", 80, False),
        ("::", 80, False),
        ("::1", 443, False),
        ("fe80::1", 443, False),
        ("fe80::1%eth0", 443, False),
        ("fd00:ec2::254", 80, False),
        ("fec0::1", 80, False),
        ("ff02::1", 80, False),
        ("::ffff:127.0.0.1", 443, False),
        ("::ffff:169.254.169.254", 80, False),
        ("::ffff:93.184.215.14", 443, True),
        ("64:ff9b::7f00:1", 443, False),
        ("64:ff9b::a9fe:a9fe", 443, False),
        ("2002:7f00:1::", 443, False),
        ("2001:0:7f00:1::", 443, False),
    ],
)
def test_local_addresses_are_reached_only_by_name(address: str, port: int, admitted: bool) -> None:
    """Whatever an allowed name resolves to: what the internet does not have is not connected to,
    unless the policy names that address."""
    assert Hosts(NAMED).admits(address, port) is admitted


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "a.*", "*a.test", "http://a.test", "a.test/x", "a.test:", "a.test:0",
     "a.test:x", "a.test:65536", "a.test:0000000000443", "a b", "10.0.0.0/33", "10.0.0.1/8",
     "127.1", "0x7f000001", "2130706433", "a@b.test", "[::1", "[a.test]", "*.10.0.0.1"],
)  # fmt: skip
def test_what_is_no_entry_is_refused(text: str) -> None:
    """A policy is not guessed at."""
    with pytest.raises(ValueError, match=r"."):
        entries(text)
