"""Changes found by hashing: works everywhere, costs a pass over the memory.

xxhash where the kernel's environment has it, else Python's own keyed hash of bytes, which
needs no copy. Neither has to withstand forgers: the host names chunks by a hash of its own.
"""

from __future__ import annotations

import _thread
import ctypes
import hashlib
import os
from collections.abc import Callable
from typing import Any

CHUNK = 256 << 10
_WORTH_A_THREAD = 32 << 20
_SPARE = (os.cpu_count() or 1) > 1

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
    """One digest for each chunk; what is large is read by two threads."""
    if size < _WORTH_A_THREAD or not _SPARE or NAME != "xxh3":
        return _digests(address, size, chunk)
    middle = size // chunk // 2 * chunk
    first, second = _beside(
        lambda: _digests(address, middle, chunk),
        lambda: _digests(address + middle, size - middle, chunk),
    )
    return [*first, *second]


def _digests(address: int, size: int, chunk: int) -> list[Any]:
    whole, made = view(address, size), digest
    return [made(whole[at : at + chunk]) for at in range(0, size, chunk)]


def _beside(mine: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
    """What both give; the other one has ended when this returns or raises."""
    running, found = _thread.allocate_lock(), []

    def work() -> None:
        try:
            found.append(other())
        finally:
            running.release()

    running.acquire()
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:  # a limit on threads
        running.release()
    try:
        first = mine()
    finally:
        _join(running)
    return first, found.pop() if found else other()


def _join(running: _thread.LockType) -> None:
    """Wait for a thread that reads memory which an interrupt would let go of."""
    try:
        running.acquire()
    except BaseException:
        running.acquire()
        raise


def differing(before: list[Any], now: list[Any]) -> list[int]:
    """Chunks whose digests differ."""
    return [at for at, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
