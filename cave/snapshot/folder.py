"""Where packs lie: a local folder, or anything that fsspec knows.

A pack is called `ID.pack` while its snapshot can be read, and `ID.data` when only newer
snapshots (or a fork's) still need what lies in it. Packs are written once, under a name that
nobody had, and never again; only their owner removes them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from cave import failpoints
from cave.store.disk import make_folder, sync_file, sync_folder

from .refs import Bytes, pack_number

SUFFIXES = (".pack", ".data")
STAMP = "retired"
"""A file that changes whenever something is removed: what was known of packs is void then."""
FLUSH = 64 << 20
"""Bytes after which the disk is set to work while more is written."""
VECTORS = 512
SMALL = 16 << 10
"""Bytes up to which a pack need not be waited for."""


class Input(Protocol):
    """A pack that is read."""

    name: str
    size: int

    def read(self, at: int, length: int) -> bytes: ...
    def piece(self, at: int, length: int) -> tuple[int, int]:
        """A descriptor, and the offset in it, where that range can be read or mapped."""
        ...

    def close(self) -> None: ...


class Output(Protocol):
    """A pack that is written."""

    def write(self, views: Sequence[Bytes]) -> None: ...
    def finish(self) -> bytes:
        """Make it durable under its name; of one that is not waited for, give its content."""
        ...

    def abort(self) -> None: ...


class Folder(Protocol):
    """The packs of one session."""

    at: str

    def files(self) -> Mapping[str, str]:
        """File name by pack's id; the `.pack` where both are there."""
        ...

    def create(self, id: str, *, wait: bool = True) -> Output:
        """A new pack; without `wait` the disk is not waited for where it stays small.

        Raises `FileExistsError`.
        """
        ...

    def open(self, id: str) -> Input:
        """Raises `FileNotFoundError`."""
        ...

    def has(self, id: str) -> bool:
        """Whether that snapshot is there and was not retired."""
        ...

    def retire(self, id: str) -> None: ...
    def remove(self, id: str) -> None: ...
    def link(self, other: Folder, id: str) -> None: ...
    def stat(self, id: str) -> tuple[int, float]:
        """Bytes on the disk, and seconds since it was written."""
        ...

    def stamp(self, *, new: bool = False) -> bytes: ...


