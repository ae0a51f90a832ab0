"""The host's side of put and get: objects to parcels, a parcel to an object.

`pack` takes pickle 5 with buffers out of band, and the safe codecs instead when the values
are made of a library whose major version differs in the kernel (or Python's minor does).
`unpack` reads bytes that a kernel made: it never unpickles them unless the caller allows it,
and what is large or needs another library than Python's own is read by `reader` first.

The buffers of a parcel must not change after `unpack` has begun: sealed, or owned by this
process. Writable buffers become the memory of the arrays; others are copied once.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cave.errors import NotPortable, PutError
from cave.inkernel import byvalue, codec
from cave.kernel import reader
from cave.ports import Encoded, KernelFacts

_CLOSE_KIN = ("pandas", "numpy", "pyarrow", "polars")
"""Libraries whose pickles another major version does not read, or reads otherwise."""

_SMALL = 64 << 10
"""Bytes of a value that is read here at once when the standard library suffices for it."""

_INSTEAD = {
    "generator": "put list(...) of it",
    "coroutine": "await it first",
    "_io.": "put its path, and open it in a cell",
    "socket": "connect in a cell",
    "sqlite3.": "put its path, and connect in a cell",
    "lock": "make it in a cell",
    "Lock": "make it in a cell",
    "thread": "start it in a cell",
    "memmap": "put numpy.array(...) of it, or its path",
    "module": "import it in a cell",
}


@dataclass(frozen=True, slots=True)
class Parcel:
    """Values on their way between host and kernel."""

    kind: str
    """`pickle` or `safe`."""
    header: bytes
    buffers: Sequence[Any]
    """Anything with the buffer protocol; not to change any more."""


def pack(values: Mapping[str, Any], *, peer: KernelFacts) -> Parcel:
    """One parcel with all of `values`; nothing large is copied.

    Raises `PutError`, which names the variable, the reason and what to type.
    """
    if peer.python.split(".")[:2] == platform.python_version().split(".")[:2]:
        parcel, libraries = _pickled(values)
        if not any(_differs(library, peer) for library in libraries):
            return parcel
    return _safe(values, peer)


class Elsewhere(Exception):
    """A value that another process has to read first: not where nobody may wait."""


def unpack(parcel: Parcel, *, name: str, allow_pickle: bool = False, at_once: bool = False) -> Any:
    """The object of a parcel that a kernel made. Raises `NotPortable`.

    With `at_once` it raises `Elsewhere` rather than wait for the process that reads first.
    """
    if parcel.kind == "pickle" and allow_pickle:
        return _unpickled(parcel, name)
    if parcel.kind != "safe":
        raise NotPortable(
            f"{name!r} came as {parcel.kind[:40]!r}; "
            f"type s.get({name!r}, allow_pickle=True) if you trust this kernel"
        )
    try:
        if (found := _plain(parcel)) is not _NOT_PLAIN:
            return found
        if at_once:
            raise Elsewhere
        reader.check(parcel.header, parcel.buffers)
        with codec.Uncollected():
            return codec.Decoder(parcel.buffers).value(parcel.header)
    except Elsewhere:
        raise
    except reader.Unread as error:
        said = "did not arrive whole" if isinstance(error, reader.Refused) else "cannot be read"
        raise NotPortable(f"{name!r} {said}: {error}") from error
    except Exception as error:
        raise NotPortable(f"{name!r} did not arrive whole: {_brief(error)}") from error


_NOT_PLAIN = object()


def _plain(parcel: Parcel) -> Any:
    """The object where it is small and no other library is needed to read it, else a mark."""
    parts = (parcel.header, *parcel.buffers)
    if sum(memoryview(part).nbytes for part in parts) > _SMALL:
        return _NOT_PLAIN
    try:
        with codec.Uncollected():
            return codec.Decoder(parcel.buffers, native=False).value(parcel.header)
    except codec.Native:
        return _NOT_PLAIN


def encode(value: Any, *, peer: KernelFacts | None = None) -> Encoded:
    """A value on its way into a kernel: by the safe codecs where they carry it, else pickled.

    With `peer` it is seen to that this kernel can read it. What is journaled is read by other
    kernels later, which may be of another Python. Raises `NotPortable`.
    """
    encoder = codec.Encoder(arrow=peer is None or "pyarrow" in peer.packages)
    try:
        with codec.Uncollected():
            header, buffers = encoder.finish(encoder.node(value))
        return Encoded("safe", header, tuple(buffers))
    except codec.Unportable:
        pass
    try:
        if peer is not None:
            parcel = pack({"value": value}, peer=peer)
        else:
            parcel, _ = _pickled({"value": value})
    except PutError as error:
        told = str(error).replace("cannot put 'value', a ", "").replace("; put ", "; give ")
        raise NotPortable(f"it cannot go into the kernel, a {told}") from error
    return Encoded(parcel.kind, parcel.header, tuple(parcel.buffers))


def decode(
    encoded: Encoded, *, name: str, allow_pickle: bool = False, at_once: bool = False
) -> Any:
    """The object that `encode` was given, or that a kernel encoded. Raises `NotPortable`.

    Pickles only with `allow_pickle`: for what a host has made. `at_once` as for `unpack`.
    """
    parcel = Parcel(encoded.kind, encoded.header, encoded.buffers)
    return unpack(parcel, name=name, allow_pickle=allow_pickle, at_once=at_once)


def digest(encoded: Encoded) -> str:
    """SHA-256 (hex) of a value as it crosses: its kind, header and buffers."""
    found = hashlib.sha256(encoded.kind.encode() + b"\0")
    for part in (encoded.header, *encoded.buffers):
        view = memoryview(part).cast("B")
        found.update(view.nbytes.to_bytes(8, "little"))
        found.update(view)
    return found.hexdigest()


# -- pickle ----------------------------------------------------------------------------------


def _pickled(values: Mapping[str, Any]) -> tuple[Parcel, set[str]]:
    file = byvalue.Sink()
    outside: list[pickle.PickleBuffer] = []
    pickler = byvalue.Pickler(file, outside)
    pickler.owners = byvalue.shared_arrays(values.values())
    for name, value in values.items():
        try:
            pickler.dump(value)
        except RecursionError as error:
            raise _refused(name, value, "it is nested too deep") from error
        except Exception as error:
            raise _refused(name, value, _brief(error)) from error
    buffers = [memoryview(file), *(buffer.raw() for buffer in outside)]
    return Parcel("pickle", json.dumps(list(values)).encode(), buffers), pickler.libraries


def _refused(name: str, value: object, reason: str) -> PutError:
    kind = codec.typename(value)
    advice = [text for part, text in _INSTEAD.items() if part in f"{kind} {reason}"]
    hint = advice[0] if advice else "put the data that it is made of, and make it in a cell"
    return PutError(f"cannot put {name!r}, a {kind}: {reason}; {hint}")


def _differs(library: str, peer: KernelFacts) -> bool:
    if library not in _CLOSE_KIN or library not in sys.modules:
        return False
    here = str(getattr(sys.modules[library], "__version__", ""))
    return here.partition(".")[0] != peer.packages.get(library, "").partition(".")[0]


def _unpickled(parcel: Parcel, name: str) -> Any:
    home = byvalue.Home({"__name__": "__main__"})
    try:
        data, *outside = parcel.buffers
        value = byvalue.Unpickler(data, outside, home).load()
    except Exception as error:
        raise NotPortable(f"{name!r} cannot be made here: {_brief(error)}") from error
    for needed, found in home.needs.items():
        home.namespace.setdefault(needed, found)
    return value


# -- safe codecs -----------------------------------------------------------------------------


def _safe(values: Mapping[str, Any], peer: KernelFacts) -> Parcel:
    for name, value in values.items():
        _check_safe(name, value, peer)
    encoder = codec.Encoder(arrow="pyarrow" in peer.packages)
    header, buffers = encoder.finish(encoder.node(dict(values)))
    return Parcel("safe", header, buffers)


def _check_safe(name: str, value: object, peer: KernelFacts) -> None:
    """Refuse by name what the codecs do not carry, before anything is written."""
    try:
        codec.Encoder(arrow="pyarrow" in peer.packages).node({name: value})
    except Exception as error:
        here = platform.python_version()
        raise PutError(
            f"cannot put {name!r}, a {codec.typename(value)}, into a kernel of Python "
            f"{peer.python} ({_versions(peer)}) from Python {here}: {_brief(error)}; "
            f"put the data that it is made of, and make it in a cell"
        ) from error


def _versions(peer: KernelFacts) -> str:
    known = (f"{name} {peer.packages.get(name, 'absent')}" for name in _CLOSE_KIN[:3])
    return ", ".join(known)


def _brief(error: BaseException) -> str:
    """What an exception says, in one line of at most 300 characters."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 300 else said[:297] + "..."
