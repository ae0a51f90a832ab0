"""Changes found by hashing: works everywhere, costs a pass over the memory.

xxhash where the kernel's environment has it, else Python's own keyed hash of bytes, which
needs no copy. Neither has to withstand forgers: the host names chunks by a hash of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

CHUNK = 256 << 10

Digest = Callable[[memoryview], Any]


class _Memory(ctypes.c_char * (1 << 52)):  # type: ignore[misc]
    __hash__ = object.__hash__  # else no view of it can be hashed


_memory = memoryview(_Memory.from_address(0)).cast("B")
_constant = _memory.toreadonly()


def view(address: int, size: int) -> memoryview:
    """The memory there. The caller sees to it that it stays."""
    return _constant[address : address + size]


def writable(address: int, size: int) -> memoryview:
    """The memory there, to be filled."""
    return _memory[address : address + size]


def _digest() -> tuple[Digest, str]:
    try:
        import xxhash
    except ImportError:
        return hash, "Python's hash of bytes"
    found: Digest = xxhash.xxh3_128_digest
    return found, "xxh3"


digest, NAME = _digest()


def of_stream(stream: Any) -> bytes:
    """What tells one stream from another."""
    if NAME == "xxh3":
        found: bytes = digest(memoryview(stream))
        return found
    return hashlib.blake2b(stream, digest_size=16).digest()


def digests(address: int, size: int, chunk: int) -> list[Any]:
    """One digest for each chunk."""
    whole, made = view(address, size), digest
    return [made(whole[at : at + chunk]) for at in range(0, size, chunk)]


def differing(before: list[Any], now: list[Any]) -> list[int]:
    """Chunks whose digests differ."""
    return [at for at, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
