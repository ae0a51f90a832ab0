"""Values of skills in the journal: few bytes in the event itself, many in a blob."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from cave.errors import StoreError
from cave.events import StoredValue
from cave.ports import BlobStore, Encoded

INLINE = 16 << 10
"""Bytes up to which a value is kept in its event."""
_SLICE = 16 << 20

Bytes = bytes | bytearray | memoryview


class Veil(Protocol):
    """What keeps secrets out of what is stored."""

    def hide_parts(self, parts: Sequence[Bytes]) -> tuple[list[Bytes], tuple[str, ...]]:
        """The parts with stand-ins as long as the secrets, and the names of those."""

    def reveal_parts(self, parts: Sequence[Bytes], names: Iterable[str]) -> list[bytes]:
        """The parts as they were. Raises `StoreError` for secrets that are not to be had."""


async def store(value: Encoded, blobs: BlobStore, veil: Veil | None = None) -> StoredValue:
    """Keep a value; a blob is durable before its key is given. Raises `StoreError`."""
    whole: list[Bytes] = [value.header, *value.buffers]
    hidden, secrets = (whole, ()) if veil is None else veil.hide_parts(whole)
    parts = [memoryview(part).cast("B") for part in hidden]
    sizes = tuple(part.nbytes for part in parts)
    if sum(sizes) <= INLINE:
        data = base64.b64encode(b"".join(parts)).decode()
        return StoredValue(value.kind, sizes, data=data, secrets=secrets)
    blob = await asyncio.to_thread(blobs.put, _slices(parts))
    return StoredValue(value.kind, sizes, blob=blob, secrets=secrets)


def _slices(parts: list[memoryview]) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, part.nbytes, _SLICE):
            yield bytes(part[start : start + _SLICE])


def load(value: StoredValue, blobs: BlobStore, veil: Veil | None = None) -> Encoded:
    """The value as it was. Blocks. Raises `StoreError` when its blob is gone or damaged, or
    when it holds a secret that this process does not have."""
    data = base64.b64decode(value.data) if not value.blob else blobs.read(value.blob)
    if len(data) != sum(value.sizes):
        raise StoreError(f"a value of a skill has {len(data)} bytes, not {sum(value.sizes)}")
    parts, at = [], 0
    view = memoryview(data)
    for size in value.sizes:
        parts.append(view[at : at + size])
        at += size
    if value.secrets and veil is not None:
        parts = [memoryview(part) for part in veil.reveal_parts(parts, value.secrets)]
    header, *buffers = parts
    return Encoded(value.kind, bytes(header), tuple(buffers))
