"""What memory is: the mappings of this process.

The system is asked for single mappings (the PROCMAP_QUERY ioctl, Linux 6.11). Where it does
not answer, it tells of all, which takes milliseconds in a process with many libraries.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import fcntl
import struct

Range = tuple[int, int]

_REQUEST = struct.Struct("9Q4I2Q")
_QUERY = (3 << 30) | (_REQUEST.size << 16) | (ord("f") << 8) | 17
_SHARED = 8
_LONGEST = 4096
_OURS = b"/memfd:cave"
"""How files begin that nobody changes any more."""


def are_private(wanted: list[Range], *, files: bool) -> list[bool]:
    """Whether nobody else can change the memory of each range.

    With `files` it is enough that a child has it for itself: private mappings of any file.
    """
    if not wanted:
        return []
    with open("/proc/self/maps", "rb", buffering=0) as told:
        try:
            return [_ask(told.fileno(), *one, files=files) for one in wanted]
        except OSError as exc:
            if exc.errno not in (errno.ENOTTY, errno.EINVAL):
                raise
    maps = _all(files=files)
    return [_covered(one, maps) for one in wanted]


def _ask(told: int, start: int, end: int, *, files: bool) -> bool:
    """Whether all mappings from `start` on will do, asked one by one."""
    name = None if files else ctypes.create_string_buffer(_LONGEST)
    place = (0, 0) if name is None else (_LONGEST, ctypes.addressof(name))
    while start < end:
        request = bytearray(
            _REQUEST.pack(_REQUEST.size, 0, start, 0, 0, 0, 0, 0, 0, 0, 0, place[0], 0, place[1], 0)
        )
        try:
            fcntl.ioctl(told, _QUERY, request)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENAMETOOLONG):
                return False
            raise
        _, _, _, _, high, flags, _, _, inode, *_ = _REQUEST.unpack(request)
        if flags & _SHARED or not (name is None or not inode or name.value.startswith(_OURS)):
            return False
        start = high
    return True


def _all(*, files: bool) -> list[tuple[int, int, bool]]:
    """All mappings, and whether each will do."""
    found = []
    with open("/proc/self/maps", "rb") as told:
        for line in told:
            area, mode, _, _, inode, *path = line.split(maxsplit=5)
            low, high = (int(part, 16) for part in area.split(b"-"))
            ours = files or inode == b"0" or bool(path and path[0].startswith(_OURS))
            found.append((low, high, mode[3:4] == b"p" and ours))
    return found


def _covered(one: Range, maps: list[tuple[int, int, bool]]) -> bool:
    """Whether all of a range lies in mappings that will do."""
    start, end = one
    at = bisect.bisect_right(maps, (start, 1 << 64, True)) - 1
    while 0 <= at < len(maps) and start < end:
        low, high, good = maps[at]
        if not (good and low <= start < high):
            return False
        start, at = high, at + 1
    return start >= end
