"""Compressed files and archives: those that are read go on where they were."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .lost import Lost
from .places import here
from .recipes_files import path_of
from .remarks import gone
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_WRITTEN = "it is being written, and what its compressor holds back cannot be kept"
_OPENERS = {"gzip": "GzipFile", "bz2": "BZ2File", "lzma": "LZMAFile"}


@rule("gzip.GzipFile", "bz2.BZ2File", "lzma.LZMAFile")
def _compressed(pickler: Pickler, obj: Any) -> Any:
    library = type(obj).__module__
    if obj.closed:
        return make_closed_compressed, (library, getattr(obj, "name", None))
    if not obj.readable():
        return pickler.lose(obj, _WRITTEN)
    below = obj.fileobj if library == "gzip" else obj._fp
    position = obj.tell()
    source: Any = _path(below)
    if source is None:
        if not isinstance(below, io.BytesIO):
            return pickler.lose(obj, "what it reads from cannot be opened again")
        source = below
    pickler.rebuilt(obj, f"opened again at position {position}")
    return make_compressed, (pickler.root, library, source), position, None, None, fill_compressed


def _path(below: Any) -> str | None:
    """The path of the file that is read, if it is one."""
    try:
        return path_of(below.fileno())
    except (AttributeError, OSError, ValueError):
        return None


@frozen
def make_compressed(root: str, library: str, source: Any) -> Any:
    """A compressed file, read from its beginning."""
    import importlib

    kind: Any = getattr(importlib.import_module(library), _OPENERS[library])
    if isinstance(source, Lost):
        return source
    if not isinstance(source, str):
        source.seek(0)
        return kind(fileobj=source) if library == "gzip" else kind(source)
    if not os.path.exists(source):
        return gone(root, f"{library}.{kind.__name__}", f"the file {source!r} is gone")
    return kind(source)


@frozen
def fill_compressed(made: Any, position: int) -> None:
    """Go on where it was."""
    if not isinstance(made, Lost):
        made.seek(position)


@frozen
def make_closed_compressed(library: str, name: Any) -> Any:
    """One that is closed."""
    import importlib

    kind: Any = getattr(importlib.import_module(library), _OPENERS[library])
    empty = io.BytesIO()
    made = kind(fileobj=empty, filename=name or "", mode="r") if library == "gzip" else kind(empty)
    made.close()
    return made


# -- archives ----------------------------------------------------------------------------------


@rule("zipfile.ZipFile", derived=True)
def _zip(pickler: Pickler, obj: Any) -> Any:
    if obj.mode != "r":
        return pickler.lose(obj, "it is being written, and its directory comes last")
    if obj.fp is None:
        return make_zip, (pickler.root, obj.filename, type(obj)), True, None, None, close_archive
    source = _path(obj.fp) or obj.fp
    how = "opened again"
    if obj.pwd:
        how += "; its password is not kept, call setpassword() again"
    pickler.rebuilt(obj, how)
    return make_zip, (pickler.root, source, type(obj))


@frozen
def make_zip(root: str, source: Any, kind: type) -> Any:
    """A zip archive that is read."""
    import zipfile

    if isinstance(source, Lost):
        return source
    source = here(source) if isinstance(source, str) else source
    if source is None or (isinstance(source, str) and not os.path.exists(source)):
        return gone(root, "zipfile.ZipFile", f"the archive {source!r} is gone")
    made = zipfile.ZipFile(source)
    made.__class__ = kind  # what `zipfile.Path` does to archives
    return made


@frozen
def close_archive(made: Any, _: Any) -> None:
    """It was closed."""
    if not isinstance(made, Lost):
        made.close()


@rule("tarfile.TarFile", derived=True)
def _tar(pickler: Pickler, obj: Any) -> Any:
    if obj.mode != "r":
        return pickler.lose(obj, "it is being written, and its end comes last")
    if obj.closed:
        return make_tar, (pickler.root, obj.name), True, None, None, close_archive
    if getattr(obj, "_stream", False):
        return pickler.lose(obj, "a stream that is read once")
    below = obj.fileobj
    for layer in ("fileobj", "_fp"):  # of the decompressor between
        below = getattr(below, layer, below)
    source = _path(below) or (obj.name if isinstance(obj.name, str) else None)
    if source is None:
        return pickler.lose(obj, "what it reads from cannot be opened again")
    pickler.rebuilt(obj, "opened again, at its first member")
    return make_tar, (pickler.root, source)


@frozen
def make_tar(root: str, source: Any) -> Any:
    """A tar archive that is read."""
    import tarfile

    source = here(source) if isinstance(source, str) else source
    if not isinstance(source, str) or not os.path.exists(source):
        return gone(root, "tarfile.TarFile", f"the archive {source!r} is gone")
    return tarfile.open(source)


@rule("zipfile.ZipExtFile", "tarfile.ExFileObject")
def _member(pickler: Pickler, obj: Any) -> Any:
    return pickler.lose(obj, "a member that is read from an archive; open it again")
