"""Blobs by the SHA-256 of their content: a folder by default, any fsspec file system else.

In a folder a blob is written under a temporary name, synced, renamed to its key and the
folder synced: a key that was given is durable, and no half blob ever has a key's name. Other
file systems get a finished file at once (`put_file`), which object stores show whole or not.
Two levels of folders (`ab/cd/abcd...`) keep each of them short.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from cave import failpoints
from cave.errors import StoreError
from cave.store.disk import explain_os, make_folder, sync_folder

CHUNK = 1 << 20
"""Bytes read or written at a time."""

STALE = 86400.0
"""Seconds after which a temporary file is what a dead process left."""

_KEY = re.compile(r"[0-9a-f]{64}")


class FolderBlobs:
    """Blobs in a folder, or below a URL that fsspec knows (`BlobStore`)."""

    def __init__(self, url_or_path: str | Path) -> None:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(str(url_or_path))
        self._folder = Path(self._root) if isinstance(self._fs, LocalFileSystem) else None

    def put(self, chunks: Iterable[bytes]) -> str:
        """Write a blob; the key is given once it is durable. Memory stays flat."""
        try:
            if self._folder is not None:
                return self._put_in_folder(self._folder, chunks)
            with tempfile.NamedTemporaryFile() as file:
                key = _copy(chunks, file)
                file.flush()
                self._fs.makedirs(self._at(key).rpartition("/")[0], exist_ok=True)
                self._fs.put_file(file.name, self._at(key))
                return key
        except OSError as fault:
            raise explain_os(fault, self._root) from fault

    def _put_in_folder(self, folder: Path, chunks: Iterable[bytes]) -> str:
        temporary = folder / "tmp" / uuid.uuid4().hex
        make_folder(temporary.parent)
        try:
            with temporary.open("xb") as file:
                key = _copy(chunks, file)
                size = file.tell()
                file.flush()
                os.fsync(file.fileno())
            final = Path(self._at(key))
            make_folder(final.parent)
            if not _holds(final, size):
                failpoints.hit("blob.before_rename")
                temporary.replace(final)
            sync_folder(final.parent)  # also when another process renamed it just now
            return key
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, key: str) -> bytes:
        try:
            content: bytes = self._fs.cat_file(self._at(key))
        except FileNotFoundError as fault:
            raise StoreError(f"blob {key} is missing in {self._root!r}") from fault
        except OSError as fault:
            raise explain_os(fault, self._root) from fault
        if hashlib.sha256(content).hexdigest() != key:
            raise StoreError(f"blob {key} in {self._root!r} is damaged: it differs from its hash")
        return content

    def keys(self) -> Iterator[str]:
        try:
            found = self._fs.find(self._root)
        except FileNotFoundError:
            return
        for path in found:
            name = str(path).rpartition("/")[2]
            if _KEY.fullmatch(name):
                yield name

    def delete(self, key: str) -> None:
        try:
            self._fs.rm_file(self._at(key))
        except FileNotFoundError:
            return
        except OSError as fault:
            raise explain_os(fault, self._root) from fault

    def sweep(self, *, older: float = STALE) -> int:
        """Remove temporary files that dead processes left; gives how many."""
        if self._folder is None:
            return 0
        removed = 0
        for path in (self._folder / "tmp").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > older:
                    path.unlink()
                    removed += 1
        return removed

    def _at(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} is not the key of a blob (64 hex digits)")
        return f"{self._root}/{key[:2]}/{key[2:4]}/{key}"


def _copy(chunks: Iterable[bytes], file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()


def _holds(path: Path, size: int) -> bool:
    """Whether the blob is there; one that was cut short is written again."""
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
