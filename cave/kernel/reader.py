"""What a kernel sent is read by another process first: the reader, which may crash over it.

Native code (Arrow's above all) that reads hostile bytes can end its process, never come back
or take all memory. So these bytes are decoded in a process of their own, with limits, and
only what came through there is decoded here: the very same bytes, which nobody can change any
more. It tells of crashes, hangs and memory; bytes that would make the code of a library do
their own bidding do so here as well.

One reader waits for each process that gets objects, from the first that needs it to the end
of that process, however it ends. Threads that read at the same time have one each.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cave.kernel import confinement, door

_HERE = Path(__file__).resolve().parent
_PROGRAM = [str(_HERE / "reading.py")]
_MEMORY, _TIMES = 1 << 30, 32
"""Bytes that the reading of anything may take, and how many times its own size on top."""
_SECONDS, _EACH = 60, 1 << 20
"""Seconds of a processor that it may take, and one more for so many bytes."""
_CLOCK = 2
"""How often that by the clock: other programs want the processor, too."""
_START = 120.0
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TZDIR", "LD_LIBRARY_PATH")
_FEW_THREADS = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip


class Unread(Exception):
    """What was sent cannot be read; the text says why, and what to do."""


class Refused(Unread):
    """It is not what the safe codecs write; the text says why."""


class Ended(Unread):
    """The reader did not come to an end with it."""

    def __init__(self, how: str) -> None:
        super().__init__(
            f"{how}; what the kernel sent is damaged or hostile; "
            f"make it anew in a cell, or have the cell write it to a file"
        )


def check(header: bytes, buffers: Sequence[Any]) -> None:
    """Have a parcel of the safe codecs decoded elsewhere. Raises `Unread`."""
    with _file(header, buffers) as (fd, layout), _borrowed() as reader:
        reader.read(fd, layout)


@contextlib.contextmanager
def _file(header: bytes, buffers: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """The parcel as a file that no kernel can change: as it came, or a copy."""
    if (owner := door.given(buffers)) is not None and owner.file is not None:
        try:
            yield owner.file, owner.layout
        finally:
            owner.let_go()
        return
    views = [memoryview(part).cast("B") for part in (header, *buffers)]
    with door.parcel(views, None) as copied:
        yield copied


class _Reader:
    """One process that reads, and the line to it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        life, self._life = os.pipe()
        try:
            with theirs:
                self._process = _start(theirs.fileno(), life)
        except BaseException:
            self._line.close()
            os.close(self._life)
            raise
        finally:
            os.close(life)
        self._line.settimeout(_START)
        try:
            path = [entry for entry in sys.path if Path(entry).is_absolute()]
            path = [*path, str(_HERE.parent.parent)]
            told = {"path": path, "plan": confinement.reader_plan(path)}
            self._line.sendall(json.dumps(told).encode() + b"\n")
            if self._answer() != b"+":
                raise OSError("it did not start")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still waits for work."""
        return self._process.poll() is None

    def read(self, fd: int, layout: Sequence[Sequence[int]]) -> None:
        """Decode what is in a file. Raises `Unread`; after `Ended` this reader is no more."""
        size = sum(length for _, length in layout)
        seconds, memory = _SECONDS + size // _EACH, _MEMORY + _TIMES * size
        asked = {"layout": layout, "memory": memory, "seconds": seconds}
        self._line.settimeout(_CLOCK * seconds)
        try:
            socket.send_fds(self._line, [b"."], [fd])
            self._line.sendall(json.dumps(asked).encode() + b"\n")
            answer = self._answer()
        except TimeoutError:
            self.close()
            told = f"reading it did not come to an end in {_CLOCK * seconds} seconds"
            raise Ended(told) from None
        except OSError:
            answer = b""
        if not answer:
            raise Ended(f"the process that reads it first ended {self._buried()}")
        if answer == b"m":
            told = f"reading it takes more than {memory / 1e6:,.0f} MB of memory"
            raise Unread(f"{told}; take a part of it in a cell, and get that")
        if answer != b"+":
            raise Refused(answer[1:].decode("utf-8", "replace"))

    def _answer(self) -> bytes:
        """What it says; nothing when it has ended."""
        text = b""
        while not text.endswith(b"\n"):
            part = self._line.recv(4096)
            if not part or len(text) > 4096:
                return b""
            text += part
        return text[:-1]

    def _buried(self) -> str:
        self._process.kill()
        code = self._process.wait()
        self.close()
        if code == -signal.SIGXCPU:
            return "because it took too long"
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

    def close(self) -> None:
        """End it, at once."""
        self.let_go()
        self._process.kill()
        self._process.wait()

    def let_go(self) -> None:
        """Close what is held of it: it ends when nobody else holds it."""
        self._line.close()
        life, self._life = self._life, -1
        if life >= 0:
            os.close(life)

    def forget(self) -> None:
        """In a fork: it is the reader of the process that was forked."""
        self.let_go()
        self._process.returncode = 0


def _start(line: int, life: int) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", *_PROGRAM, str(line), str(life)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[line, life],
        env={**kept, **_FEW_THREADS},
        start_new_session=True,
        cwd="/",
    )


# -- those that there are ------------------------------------------------------------------------

_lock = threading.Lock()
_all: set[_Reader] = set()
_idle: list[_Reader] = []


@contextlib.contextmanager
def _borrowed() -> Iterator[_Reader]:
    """A reader for one parcel: the one that waits, or a new one."""
    reader = _waiting() or _new()
    try:
        yield reader
    except Ended:
        with _lock:
            _all.discard(reader)
        raise
    except BaseException as error:
        _give_back(reader, sound=isinstance(error, Unread))
        raise
    _give_back(reader, sound=True)


def _waiting() -> _Reader | None:
    while True:
        with _lock:
            if not _idle:
                return None
            reader = _idle.pop()
        if reader.alive:
            return reader
        _give_back(reader, sound=False)


def _new() -> _Reader:
    try:
        reader = _Reader()
    except OSError as error:
        raise Unread(
            f"no process could be started to read it in ({error}); end some, or free some memory"
        ) from error
    with _lock:
        _all.add(reader)
    return reader


def _give_back(reader: _Reader, *, sound: bool) -> None:
    with _lock:
        kept = sound and not _idle
        if kept:
            _idle.append(reader)
        else:
            _all.discard(reader)
    if not kept:
        reader.close()


@atexit.register
def close() -> None:
    """End every reader of this process."""
    with _lock:
        readers = list(_all)
        _all.clear()
        _idle.clear()
    for reader in readers:
        reader.close()


def _forget() -> None:
    global _lock  # noqa: PLW0603 -- another thread may have held it
    _lock = threading.Lock()
    for reader in _all:
        reader.forget()
    _all.clear()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
