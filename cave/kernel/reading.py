"""The program of the process that reads first what a kernel sent.

`python -I -S reading.py SOCKET LIFE`, both inherited descriptors. It ends by a signal of the
system when the other end of the pipe LIFE is closed, whatever it is doing then: its host is
gone. From SOCKET it reads a line of JSON, `{"path": [...], "plan": {...}}`: where modules are,
and what confines it. It puts that on, says `+\\n`, and then answers requests. One is a byte
with a descriptor, and a line `{"layout": [[offset, size], ...], "memory": bytes, "seconds":
number}`: the file holds a header and its buffers. They are decoded by the safe codecs to the
end. The answer is a line: `+` when that went well, `m` when the memory did not suffice, or
`-REASON`.
"""

import contextlib
import fcntl
import gc
import json
import mmap
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

Read = Callable[[bytes, Sequence[memoryview]], object]
_LONGEST = 300


def main(argv: list[str], read: Read | None = None) -> None:
    """Answer until nobody asks any more."""
    line, life = map(int, argv)
    _end_with_host(life)
    with socket.socket(fileno=line) as host:
        _settle(json.loads(_line(host)))
        read = read or _read
        host.sendall(b"+\n")
        while True:
            _, fds, _, _ = socket.recv_fds(host, 1, 1)
            if not fds:
                return
            host.sendall(_answer(read, fds[0], json.loads(_line(host))) + b"\n")
            gc.collect()
            gc.freeze()  # libraries stay, and need not be looked through again


def _end_with_host(life: int) -> None:
    """A thread could not: it would wait while native code keeps the interpreter busy."""
    signal.signal(signal.SIGIO, signal.SIG_DFL if sys.platform == "linux" else lambda *_: _leave())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        _leave()


def _leave() -> None:
    os._exit(0)


def _settle(told: dict[str, Any]) -> None:
    sys.dont_write_bytecode = True
    sys.path[:] = told["path"]
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process is the one to end
    from cave.inkernel import confine

    confine.apply(told["plan"])
    if sys.platform == "linux":
        confine.hide()  # a kernel that can write to its memory could have it say anything


def _line(host: socket.socket) -> bytes:
    text = bytearray()
    while not text.endswith(b"\n"):
        part = host.recv(1 << 16)
        if not part:
            _leave()
        text += part
    return bytes(text)


def _answer(read: Read, fd: int, asked: dict[str, Any]) -> bytes:
    try:
        memory = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)
    header, *buffers = (memory[offset : offset + size] for offset, size in asked["layout"])
    _limit(resource.RLIMIT_DATA, _data() + asked["memory"])
    _limit(resource.RLIMIT_CPU, int(_spent()) + asked["seconds"])
    try:
        read(bytes(header), buffers)
    except MemoryError:
        return b"m"
    except BaseException as error:  # noqa: BLE001 -- a panic of polars is no Exception
        said = " ".join(str(error).split()) or type(error).__name__
        return b"-" + said[:_LONGEST].encode("utf-8", "replace")
    return b"+"


def _read(header: bytes, buffers: Sequence[memoryview]) -> object:
    from cave.inkernel import codec

    with codec.Uncollected():
        return codec.Decoder(buffers).value(header)


def _limit(kind: int, number: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        number = min(number, hard)
    resource.setrlimit(kind, (number, hard))


def _data() -> int:
    """Bytes that count for the limit of data now."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
    return 1 << 30


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1:])
