"""Cheap fingerprints: whether an object's content is likely still what it was.

Two fingerprints that differ mean that it changed. Equal ones mean that no change was seen:
long buffers are sampled, elements of containers are compared by identity and, one level
down, by length. None means that the object cannot change, or cannot be looked into without
running its code.
"""

from __future__ import annotations

import gc
import types
import zlib
from itertools import islice
from typing import Any

from . import kinds

SAMPLE = 4096
"""Bytes of a buffer that are looked at, in all."""
ELEMENTS = 1000
"""Elements of a container that are looked at."""

_FIXED = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice})

_TYPE = {type}
FLAT = "flat"
"""First in the fingerprint of a list that holds no other object that can change."""


def of(obj: Any) -> object:
    """The fingerprint of an object: something to compare with `==`. Never raises."""
    kind = type(obj)
    if kinds.among(kind, _FIXED):
        return None
    if kind is list and len(obj) <= ELEMENTS:  # the most common one, at once
        sorts = list(map(type, obj))
        if _FIXED.issuperset(sorts) if set(map(type, sorts)) == _TYPE else not sorts:
            return FLAT, len(obj), hash(tuple(map(id, obj)))
    try:
        return _of(obj, kind, 2)
    except Exception:
        return None


def _of(obj: Any, kind: type, depth: int) -> object:
    if kinds.among(kind, _FIXED):
        return id(obj)
    if kinds.is_(kind, list, tuple, set, frozenset):
        return len(obj), _elements(obj, depth)
    if kind is dict:
        return len(obj), _elements(obj, depth), _elements(obj.values(), depth)
    if kind is bytearray:
        return len(obj), zlib.crc32(obj[:SAMPLE]), zlib.crc32(obj[-SAMPLE:])
    if depth == 0:
        return id(obj)
    library = kinds.library(kind)
    if library == "numpy":
        return _array(obj) if kinds.name(kind) in ("ndarray", "memmap") else None
    if library == "pandas":
        return _pandas(obj)
    space = kinds.attributes(obj)
    return None if space is None else (id(kind), _of(space, dict, depth - 1))


def _elements(items: Any, depth: int) -> object:
    """Identities of elements; of containers among them also what they hold."""
    if depth == 0:
        return hash(tuple(map(id, islice(items, ELEMENTS))))
    told = []
    for item in islice(items, ELEMENTS):
        kind = type(item)
        told.append(id(item))
        if not kinds.among(kind, _FIXED):
            told.append(hash(_of(item, kind, depth - 1)))
    return hash(tuple(told))


def _array(arr: Any) -> object:
    """Place, shape, dtype and a sample of the bytes: an even one, and both ends."""
    if arr.dtype.hasobject:
        flat = arr.reshape(-1) if arr.flags.c_contiguous else arr.ravel()[:ELEMENTS]
        return id(arr), arr.shape, _elements(flat[:ELEMENTS], 1)
    return arr.shape, arr.dtype.str, arr.strides, sample(arr)


def sample(arr: Any) -> int:
    """A checksum of up to `SAMPLE` bytes of an array's memory."""
    if not arr.size or not arr.dtype.itemsize:
        return 0
    if not arr.flags.c_contiguous:
        if arr.flags.f_contiguous:
            return sample(arr.T)
        return sum(sample(row.copy()) for row in islice(arr, 16)) if arr.ndim > 1 else zlib.crc32(
            arr[:: max(1, arr.size * arr.itemsize // SAMPLE)].tobytes()
        )  # fmt: skip
    raw = arr.reshape(-1).view("u1")
    if raw.size <= 4 * SAMPLE:
        return zlib.crc32(raw)
    words = raw[: raw.size // 8 * 8].view("u8")
    even = words[:: max(1, words.size // (SAMPLE // 8))].tobytes()
    return zlib.crc32(raw[-512:], zlib.crc32(raw[:512], zlib.crc32(even)))


def _pandas(obj: Any) -> object:
    """Labels by identity, and every block of values that numpy holds."""
    manager = getattr(obj, "_mgr", None)
    if manager is None:
        return None
    told: list[object] = [obj.shape, tuple(map(id, manager.axes))]
    for block in islice(manager.blocks, 64):
        values = block.values
        told.append(id(values))
        if kinds.library(type(values)) == "numpy":
            told.append(hash(_array(values)))
        elif (inner := getattr(values, "_ndarray", None)) is not None:
            told.append(hash(_array(inner)))
    return tuple(told)


# -- who else may have changed ---------------------------------------------------------------

_MOST = 20_000
_LEADING = (types.FunctionType, types.ModuleType, types.FrameType, types.GeneratorType)
"""Types of objects through which anything can be reached."""


def is_flat(made: object) -> bool:
    """Whether a fingerprint is of an object that changes only when it is itself reached."""
    return type(made) is tuple and len(made) == 3 and made[0] is FLAT


def held_by(objects: list[Any], depth: int = 4) -> set[int] | None:
    """Identities of objects, and of what they hold; None when that may be anything."""
    found = set(map(id, objects))
    level = objects
    for _ in range(depth):
        sorts = kinds.sorts(level)
        if not sorts.isdisjoint(_LEADING) or any(kinds.derives(kind, type) for kind in sorts):
            return None
        level = [it for it in gc.get_referents(*level) if id(it) not in found and gc.is_tracked(it)]
        level = [it for it in level if not kinds.derives(type(it), type)]
        found.update(map(id, level))
        if len(found) > _MOST:
            return None
        if not level:
            return found
    return None
