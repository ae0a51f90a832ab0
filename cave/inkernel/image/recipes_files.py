"""Open files: reopened where they are, at their position, and never truncated.

A text file is a wrapper around a buffer around a raw file; each layer has its rule, so that
`f` and `f.buffer` belong together afterwards as well. The raw file knows what the file was
like; when it is another one at reading, a note says so.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .lost import Lost
from .places import here
from .remarks import gone, remark
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_HEAD = 64 << 10
_CONTENT = 64 << 20
"""Bytes of a deleted file that are carried along."""
_STANDARD = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
_inner: weakref.WeakSet[Any] = weakref.WeakSet()
"""Layers of files whose outermost layer has its note already."""

Facts = tuple[int, int, bytes]
"""Size, time of the last change, hash of the first and last bytes."""


# -- text ------------------------------------------------------------------------------------


@rule("_io.TextIOWrapper")
def _text(pickler: Pickler, obj: io.TextIOWrapper) -> Any:
    if (name := _standard(obj)) is not None:
        return standard_stream, (name,)
    buffer = getattr(obj, "buffer", None)
    if buffer is None:
        return pickler.lose(obj, "its buffer was detached")
    if obj.closed:
        about = {"mode": getattr(obj, "mode", None), "encoding": obj.encoding}
        return make_closed_file, ("text", _name_of(obj), about)
    if (reason := _refusal(obj)) is not None:
        return pickler.lose(obj, reason)
    position = _text_position(obj)
    if position is None:
        return pickler.lose(obj, "its position in the middle of a line cannot be told")
    _say(pickler, obj, f"reopened at position {position}")
    settings = {
        "encoding": obj.encoding,
        "errors": obj.errors,
        "newline": _newline(obj, position),
        "line_buffering": obj.line_buffering,
        "write_through": obj.write_through,
    }
    state = (position, getattr(obj, "mode", None))
    return make_text_file, (buffer, settings), state, None, None, fill_text_file


def _newline(obj: io.TextIOWrapper, position: int) -> str | None:
    """The `newline` that it was opened with: no attribute, but the garbage collector sees it."""
    import gc

    obj.seek(0)  # nothing that was read ahead is among what it sees
    texts = [text for text in gc.get_referents(obj) if type(text) is str]
    obj.seek(position)
    return texts[1] if len(texts) == 3 else None  # encoding, newline, errors


def _text_position(obj: io.TextIOWrapper) -> int | None:
    """Where the next character is read or written, as `tell` gives it (it flushes, too)."""
    if not obj.seekable():
        return None
    try:
        return obj.tell()
    except OSError:  # disabled by next(): iteration reads ahead
        return _iterated_position(obj)


def _iterated_position(obj: Any) -> int | None:
    """The byte at which an iteration stands; the file stays there, and can tell it again.

    What was read ahead is taken out, found again at the end of the bytes that it came from,
    and the file set back to its beginning.
    """
    buffer = obj.buffer
    end = buffer.tell()
    ahead = []
    while (char := obj.read(1)) and buffer.tell() == end:
        ahead.append(char)
    text = "".join(ahead)
    start = max(0, end - 4 * len(text) - 8)
    buffer.seek(start)
    seen = buffer.read(end - start)
    obj.seek(0, os.SEEK_END)
    next(obj, None)  # at its end, `tell` is enabled again
    for cut in range(min(4, len(seen) + 1)):
        left = seen[: len(seen) - cut]
        for newline in ("\n", "\r\n", "\r"):
            candidate = text.replace("\n", newline).encode(obj.encoding, obj.errors or "strict")
            if left.endswith(candidate) and (not cut or _unfinished(seen[-cut:])):
                position = end - cut - len(candidate)
                obj.seek(position)
                return int(position)
    return None


def _unfinished(data: bytes) -> bool:
    return data[:1] == b"\r" or data[0] >= 0x80


@frozen
def make_text_file(buffer: Any, settings: dict[str, Any]) -> Any:
    """A text file around its buffer."""
    if isinstance(buffer, Lost):
        return buffer
    return io.TextIOWrapper(buffer, **settings)


@frozen
def fill_text_file(made: Any, state: tuple[int, str | None]) -> None:
    """Go to its position."""
    if isinstance(made, Lost):
        return
    position, mode = state
    if mode is not None:
        made.mode = mode
    made.seek(position)


# -- binary ------------------------------------------------------------------------------


@rule("_io.BufferedReader", "_io.BufferedWriter", "_io.BufferedRandom")
def _buffered(pickler: Pickler, obj: Any) -> Any:
    if (name := _standard(obj)) is not None:
        return standard_stream, (name,)
    kind = type(obj).__name__
    raw = getattr(obj, "raw", None)
    if raw is None:
        return pickler.lose(obj, "its raw file was detached")
    if obj.closed:
        return make_closed_file, (kind, _name_of(obj), {})
    if (reason := _refusal(obj)) is not None:
        return pickler.lose(obj, reason)
    if obj.writable():
        obj.flush()
    if not obj.seekable():
        return pickler.lose(obj, "it has no position to come back to")
    position = obj.tell()
    _say(pickler, obj, f"reopened at position {position}")
    return make_buffered, (kind, raw), position, None, None, fill_position


@frozen
def make_buffered(kind: str, raw: Any) -> Any:
    """A buffer around its raw file."""
    if isinstance(raw, Lost):
        return raw
    made: Any = getattr(io, kind)(raw)
    return made


@frozen
def fill_position(made: Any, position: int) -> None:
    """Go to the position that it had."""
    if not isinstance(made, Lost):
        made.seek(position)


@rule("_io.FileIO")
def _raw(pickler: Pickler, obj: io.FileIO) -> Any:
    if (name := _standard(obj)) is not None:
        return standard_stream, (name,)
    if obj.closed:
        return make_closed_file, ("FileIO", _name_of(obj), {"mode": obj.mode})
    if (reason := _refusal(obj)) is not None:
        return pickler.lose(obj, reason)
    fd = obj.fileno()
    path = path_of(fd)
    if path is None:
        return _deleted(pickler, obj)
    position = os.lseek(fd, 0, os.SEEK_CUR) if obj.seekable() else 0
    _say(pickler, obj, f"reopened at position {position}")
    given = obj.name if isinstance(obj.name, str | bytes) else path
    args = (pickler.root, path, given, obj.mode, _facts(path))
    return make_raw_file, args, position, None, None, fill_position


def _deleted(pickler: Pickler, obj: io.FileIO) -> Any:
    fd = obj.fileno()
    if os.fstat(fd).st_size > _CONTENT:
        return pickler.lose(obj, "the file was deleted, and it is too large to be carried along")
    try:
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            content = file.read()
    except OSError:
        return pickler.lose(obj, "the file was deleted, and it cannot be read")
    _say(pickler, obj, "a new file without a name, with the same content", always=True)
    position = os.lseek(fd, 0, os.SEEK_CUR)
    return make_nameless_file, (content, obj.mode), position, None, None, fill_position


@frozen
def make_raw_file(root: str, path: str, given: Any, mode: str, facts: Facts | None) -> Any:
    """A file that is there already, opened again without truncating or making it."""
    path, given = here(path), here(given) if isinstance(given, str) else given
    if not os.path.exists(path):
        return gone(root, "file", f"the file {path!r} is gone")
    if facts is not None and (now := _facts(path)) is not None and now != facts:
        if now[0] != facts[0]:
            how = f"has {now[0]:,} bytes, and had {facts[0]:,}"
        else:
            how = "has other content"
        if now[0] != facts[0] or now[2] != facts[2]:
            remark("changed", root, "file", f"{path!r} {how} when the snapshot was taken")
    try:
        made: Any = io.FileIO(path, mode.replace("b", ""), opener=_open_as_it_is)
    except OSError as exc:
        return gone(root, "file", f"the file {path!r} cannot be opened: {exc.strerror}")
    made.name = given
    return made


def _open_as_it_is(path: str, flags: int) -> int:
    return os.open(path, flags & ~(os.O_TRUNC | os.O_CREAT | os.O_EXCL) | os.O_CLOEXEC)


@frozen
def make_nameless_file(content: bytes, mode: str) -> Any:
    """A file that has no name any more."""
    import tempfile

    number, path = tempfile.mkstemp()
    try:
        with open(number, "wb") as file:
            file.write(content)
        made: Any = io.FileIO(path, mode.replace("b", ""), opener=_open_as_it_is)
    finally:
        os.unlink(path)
    return made


@frozen
def make_closed_file(kind: str, name: Any, about: dict[str, Any]) -> Any:
    """A file that is closed, and stays so."""
    reads = kind in ("BufferedReader", "BufferedRandom")
    raw = io.FileIO(os.devnull, (about.get("mode") or "rb").replace("b", "") if kind == "FileIO"
                    else "r+" if kind == "BufferedRandom" else "r" if reads else "w",
                    opener=_open_as_it_is)  # fmt: skip
    made: Any = raw
    if kind == "text":
        made = io.TextIOWrapper(io.BufferedWriter(raw), encoding=about["encoding"])
        if about["mode"] is not None:
            made.mode = about["mode"]
    elif kind != "FileIO":
        made = getattr(io, kind)(raw)
    raw.name = name
    made.close()
    return made


# -- of all of them ------------------------------------------------------------------------


def _say(pickler: Pickler, obj: Any, how: str, *, always: bool = False) -> None:
    if obj not in _inner or always:
        pickler.rebuilt(obj, how)
    for layer in ("buffer", "raw"):
        below = getattr(obj, layer, None)
        if isinstance(below, io.FileIO | io.BufferedReader | io.BufferedWriter | io.BufferedRandom):
            _inner.add(below)


def _name_of(obj: Any) -> Any:
    name = getattr(obj, "name", None)
    return name if isinstance(name, str | bytes) else None


def _refusal(obj: Any) -> str | None:
    """Why a file cannot be reopened, judged by what its descriptor is."""
    raw = obj
    for layer in ("buffer", "raw"):
        raw = getattr(raw, layer, raw)
    if not isinstance(raw, io.FileIO):
        return None
    mode = os.fstat(raw.fileno()).st_mode
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISFIFO(mode):
        return "a pipe ends with its process"
    if stat.S_ISSOCK(mode):
        return "a connection ends with its process"
    if stat.S_ISCHR(mode) and not raw.isatty() and path_of(raw.fileno()) is not None:
        return None
    return "a terminal or device cannot be opened again"


def path_of(fd: int) -> str | None:
    """The path under which an open file can be found, None when it was deleted."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    try:
        there, here = os.stat(path), os.fstat(fd)
    except OSError:
        return None
    return path if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) else None


