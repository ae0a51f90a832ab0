"""Changes found by the system: pages that were written to, by userfaultfd and PAGEMAP_SCAN.

Memory is registered with a userfaultfd in the mode WP_ASYNC and write-protected; the first
write to a page lifts its protection without anybody being asked, and the PAGEMAP_SCAN ioctl
lists such pages and protects them again (Linux 6.7; documented in
Documentation/admin-guide/mm/pagemap.rst). It tells of the memory at an address, whoever owns
it: freed memory that is mapped anew is not registered (EPERM: changed), a page that was given
back to the system has lost its protection with its content (it is neither present nor
swapped: changed).

Pages are whole: the parts of a buffer in its first and last page are for others to compare.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct

from . import maps

PAGE = mmap.PAGESIZE
CHUNK = 64 << 10

_SYSCALL = {"x86_64": 323, "aarch64": 282, "riscv64": 282, "ppc64le": 364, "s390x": 355}
_USER_MODE_ONLY = 1
_API = 0xAA
_PAGEFAULT_FLAG_WP, _WP_UNPOPULATED, _WP_ASYNC = 1 << 0, 1 << 13, 1 << 15
_MODE_WP = 2
_WRITTEN, _PRESENT, _SWAPPED = 1 << 1, 1 << 3, 1 << 4
_SCAN_PROTECT, _SCAN_CHECK = 1, 2
_VEC = 16_384

Range = tuple[int, int]


def _iowr(kind: int, number: int, size: int) -> int:
    return (3 << 30) | (size << 16) | (kind << 8) | number


_UFFDIO_API = _iowr(0xAA, 0x3F, 24)
_UFFDIO_REGISTER = _iowr(0xAA, 0x00, 32)
_UFFDIO_UNREGISTER = (2 << 30) | (16 << 16) | (0xAA << 8) | 0x01
_UFFDIO_WRITEPROTECT = _iowr(0xAA, 0x06, 24)
_PAGEMAP_SCAN = _iowr(ord("f"), 16, 96)


class Untracked(OSError):
    """The system does not track pages here; the text says why."""


class Pages:
    """Knows which pages were written to since they were protected."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._pagemap = -1
        self._vec = (ctypes.c_uint64 * (3 * _VEC))()
        self.own: list[Range] = []
        """Private mappings of files that nobody changes."""
        try:
            self._open()
            self._test()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the descriptors; all protection ends."""
        for fd in (self._fd, self._pagemap):
            if fd >= 0:
                os.close(fd)
        self._fd = self._pagemap = -1

    def _open(self) -> None:
        number = _SYSCALL.get(platform.machine())
        if number is None or platform.system() != "Linux":
            raise Untracked(f"pages are not tracked on {platform.system()} {platform.machine()}")
        flags = _USER_MODE_ONLY | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = self._libc.syscall(number, flags)
        if self._fd < 0:
            raise Untracked(f"userfaultfd: {os.strerror(ctypes.get_errno())}")
        features = _WP_ASYNC | _WP_UNPOPULATED | _PAGEFAULT_FLAG_WP
        self._ioctl(self._fd, _UFFDIO_API, struct.pack("3Q", _API, features, 0))
        self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def _test(self) -> None:
        """Write to a page and see it, before anything relies on that."""
        with mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[0] = 1
            anchor = ctypes.c_char.from_buffer(memory)
            start = ctypes.addressof(anchor)
            end = start + 4 * PAGE
            self.watch(start, end)
            quiet = self.written(start, end, protect=True)
            memory[2 * PAGE] = 1
            seen = self.written(start, end, protect=True)
            again = self.written(start, end, protect=True)
            del anchor
        if (quiet, seen, again) != ([], [(start + 2 * PAGE, start + 3 * PAGE)], []):
            raise Untracked("a write to a page was not seen as it should be")

    def _ioctl(self, fd: int, request: int, packed: bytes) -> tuple[int, bytes]:
        buffer = ctypes.create_string_buffer(packed, len(packed))
        got = self._libc.ioctl(fd, ctypes.c_ulong(request), buffer)
        if got < 0:
            code = ctypes.get_errno()
            raise Untracked(code, f"ioctl {request:#x}: {os.strerror(code)}")
        return got, buffer.raw

    # -- tracking ----------------------------------------------------------------------------

    def watch(self, start: int, end: int) -> None:
        """Protect these whole pages from now on. Raises `Untracked`."""
        self._ioctl(self._fd, _UFFDIO_REGISTER, struct.pack("4Q", start, end - start, _MODE_WP, 0))
        self._ioctl(self._fd, _UFFDIO_WRITEPROTECT, struct.pack("3Q", start, end - start, 1))

    def release(self, start: int, end: int) -> None:
        """No longer protect them; no error when they are gone."""
        try:
            self._ioctl(self._fd, _UFFDIO_UNREGISTER, struct.pack("2Q", start, end - start))
        except Untracked:
            return

    def written(self, start: int, end: int, *, protect: bool) -> list[Range] | None:
        """Pages that were written to; with `protect` they are watched anew. None: unknown."""
        try:
            found = self._scan(start, end, _WRITTEN, 0, protect=protect)
            gone = _PRESENT | _SWAPPED
            found += self._scan(start, end, gone, gone, protect=protect)
        except OSError as exc:
            if exc.errno in (errno.EPERM, errno.ENOMEM, errno.EFAULT, errno.EINVAL):
                return None
            raise
        return merged(found)

    def _scan(
        self, start: int, end: int, mask: int, inverted: int, *, protect: bool
    ) -> list[Range]:
        found: list[Range] = []
        flags = _SCAN_CHECK | (_SCAN_PROTECT if protect else 0)
        at, vec = start, self._vec
        while at < end:
            packed = struct.pack(
                "12Q", 96, flags, at, end, 0, ctypes.addressof(vec), _VEC, 0,
                inverted, mask, 0, mask,
            )  # fmt: skip
            count, packed = self._ioctl(self._pagemap, _PAGEMAP_SCAN, packed)
            found += [(vec[3 * i], vec[3 * i + 1]) for i in range(count)]
            walked: int = struct.unpack_from("Q", packed, 32)[0]
            if walked <= at:
                raise Untracked(errno.EFAULT, "the scan of pages stands still")
            at = walked
        return found

    # -- which memory ------------------------------------------------------------------------

    def trackable(self, wanted: list[Range]) -> list[bool]:
        """Whether nobody else can change that memory: private, and of no file but ours."""
        found = [self._is_own(one) for one in wanted]
        others = iter(
            maps.are_private(
                [one for own, one in zip(found, wanted, strict=True) if not own], files=False
            )
        )
        return [own or next(others) for own in found]

    def _is_own(self, one: Range) -> bool:
        return any(low <= one[0] and one[1] <= high for low, high in self.own)


def inner(address: int, size: int) -> Range:
    """The whole pages in that memory."""
    start = -(-address // PAGE) * PAGE
    return start, max(start, (address + size) // PAGE * PAGE)


def merged(ranges: list[Range]) -> list[Range]:
    """Sorted, without overlaps and without seams."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