class LocalFolder:
    """Packs in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = str(path)

    def files(self) -> Mapping[str, str]:
        try:
            names = [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return {}
        return by_id(names)

    def create(self, id: str, *, wait: bool = True) -> Output:
        make_folder(self.path)
        if (self.path / f"{id}.data").exists():
            raise FileExistsError(id)
        return _LocalOutput(self.path / f"{id}.pack", wait=wait)

    def open(self, id: str) -> Input:
        return _LocalInput(self.path_of(id))

    def path_of(self, id: str) -> Path:
        """Where a pack is, under either name."""
        paths = [self.path / f"{id}{suffix}" for suffix in (*SUFFIXES, *SUFFIXES)]
        for path in paths:  # twice, since it may be renamed between two looks
            if path.exists():
                return path
        return paths[0]

    def has(self, id: str) -> bool:
        return (self.path / f"{id}.pack").exists()

    def retire(self, id: str) -> None:
        (self.path / f"{id}.pack").rename(self.path / f"{id}.data")

    def remove(self, id: str) -> None:
        self.path_of(id).unlink(missing_ok=True)

    def link(self, other: Folder, id: str) -> None:
        make_folder(self.path)
        target = self.path / f"{id}.data"
        if self.has(id):
            raise FileExistsError(id)
        target.unlink(missing_ok=True)  # of a fork that was cut short
        if isinstance(other, LocalFolder):
            with contextlib.suppress(OSError):  # another file system, or one without links
                target.hardlink_to(other.path_of(id))
                sync_file(target)  # the other's journal may hold what its disk does not yet
                return
        copy(other.open(id), _LocalOutput(target))

    def stat(self, id: str) -> tuple[int, float]:
        found = self.path_of(id).stat()
        return found.st_blocks * 512, time.time() - found.st_mtime

    def stamp(self, *, new: bool = False) -> bytes:
        path = self.path / STAMP
        if new:
            path.write_bytes(uuid.uuid4().bytes)
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        return b""

    def sync(self) -> None:
        """Make names durable."""
        sync_folder(self.path)


class _LocalInput:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.size = os.fstat(self._file).st_size

    def read(self, at: int, length: int) -> bytes:
        return read_at(self._file, at, length)

    def piece(self, at: int, length: int) -> tuple[int, int]:
        return self._file, at

    def close(self) -> None:
        os.close(self._file)


class _LocalOutput:
    """A file that is made under its last name; until it has its trailer nobody takes it."""

    def __init__(self, path: Path, *, wait: bool = True) -> None:
        self._path = path
        self._small: bytearray | None = None if wait else bytearray()
        """All of it, while it is small and need not be waited for."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o400)
        self._written = self._flushed = 0
        self._flusher: ThreadPoolExecutor | None = None
        self._flushes: list[Future[None]] = []

    def write(self, views: Sequence[Bytes]) -> None:
        waiting = [memoryview(view) for view in views]
        self._hold(waiting)
        while waiting:
            done = os.writev(self._file, waiting[:VECTORS])
            self._written += done
            waiting = rest(waiting, done)
            failpoints.hit("snapshot.mid_write")
        if self._written - self._flushed >= FLUSH:
            self._flush()

    def _hold(self, views: Sequence[memoryview]) -> None:
        if self._small is not None:
            if len(self._small) + sum(map(len, views)) > SMALL:
                self._small = None
                return
            for view in views:
                self._small += view

    def _flush(self) -> None:
        """Let the disk begin, beside the hashing; a fault of it is raised at the end."""
        self._flusher = self._flusher or ThreadPoolExecutor(1, "cave-flush")
        self._flushes.append(self._flusher.submit(os.fdatasync, self._file))
        self._flushed = self._written

    def finish(self) -> bytes:
        for flush in self._flushes:
            flush.result()
        failpoints.hit("snapshot.before_sync")
        if self._small is None:
            os.fsync(self._file)
        failpoints.hit("snapshot.after_sync")
        if self._small is None:
            sync_folder(self._path.parent)
        self._close()
        return bytes(self._small or b"")

    def abort(self) -> None:
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._flusher is not None:
            self._flusher.shutdown()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class RemoteFolder:
    """Packs below a URL: whole objects are put at once, ranges of them are read."""

    def __init__(self, fs: Any, root: str) -> None:
        self.fs = fs
        self.at = root.rstrip("/")

    def files(self) -> Mapping[str, str]:
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.at, detail=False)
        except FileNotFoundError:
            return {}
        return by_id([str(path).rpartition("/")[2] for path in found])

    def create(self, id: str, *, wait: bool = True) -> Output:
        if id in self.files():
            raise FileExistsError(id)
        return _RemoteOutput(self.fs, f"{self.at}/{id}.pack")

    def open(self, id: str) -> Input:
        return _RemoteInput(self.fs, self.path_of(id))

    def path_of(self, id: str) -> str:
        """Where a pack is, under either name."""
        paths = [f"{self.at}/{id}{suffix}" for suffix in SUFFIXES]
        return next((path for path in paths if self.fs.exists(path)), paths[0])

    def has(self, id: str) -> bool:
        return bool(self.fs.exists(f"{self.at}/{id}.pack"))

    def retire(self, id: str) -> None:
        self.fs.cp_file(f"{self.at}/{id}.pack", f"{self.at}/{id}.data")
        self.fs.rm_file(f"{self.at}/{id}.pack")

    def remove(self, id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path_of(id))

    def link(self, other: Folder, id: str) -> None:
        target = f"{self.at}/{id}.data"
        if self.has(id):
            raise FileExistsError(id)
        if isinstance(other, RemoteFolder) and type(other.fs) is type(self.fs):
            self.fs.makedirs(self.at, exist_ok=True)
            self.fs.cp_file(other.path_of(id), target)
        else:
            copy(other.open(id), _RemoteOutput(self.fs, target))

    def stat(self, id: str) -> tuple[int, float]:
        info = self.fs.info(self.path_of(id))
        made = info.get("created") or info.get("LastModified") or info.get("mtime") or time.time()
        seconds = made.timestamp() if hasattr(made, "timestamp") else float(made)
        return int(info["size"]), time.time() - seconds

    def stamp(self, *, new: bool = False) -> bytes:
        path = f"{self.at}/{STAMP}"
        if new:
            self.fs.pipe_file(path, uuid.uuid4().bytes)
        try:
            return bytes(self.fs.cat_file(path))
        except FileNotFoundError:
            return b""