def _facts(path: str) -> Facts | None:
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            return None
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read(_HEAD))
            if about.st_size > 2 * _HEAD:
                file.seek(-_HEAD, os.SEEK_END)
                digest.update(file.read(_HEAD))
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns, digest.digest()


# -- the standard streams ----------------------------------------------------------------------


def _standard(obj: Any) -> str | None:
    for name in _STANDARD:
        stream = getattr(sys, name, None)
        if isinstance(stream, io.TextIOWrapper) and not _is_given(stream):
            continue  # a file that a cell has put there
        for layer in ("", ".buffer", ".raw"):
            stream = getattr(stream, layer[1:], None) if layer else stream
            path = name + (".buffer.raw" if layer == ".raw" else layer)
            if stream is obj and obj is not None:
                return path
    return None


def _is_given(stream: io.TextIOWrapper) -> bool:
    """Whether it is one of the descriptors that a process begins with."""
    try:
        return stream.fileno() <= 2
    except (OSError, ValueError):
        return False


@rule("ipykernel.iostream.OutStream", derived=True)
def _out_stream(pickler: Pickler, obj: Any) -> Any:
    name = _standard(obj) or getattr(obj, "name", "")
    if name not in _STANDARD:
        return pickler.lose(obj, "a stream of the kernel that was")
    return standard_stream, (name,)


