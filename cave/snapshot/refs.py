"""References to what lies in packs, and the hashes that name and check it.

A reference says in which pack something lies, where, how long it is, its SHA-256 (its name:
equal names are equal content) and its XXH3-128 (a checksum at the speed of memory, for data
that is about to be mapped). It is 73 bytes; lists of references are these bytes in a row.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

Bytes = bytes | bytearray | memoryview

try:
    from xxhash import xxh3_128_digest as _xxh3
except ImportError:  # a stripped environment: everything works, checks take the time of SHA-256
    _xxh3 = None  # type: ignore[assignment]

fast: Callable[[Bytes], bytes] | None = _xxh3
"""XXH3-128, where it is installed."""

DEFLATED = 1
"""Flag: stored deflated (zlib)."""
ZERO = 2
"""Flag: nothing but zeros, which are not stored."""
CHECKED = 4
"""Flag: has an XXH3-128."""

NONE = bytes(16)

_REF = struct.Struct("<QQIIB32s16s")
SIZE = _REF.size
_ID = re.compile(r"([0-9]{6,10})-([0-9a-f]{8})")


class Ref(NamedTuple):
    """Where something lies. A named tuple, since a frame of 1 GB has 16,384 of them."""

    pack: int
    at: int
    stored: int
    """Bytes in the pack."""
    size: int
    """Bytes of the content."""
    flags: int
    sha: bytes
    xxh: bytes


def pack_name(number: int) -> str:
    """The id of a pack, and of the snapshot that it was written for: `000012-89abcdef`."""
    return f"{number >> 32:06d}-{number & 0xFFFFFFFF:08x}"


def pack_number(name: str) -> int | None:
    """The number of a pack, when that is how packs are called."""
    found = _ID.fullmatch(name)
    return int(found[1]) << 32 | int(found[2], 16) if found else None


def packed(refs: Iterable[Ref]) -> bytes:
    """References as bytes."""
    pack = _REF.pack
    return b"".join([pack(*ref) for ref in refs])


def unpacked(content: Bytes) -> list[Ref]:
    """References of bytes. Raises `ValueError` for a length that cannot be."""
    if len(content) % SIZE:
        raise ValueError("a list of references has a broken length")
    return list(map(Ref._make, _REF.iter_unpack(content)))


def sha256(content: Bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(content).digest()


def checksum(content: Bytes) -> bytes:
    """XXH3-128, or zeros where that is not installed."""
    return fast(content) if fast is not None else NONE


def digests(contents: Sequence[Bytes]) -> list[tuple[bytes, bytes]]:
    """SHA-256 and XXH3-128 of each."""
    return [(sha256(content), checksum(content)) for content in contents]


@lru_cache(64)
def zeros(size: int) -> bytes:
    """The SHA-256 of so many zeros."""
    return sha256(bytes(size))


def checker(ref: Ref) -> tuple[Callable[[Bytes], bytes], bytes]:
    """The function to check content with, and what it must give."""
    if ref.flags & CHECKED and fast is not None:
        return fast, ref.xxh
    return sha256, ref.sha


def shrunk(content: Bytes) -> bytes | None:
    """`content` deflated, when a sample of it says that this halves it."""
    sample = content[:16384]
    if len(zlib.compress(sample, 1)) * 2 > len(sample):
        return None
    small = zlib.compress(content, 1)
    return small if len(small) * 2 <= len(content) else None


def content_of(ref: Ref, stored: Bytes) -> Bytes:
    """The content, checked by its SHA-256. Raises `ValueError` for damage."""
    if ref.flags & ZERO:
        return bytes(ref.size)
    content: Bytes = stored
    if ref.flags & DEFLATED:
        inflater = zlib.decompressobj()
        try:
            content = inflater.decompress(stored, ref.size + 1)
        except zlib.error as fault:
            raise ValueError(f"it cannot be inflated ({fault})") from None
    if len(content) != ref.size or sha256(content) != ref.sha:
        raise ValueError("it differs from its hash")
    return content
