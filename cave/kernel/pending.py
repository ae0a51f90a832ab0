"""The image that a kernel left when its host was gone (see `cave/inkernel/image/pending.py`).

It is bytes of a kernel like any other: copied out of its reach, then checked like a message.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import zlib
from pathlib import Path
from typing import Any

from cave.errors import SnapshotError
from cave.events import Inside, Output, clean
from cave.image import Image
from cave.kernel import cells, launch, output
from cave.kernel.images import decode
from cave.kernel.wire import MAX_MESSAGE, Codec, parsed

_MAGIC = b"CAVEIMG2"
_HEAD = len(_MAGIC) + 8 + 4
_PAGE = 4096
_SLICE = 64 << 20
_ITEM = 200
_PLAINLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a file is opened where a kernel may have put anything: no links, no waiting."""


def pending(folder: Path, number: int) -> Image | None:
    """What kernel `number` of the session in `folder` left; None when it left nothing.

    Raises `SnapshotError` when it is not in order: then it is to be discarded.
    """
    found = _left(_path(folder, number))
    if found is None:
        return None
    told, blob = found
    return decode(told, blob, id=str(told.get("id")), base=None)


def _left(path: Path) -> tuple[dict[str, Any], memoryview] | None:
    try:
        fd = os.open(path, _PLAINLY)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SnapshotError(f"what the kernel left cannot be opened: {exc}") from exc
    try:
        return _read(fd)
    except (OSError, ValueError, RecursionError) as exc:
        raise SnapshotError(f"what the kernel left cannot be read: {exc}") from exc
    finally:
        os.close(fd)


def progress(folder: Path, number: int, cell: int) -> tuple[Image, Inside] | None:
    """What kernel `number` kept in the midst of a cell, as a difference from the snapshot of
    before it where that was on disk, and where that was; None when it kept nothing. Raises
    `SnapshotError` when it is not in order."""
    found = _left(_path(folder, number, "progress"))
    if found is None:
        return None
    told, blob = found
    base, place = told.get("base"), told.get("progress")
    image = decode(told, blob, id=str(told.get("id")), base=base if type(base) is str else None)
    if not isinstance(place, dict) or place.get("cell") != cell:
        return None
    try:
        return image, _inside(place, _outputs(folder, number, place))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise SnapshotError(f"the kernel told wrongly where its cell was: {exc!r}") from exc


def _inside(place: dict[str, Any], outputs: tuple[Output, ...]) -> Inside:
    loop = place["loop"]
    return Inside(
        cell=_count(place["cell"]),
        statement=max(1, _count(place["statement"])),
        calls=_count(place["calls"]),
        forks=_count(place["forks"]),
        items=None if loop is None else _count(loop["count"]),
        keys={} if loop is None else {clean(k): _count(v) for k, v in loop["keys"].items()},
        outputs=outputs,
        variables=cells.variables_of(place["variables"]),
    )


def _count(value: Any) -> int:
    if (number := cells.number_of(value)) is None:
        raise ValueError("a number")
    return max(0, number)


def _outputs(folder: Path, number: int, place: dict[str, Any]) -> tuple[Output, ...]:
    """What the cell had put out up to there."""
    home, found = launch.home(folder, number), output.Outputs()
    record = launch.read_record(home / "kernel.json")
    if record is not None:
        tape = cells.Tape(home / "spool", Codec(record.key))
        for message in tape.of(str(place["request"]), first=1, upto=int(place["mark"])):
            if message.type in cells.OUTPUTS:
                found.add(message)
    return found.result()


def item(folder: Path, number: int) -> str:
    """The item of a loop that was under way in kernel `number` when it ended."""
    try:
        fd = os.open(_path(folder, number, "item"), _PLAINLY)
    except OSError:
        return ""
    try:
        return os.pread(fd, _ITEM, 0).decode("utf-8", "replace").strip()  # of a file alone
    except OSError:
        return ""
    finally:
        os.close(fd)


def discard(folder: Path, number: int, name: str = "image") -> None:
    """It is committed, or worth nothing."""
    _path(folder, number, name).unlink(missing_ok=True)


def _path(folder: Path, number: int, name: str = "image") -> Path:
    return launch.home(folder, number) / "pending" / name


def _read(fd: int) -> tuple[dict[str, Any], memoryview]:
    facts = os.fstat(fd)
    head = os.pread(fd, _HEAD, 0)
    length = int.from_bytes(head[len(_MAGIC) : -4], "little")
    start = -(-(_HEAD + length) // _PAGE) * _PAGE
    if not stat.S_ISREG(facts.st_mode) or head[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no image")
    if length > MAX_MESSAGE or start >= facts.st_size:
        raise ValueError("its description is cut short")
    description = os.pread(fd, length, _HEAD)
    blob = _copied(fd, start, facts.st_size - start)
    gap = bytes(start - _HEAD - length)
    if zlib.crc32(blob, zlib.crc32(description + gap)) != int.from_bytes(head[-4:], "little"):
        raise ValueError("it is torn")
    told = parsed(description)
    if not isinstance(told, dict):
        raise ValueError("it describes nothing")
    return told, blob


def _free() -> int:
    """Bytes of memory that can be had. A file with holes costs its maker nothing."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return sys.maxsize
    found = dict(line.split(":", 1) for line in lines)
    return int(found.get("MemAvailable", "0 kB").split()[0]) << 10 or sys.maxsize


def _copied(fd: int, start: int, size: int) -> memoryview:
    """The parts, where no kernel can change them any more."""
    if size > (free := _free()):
        raise ValueError(f"it has {size:,} bytes, and {free:,} of the memory are free")
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(memory)
    done = 0
    while done < size:
        got = os.preadv(fd, [view[done : done + _SLICE]], start + done)
        if not got:
            raise ValueError("it is cut short")
        done += got
    return view.toreadonly()