@frozen
def standard_stream(name: str) -> Any:
    """What `sys` has under this name now."""
    found: Any = sys
    for part in name.split("."):
        found = getattr(found, part)
    return found


@rule("_io.BytesIO", "_io.StringIO")
def _in_memory(_: Pickler, obj: Any) -> Any:
    if obj.closed:
        return make_closed_memory, (type(obj).__name__,)
    return NotImplemented


@frozen
def make_closed_memory(kind: str) -> Any:
    """A closed file in memory."""
    made: Any = getattr(io, kind)()
    made.close()
    return made


# -- csv -----------------------------------------------------------------------------------------

_DIALECT = ("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting",
            "skipinitialspace", "strict")  # fmt: skip


@rule("_csv.reader", "_csv.writer")
def _csv(pickler: Pickler, obj: Any) -> Any:
    """The file below is only known to the garbage collector."""
    import gc

    dialect = {name: getattr(obj.dialect, name) for name in _DIALECT}
    below = [it for it in gc.get_referents(obj)
             if it is not obj.dialect and not isinstance(it, list | type)]  # fmt: skip
    if type(obj).__name__ == "writer":
        below = [it.__self__ for it in below if getattr(it, "__name__", "") == "write"]
    if len(below) != 1:
        return pickler.lose(obj, "it does not tell which file it is on")
    if type(obj).__name__ == "reader":
        pickler.rebuilt(obj, "made again on its source; its line_num starts at 0")
        return make_csv_reader, (below[0], dialect)
    return make_csv_writer, (below[0], dialect)


@rule("_csv.Dialect")
def _csv_dialect(_: Pickler, obj: Any) -> Any:
    return make_csv_dialect, ({name: getattr(obj, name) for name in _DIALECT},)


@frozen
def make_csv_reader(source: Any, dialect: dict[str, Any]) -> Any:
    """A csv reader that goes on where its source is."""
    import csv

    return source if isinstance(source, Lost) else csv.reader(source, **dialect)


@frozen
def make_csv_writer(target: Any, dialect: dict[str, Any]) -> Any:
    """A csv writer on a file."""
    import csv

    return target if isinstance(target, Lost) else csv.writer(target, **dialect)


@frozen
def make_csv_dialect(dialect: dict[str, Any]) -> Any:
    """The dialect of a csv reader or writer."""
    import csv

    return csv.reader([], **dialect).dialect
