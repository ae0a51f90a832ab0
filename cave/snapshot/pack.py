"""The file of a snapshot.

::

    header     magic, format, number of the pack (its id)             32 bytes
    chunks     of buffers; from 4096 bytes on each begins on a page, so that it can be mapped
    streams    of groups, deflated where that halves them
    nodes      of trees of references; blocks of the manifest's entries
    manifest   JSON, deflated when it is long
    trailer    magic, format, where the manifest is, bytes of the file, SHA-256 of the
               manifest, HMAC-SHA256 over header, trailer and manifest  128 bytes

A file whose trailer does not give its own length was not finished: it is no snapshot.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from cave.errors import SnapshotCorrupt

from .folder import Folder, Input, Output
from .refs import (
    CHECKED,
    DEFLATED,
    NONE,
    Bytes,
    Ref,
    content_of,
    pack_name,
    sha256,
    shrunk,
)

FORMAT = 1
MAGIC = b"cavepack"
PAGE = 4096
DEFLATE = 16 << 10
"""Bytes from which a stream may be deflated."""
PART = 32 << 20
"""Bytes of the parts that long streams are cut into."""
GATHER = 1 << 20

_HEADER = struct.Struct("<8sIIQ8x")
_TRAILER = struct.Struct("<8sII QQQ 32s")
TRAILER = 128


class PackWriter:
    """Appends to a new pack and tells where things lie."""

    def __init__(self, output: Output, number: int) -> None:
        self.number = number
        self.at = 0
        self._output = output
        self._views: list[Bytes] = []
        self._waiting = 0
        self._append(_HEADER.pack(MAGIC, FORMAT, 0, number))

    def _append(self, content: Bytes) -> None:
        self._views.append(content)
        self.at += len(content)
        self._waiting += len(content)
        if self._waiting >= GATHER:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        views, self._views, self._waiting = self._views, [], 0
        if views:
            self._output.write(views)

    def chunk(self, content: Bytes, sha: bytes, xxh: bytes) -> Ref:
        """A chunk of a buffer; it begins on a page when it fills one."""
        if len(content) >= PAGE and self.at % PAGE:
            self._append(bytes(-self.at % PAGE))
        flags = CHECKED if xxh != NONE else 0
        ref = Ref(self.number, self.at, len(content), len(content), flags, sha, xxh)
        self._append(content)
        return ref

    def record(self, content: Bytes, sha: bytes | None = None, *, deflate: int = DEFLATE) -> Ref:
        """Something that is read as a whole: a part of a stream, a node, a block."""
        sha = sha or sha256(content)
        small = shrunk(content) if len(content) >= deflate else None
        stored = content if small is None else small
        flags = 0 if small is None else DEFLATED
        ref = Ref(self.number, self.at, len(stored), len(content), flags, sha, NONE)
        self._append(stored)
        return ref

    def node(self, content: bytes) -> Ref:
        """A node of a tree, mostly hashes: nothing would deflate it."""
        return self.record(content, deflate=len(content) + 1)

    def finish(self, manifest: bytes, key: bytes) -> bytes:
        """Add manifest and trailer, and make the file durable; all of it, where the disk was
        not waited for."""
        at = self.at
        self._append(manifest)
        header = _HEADER.pack(MAGIC, FORMAT, 0, self.number)
        end = at + len(manifest) + TRAILER
        fields = _TRAILER.pack(MAGIC, FORMAT, 0, at, len(manifest), end, sha256(manifest))
        self._append((fields + _signature(key, header, fields, manifest)).ljust(TRAILER, b"\0"))
        self.flush()
        return self._output.finish()


def _signature(key: bytes, header: bytes, fields: bytes, manifest: bytes) -> bytes:
    return hmac.digest(key, b"cave snapshot\0" + header + fields + manifest, "sha256")


def finished(pack: Input) -> bool:
    """Whether the writer of a file came to its end."""
    return _fields(pack) is not None


def _fields(pack: Input) -> tuple[int, int, int, bytes, bytes] | None:
    """Format, place and length of the manifest, its hash, the trailer; None when torn."""
    if pack.size < _HEADER.size + TRAILER:
        return None
    trailer = pack.read(pack.size - TRAILER, TRAILER)
    if len(trailer) != TRAILER:
        return None
    magic, format, _, at, length, end, sha = _TRAILER.unpack_from(trailer)
    if magic != MAGIC or end != pack.size or at + length + TRAILER != end:
        return None
    return format, at, length, sha, trailer


def read_manifest(pack: Input, key: bytes) -> bytes:
    """The manifest, after its signature. Raises `SnapshotCorrupt`."""
    fields = _fields(pack)
    if fields is None:
        raise SnapshotCorrupt(f"snapshot {pack.name!r} is cut short: it was never finished")
    format, at, length, sha, trailer = fields
    if format > FORMAT:
        raise SnapshotCorrupt(
            f"snapshot {pack.name!r} has format {format}: written by a newer cave; upgrade with: "
            f"pip install -U cave-runtime"
        )
    header, manifest = pack.read(0, _HEADER.size), pack.read(at, length)
    expected = _signature(key, header, trailer[: _TRAILER.size], manifest)
    signed = trailer[_TRAILER.size : _TRAILER.size + 32]
    padding = trailer[_TRAILER.size + 32 :]
    if not hmac.compare_digest(expected, signed) or any(padding):
        raise SnapshotCorrupt(
            f"the manifest of snapshot {pack.name!r} is damaged or not signed with this home's "
            f"key: it is not used"
        )
    if sha256(manifest) != sha:
        raise SnapshotCorrupt(f"the manifest of snapshot {pack.name!r} differs from its hash")
    if _HEADER.unpack(header)[3] != _number(pack):
        raise SnapshotCorrupt(f"{pack.name!r} holds another snapshot than it is called for")
    return manifest


def _number(pack: Input) -> int | None:
    from .refs import pack_number

    return pack_number(pack.name.rpartition(".")[0])


class Packs:
    """The packs that one piece of work reads, opened at their first use."""

    def __init__(self, folder: Folder, damaged: Callable[[Ref], None] | None = None) -> None:
        self._folder = folder
        self._damaged = damaged
        self._open: dict[int, Input] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def pack(self, number: int) -> Input:
        """Raises `FileNotFoundError`."""
        pack = self._open.get(number)
        if pack is None:
            pack = self._open[number] = self._folder.open(pack_name(number))
        return pack

    def read(self, ref: Ref) -> Bytes:
        """What a reference names, checked by its SHA-256. Raises `SnapshotCorrupt`."""
        try:
            pack = self.pack(ref.pack)
            within(pack, ref.at, ref.stored)
            return content_of(ref, pack.read(ref.at, ref.stored))
        except FileNotFoundError:
            raise SnapshotCorrupt(missing(ref)) from None
        except (OSError, ValueError) as fault:
            if self._damaged is not None:
                self._damaged(ref)
            raise SnapshotCorrupt(
                f"{pack_name(ref.pack)}.pack is damaged at byte {ref.at}: {fault}"
            ) from fault

    def close(self) -> None:
        for pack in self._open.values():
            pack.close()
        self._open.clear()


def within(pack: Input, at: int, length: int) -> None:
    """Raises `ValueError` unless that range lies in the pack."""
    if at + length > pack.size:
        raise ValueError(f"the file ends at byte {pack.size}")


def missing(ref: Ref) -> str:
    """The sentence for a pack that is not there."""
    return f"{pack_name(ref.pack)}.pack is missing"


def parts(stream: Bytes) -> Sequence[Bytes]:
    """A stream in parts that a reference can hold."""
    view = memoryview(stream)
    return [view[at : at + PART] for at in range(0, len(view), PART)]