class _RemoteInput:
    def __init__(self, fs: Any, path: str) -> None:
        self.name = path.rpartition("/")[2]
        self._fs, self._path = fs, path
        self.size = int(fs.info(path)["size"])
        self._copy: int | None = None
        self._end = 0

    def read(self, at: int, length: int) -> bytes:
        return bytes(self._fs.cat_file(self._path, start=at, end=min(at + length, self.size)))

    def piece(self, at: int, length: int) -> tuple[int, int]:
        """A range is fetched into a file without a name, where the kernel can map it."""
        if self._copy is None:
            self._copy = scratch(self.name)
        begin = self._end
        for part in range(at, at + length, FLUSH):
            content = self.read(part, min(FLUSH, at + length - part))
            write_at(self._copy, begin + part - at, content)
        self._end = (begin + length + 4095) & ~4095
        return self._copy, begin

    def close(self) -> None:
        if self._copy is not None:
            os.close(self._copy)


class _RemoteOutput:
    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._file = tempfile.NamedTemporaryFile(prefix="cave-pack")  # noqa: SIM115 - closed below

    def write(self, views: Sequence[Bytes]) -> None:
        for view in views:
            self._file.write(view)
        failpoints.hit("snapshot.mid_write")

    def finish(self) -> bytes:
        self._file.flush()
        failpoints.hit("snapshot.before_sync")
        self._fs.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        self._fs.put_file(self._file.name, self._path)
        failpoints.hit("snapshot.after_sync")
        self._file.close()
        return b""

    def abort(self) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path)


def folder_at(at: str | Path) -> Folder:
    """The folder at a path or URL."""
    if isinstance(at, Path) or "://" not in at:
        return LocalFolder(Path(at))
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    fs, root = fsspec.core.url_to_fs(at)
    return LocalFolder(Path(root)) if isinstance(fs, LocalFileSystem) else RemoteFolder(fs, root)


def by_id(names: Sequence[str]) -> Mapping[str, str]:
    """Names of packs by their ids."""
    found: dict[str, str] = {}
    for name in sorted(names):  # .data before .pack
        stem, dot, suffix = name.rpartition(".")
        if dot + suffix in SUFFIXES and pack_number(stem) is not None:
            found[stem] = name
    return found


def rest(views: list[memoryview], done: int) -> list[memoryview]:
    """What is left of `views` after `done` bytes."""
    for index, view in enumerate(views):
        if done < view.nbytes:
            return [view[done:], *views[index + 1 :]] if done else views[index:]
        done -= view.nbytes
    return []


def read_at(file: int, at: int, length: int) -> bytes:
    """`length` bytes at `at`, or fewer at the end."""
    parts = []
    while length > 0 and (part := os.pread(file, length, at)):
        parts.append(part)
        at, length = at + len(part), length - len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def write_at(file: int, at: int, content: Bytes) -> None:
    """All of `content` at `at`."""
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


def copy(source: Input, target: Output) -> None:
    """All of a pack into another."""
    try:
        for at in range(0, source.size, FLUSH):
            target.write([source.read(at, FLUSH)])
        target.finish()
    except BaseException:
        target.abort()
        raise
    finally:
        source.close()


def scratch(name: str) -> int:
    """A descriptor of a file that no folder has."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"cave-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
