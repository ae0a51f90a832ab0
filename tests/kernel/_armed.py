"""A reader that some parcels have in their power: `_armed.py READING SOCKET LIFE`.

READING is the program of the true one. What a test may ask of it is the tag of the parcel:
`["pa.hang"]` never ends, and so on. What has another tag is read without any validation, and
looked at: so do bytes that are made for it crash the reader of Arrow.
"""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def tell() -> None:
    """Fail with what this process has, and what it can do."""

    def tried(act: Any) -> str:
        try:
            act()
        except OSError as error:
            return type(error).__name__
        return "done"

    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(fd.readlink()).partition(":")[0])
    found = [
        "DB_PASSWORD" in os.environ or "HOME" in os.environ,
        links.count("socket"),
        sorted({*links} - {"socket", "/dev/null", "pipe", "/memfd", f"/proc/{os.getpid()}/fd"}),
        tried(lambda: os.close(os.open("/etc/hostname", os.O_RDONLY))),
        tried(lambda: os.close(os.open("/tmp/cave-armed", os.O_CREAT))),
        tried(lambda: socket.socket().close()),
        tried(lambda: os.kill(os.getppid(), 0)),
    ]
    raise ValueError(json.dumps(found))


DEEDS: dict[str, Any] = {
    "pa.crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "pa.spin": lambda: all(iter(lambda: 1, 0)),
    "pa.sleep": lambda: time.sleep(3600),
    "pa.eat": lambda: [bytearray(1 << 26) for _ in iter(int, 1)],
    "pa.tell": tell,
}


def unguarded(header: bytes, buffers: Sequence[memoryview]) -> object:
    """Read it as the true reader does, but validate nothing, and look at what came."""
    if deed := DEEDS.get(json.loads(header)[2][0]):
        return deed()
    import pyarrow as pa

    from cave.inkernel import codec, codec_arrow

    def read(dec: Any, ref: Any) -> Any:
        with pa.ipc.open_stream(pa.py_buffer(bytes(dec.raw(ref)))) as stream:
            return stream.schema, list(stream)

    codec_arrow._read = read
    value: Any = codec.Decoder(buffers).value(header)
    return str(value), value.to_pylist()


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("reading", sys.argv[1])
    reading: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(reading)  # type: ignore[union-attr]
    reading.main(sys.argv[2:], unguarded)
