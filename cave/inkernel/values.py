"""The kernel's side of put and get: parcels to objects, an object to a parcel.

A parcel has a kind, a header and buffers. Kind `pickle`: the header is a JSON list of the
names, the first buffer one pickle per name in one stream (what they share is shared), the
others are the pickles' own. Kind `dill`: the header is a file that dill wrote, of a dict of
variables. Kind `safe`: a tree of the safe codecs (`codec`). Buffers that
`load` is given become the memory of arrays: the transport maps them privately and writable.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

from . import byvalue, codec
from .codec import Unportable, typename

_HINT = "s.get({!r}, allow_pickle=True) if you trust this kernel"


def load(kind: str, header: bytes, buffers: list[Any]) -> dict[str, object]:
    """The objects of a put by name, and helpers of their functions whose names are free.

    Raises `Unportable`, which names the variable.
    """
    if kind == "pickle":
        return _load_pickle(header, buffers)
    if kind == "dill":
        return _load_dill(header)
    if kind != "safe":
        raise Unportable(f"a parcel of the unknown kind {kind!r}")
    values: dict[str, object] = {}
    name = ""
    try:
        with codec.Uncollected():
            for name, read in codec.Decoder(buffers).entries(header):
                values[name] = read()
    except Exception as error:
        raise Unportable(f"{name!r}: {type(error).__name__}: {error}") from error
    return values


def _load_dill(data: bytes) -> dict[str, object]:
    from .image import dilled

    try:
        return dilled.load(data)
    except Exception as error:
        raise Unportable(f"it cannot be read: {type(error).__name__}: {error}") from error


def _load_pickle(header: bytes, buffers: list[Any]) -> dict[str, object]:
    data, *outside = buffers
    main = sys.modules["__main__"].__dict__
    home = byvalue.Home(main)
    unpickler = byvalue.Unpickler(data, outside, home)
    values: dict[str, object] = {}
    for name in json.loads(header):
        try:
            values[name] = unpickler.load()
        except Exception as error:
            raise Unportable(f"{name!r}: {type(error).__name__}: {error}") from error
    return {name: value for name, value in home.needs.items() if name not in main} | values


def dump(name: str, obj: object, *, allow_pickle: bool) -> tuple[str, bytes, list[Any]]:
    """Kind, header and buffers of one object; the buffers are views of its memory.

    By the safe codecs where they carry it. With `allow_pickle` anything that pickle takes.
    Raises `Unportable`.
    """
    try:
        encoder = codec.Encoder()
        with codec.Uncollected():
            header, buffers = encoder.finish(encoder.node(obj))
    except Unportable as error:
        if not allow_pickle:
            raise Unportable(f"{error.reason}; type {_HINT.format(name)}") from None
    except Exception as error:
        if not allow_pickle:
            why = f"the safe codecs failed with {type(error).__name__}: {error}"
            raise Unportable(f"{why}; type {_HINT.format(name)}") from error
    else:
        return "safe", header, list(buffers)
    return _dump_pickle(name, obj)


def _dump_pickle(name: str, obj: object) -> tuple[str, bytes, list[Any]]:
    file = byvalue.Sink()
    outside: list[pickle.PickleBuffer] = []
    try:
        byvalue.Pickler(file, outside).dump(obj)
    except Exception as error:
        raise Unportable(f"{typename(obj)} cannot be pickled: {error}") from error
    views = [memoryview(file), *(buffer.raw() for buffer in outside)]
    return "pickle", json.dumps([name]).encode(), views
