"""Values of skills in the journal: few bytes in the event itself, many in a blob."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

from cave.errors import StoreError
from cave.events import StoredValue
from cave.ports import BlobStore, Encoded

INLINE = 16 << 10
"""Bytes up to which a value is kept in its event."""
_SLICE = 16 << 20


async def store(value: Encoded, blobs: BlobStore) -> StoredValue:
    """Keep a value; a blob is durable before its key is given. Raises `StoreError`."""
    parts = [memoryview(part).cast("B") for part in (value.header, *value.buffers)]
    sizes = tuple(part.nbytes for part in parts)
    if sum(sizes) <= INLINE:
        data = base64.b64encode(b"".join(parts)).decode()
        return StoredValue(value.kind, sizes, data=data)
    return StoredValue(value.kind, sizes, blob=await asyncio.to_thread(blobs.put, _slices(parts)))


def _slices(parts: list[memoryview]) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, part.nbytes, _SLICE):
            yield bytes(part[start : start + _SLICE])


def load(value: StoredValue, blobs: BlobStore) -> Encoded:
    """The value as it was. Blocks. Raises `StoreError` when its blob is gone or damaged."""
    data = base64.b64decode(value.data) if not value.blob else blobs.read(value.blob)
    if len(data) != sum(value.sizes):
        raise StoreError(f"a value of a skill has {len(data)} bytes, not {sum(value.sizes)}")
    parts, at = [], 0
    view = memoryview(data)
    for size in value.sizes:
        parts.append(view[at : at + size])
        at += size
    header, *buffers = parts
    return Encoded(value.kind, bytes(header), tuple(buffers))
