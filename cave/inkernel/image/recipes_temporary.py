"""Temporary files and folders, and mapped memory: found again, never faked.

A kernel that is killed leaves them behind, so mostly they are still there. Those without a
name are carried by content.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .lost import Lost
from .places import here
from .remarks import gone
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_living: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""What removes a temporary file or folder at its end, by path: who comes back in its place does."""

# -- tempfile ------------------------------------------------------------------------------------


@rule("tempfile._TemporaryFileWrapper")
def _named(pickler: Pickler, obj: Any) -> Any:
    closer = obj._closer
    _living[obj.name] = closer
    when = {"delete": closer.delete, "on_close": getattr(closer, "delete_on_close", closer.delete)}
    if not obj.file.closed:
        pickler.rebuilt(obj, f"the file {obj.name!r} again, if it is still there")
    return make_named_temporary, (obj.file, obj.name, when)


@frozen
def make_named_temporary(file: Any, name: str, when: dict[str, bool]) -> Any:
    """The wrapper that removes a temporary file when it is closed."""
    import sys
    import tempfile

    if isinstance(file, Lost):
        return file
    kind: Any = tempfile._TemporaryFileWrapper
    if (before := _living.get(name)) is not None:
        before.delete = False
    if sys.version_info >= (3, 12):
        made = kind(file, name, delete=when["delete"], delete_on_close=when["on_close"])
    else:
        made = kind(file, name, delete=when["delete"])
    if file.closed:
        made._closer.close_called = True
        made.close()
    return made


@rule("tempfile.SpooledTemporaryFile", derived=True)
def _spooled(_: Pickler, obj: Any) -> Any:
    return make_spooled, (type(obj),), dict(obj.__dict__), None, None, fill_spooled


@frozen
def make_spooled(kind: Any) -> Any:
    """A temporary file that is in memory as long as it is small."""
    return kind.__new__(kind)


@frozen
def fill_spooled(made: Any, state: dict[str, Any]) -> None:
    """Give it its file, in memory or not."""
    made.__dict__.update(state)


@rule("tempfile.TemporaryDirectory", derived=True)
def _directory(pickler: Pickler, obj: Any) -> Any:
    alive = obj._finalizer.alive
    _living[obj.name] = obj
    if alive:
        pickler.rebuilt(obj, f"the folder {obj.name!r} again, if it is still there")
    flags = {"delete": getattr(obj, "_delete", True), "alive": alive,
             "ignore": obj._ignore_cleanup_errors}  # fmt: skip
    return make_temporary_directory, (pickler.root, type(obj), obj.name, flags)


@frozen
def make_temporary_directory(root: str, kind: Any, name: str, flags: dict[str, bool]) -> Any:
    """A temporary folder that is there already."""
    import shutil
    import tempfile

    if flags["alive"] and not os.path.isdir(name):
        return gone(root, "tempfile.TemporaryDirectory", f"the folder {name!r} is gone")
    if (before := _living.get(name)) is not None:
        before._finalizer.detach()
    made = kind(ignore_cleanup_errors=flags["ignore"])
    shutil.rmtree(made.name, ignore_errors=True)
    made._finalizer.detach()
    made.name = name
    if hasattr(made, "_delete"):
        made._delete = flags["delete"]
    made._finalizer = tempfile._weakref.finalize(  # type: ignore[attr-defined]
        made, made._cleanup, name, warn_message=f"Implicitly cleaning up {made!r}",
        ignore_errors=flags["ignore"], **({"delete": flags["delete"]} if "delete" in
        made._cleanup.__func__.__code__.co_varnames else {}),
    )  # fmt: skip
    if not flags["alive"]:
        made._finalizer.detach()
    return made


# -- mapped memory -------------------------------------------------------------------------------


@rule("mmap.mmap")
def _mmap(pickler: Pickler, obj: Any) -> Any:
    import mmap

    if obj.closed:
        return pickler.lose(obj, "it is closed")
    position = obj.tell()
    found = _mapping(obj)
    if found is None:
        return pickler.lose(obj, "what it maps cannot be told")
    path, offset, shared, writable = found
    if path is None:
        pickler.rebuilt(obj, "new memory with the same content; no other process shares it")
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        return make_anonymous_map, (obj[:], flags), position, None, None, fill_map
    if not shared and writable:
        return pickler.lose(obj, "a private copy of a file's pages")
    pickler.rebuilt(obj, f"{path!r} mapped again")
    args = (pickler.root, path, len(obj), offset, writable)
    return make_file_map, args, position, None, None, fill_map


def _mapping(obj: Any) -> tuple[str | None, int, bool, bool] | None:
    """Path, offset, whether it is shared and writable: the kernel's table of mappings knows."""
    address = _address(obj)
    if address is None:
        return None
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            span, flags, offset, device, inode, *path = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                name = path[0].rstrip("\n") if path else ""
                anonymous = not name or name.startswith(("/dev/zero", "[", "/memfd:"))
                real = None if anonymous else name
                if real is not None and not _is(real, device, int(inode)):
                    return None
                at = int(offset, 16) + address - start
                return real, at, flags[3] == "s", flags[1] == "w"
    return None


def _is(path: str, device: str, inode: int) -> bool:
    try:
        about = os.stat(path)
    except OSError:
        return False
    major, minor = (int(part, 16) for part in device.split(":"))
    return about.st_ino == inode and os.makedev(major, minor) == about.st_dev


def _address(obj: Any) -> int | None:
    import ctypes

    pointer, size = ctypes.c_void_p(), ctypes.c_ssize_t()
    read = ctypes.pythonapi.PyObject_AsReadBuffer
    read.argtypes = [ctypes.py_object, ctypes.POINTER(ctypes.c_void_p),
                     ctypes.POINTER(ctypes.c_ssize_t)]  # fmt: skip
    read(obj, ctypes.byref(pointer), ctypes.byref(size))
    return pointer.value


@frozen
def make_anonymous_map(content: bytes, flags: int) -> Any:
    """Memory of no file."""
    import mmap

    made = mmap.mmap(-1, len(content), flags=flags)
    made.write(content)
    return made


@frozen
def make_file_map(root: str, path: str, length: int, offset: int, writable: Any) -> Any:
    """A file's pages."""
    import mmap

    path = here(path)
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    try:
        fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    except OSError as exc:
        return gone(root, "mmap.mmap", f"{path!r} cannot be mapped again: {exc.strerror}")
    try:
        if os.fstat(fd).st_size < offset + length:
            return gone(root, "mmap.mmap", f"the file {path!r} is shorter than what was mapped")
        return mmap.mmap(fd, length, access=access, offset=offset)
    finally:
        os.close(fd)


@frozen
def fill_map(made: Any, position: int) -> None:
    """Go to the position that it had."""
    if not isinstance(made, Lost):
        made.seek(position)


@rule("posix.ScandirIterator")
def _scandir(pickler: Pickler, obj: Any) -> Any:
    return pickler.lose(obj, "a folder that is being listed; list it again")
