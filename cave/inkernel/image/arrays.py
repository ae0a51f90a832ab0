"""Rules for numpy: arrays share memory afterwards with what they shared it with before.

Large memory goes as a buffer, as it is; small arrays own their memory when they come back.
A view travels with its owner unless the owner is much larger than what is seen of it.
"""

from __future__ import annotations

import array
import os
import sys
from typing import Any

from .. import kinds
from . import columns, memory
from .frozen import frozen
from .pickler import LARGE, Pickler
from .rules import rule

_FAR = 100
_MUCH = 4
_SMALL = 4096
_PAGE = 4096
_LOOK = 256 * _PAGE


@rule("numpy.ndarray")
def _ndarray(pickler: Pickler, obj: Any) -> Any:
    pickler.seen += holders(obj)
    if obj.dtype.hasobject:
        return _objects(pickler, obj)
    low, high = extent(obj)
    if low == high:
        return _whole(obj, b"")
    if high - low < LARGE:
        pickler.places.add(low)
    known = memory.of(pickler)
    found = known.find(low, high)
    if found is not None:
        return _view(obj, found[0], pointer(obj) - low + found[1])
    owner = _owner(obj)
    if owner is not obj and _travels(owner, obj):
        return _view(obj, owner, pointer(obj) - pointer(owner))
    base = _exporter(owner)
    if base is not None:
        return _view(obj, base, pointer(obj) - _address(base))
    return _alone(known, obj, low, high)


@rule("numpy.void", "numpy.record")
def _row(_: Pickler, obj: Any) -> Any:
    """A row of a structured array is a view of it."""
    np = sys.modules["numpy"]
    base = obj.base
    if not kinds.of(base, np.ndarray) or obj.dtype.hasobject or not base.flags.c_contiguous:
        return NotImplemented
    flat = base.view(np.ndarray).reshape(-1).view("u1")
    return make_row, (np.ndarray((), obj.dtype, flat, pointer(obj) - pointer(base)),)


@frozen
def make_row(array: Any) -> Any:
    """The row that an array without dimensions shows."""
    return array[()]


def _alone(known: memory.Memory, obj: Any, low: int, high: int) -> Any:
    """An array that is the first to show its memory."""
    np = sys.modules["numpy"]
    flags = obj.flags
    if flags.c_contiguous or flags.f_contiguous:
        known.claim(low, high, obj, obj)
        if high - low < LARGE:
            return _whole(obj, obj.tobytes(order="A"))
        return _whole(obj, memory.shown(low, high, obj))
    if high - low <= _MUCH * obj.nbytes:
        region = memory.Region(low, high, obj)
        known.claim(low, high, region, obj)
        return _view(obj, region, pointer(obj) - low)
    known.claim(low, high, None, obj)
    copy = np.ascontiguousarray(obj)
    start = pointer(copy)
    return _whole(copy, memory.shown(start, start + copy.nbytes, copy), flags.writeable)


def holders(obj: Any) -> list[Any]:
    """What holds the memory of an array: whoever has one of them shares it, written or not."""
    found: list[Any] = []
    base = obj.base
    while base is not None and len(found) < _FAR:
        found.append(base)
        base = base.obj if type(base) is memoryview else getattr(base, "base", None)
    return found


def extent(obj: Any) -> tuple[int, int]:
    """First address of an array's memory, and the first one behind it."""
    low = high = pointer(obj)
    if not obj.size:
        return low, low
    for size, stride in zip(obj.shape, obj.strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + obj.itemsize


def pointer(obj: Any) -> int:
    """Address of an array's first element."""
    found: int = obj.__array_interface__["data"][0]
    return found


def _owner(obj: Any) -> Any:
    """The outermost array that has the memory: exact arrays only, or a memmap."""
    np = sys.modules["numpy"]
    base = obj
    while isinstance(below := _below(base), np.ndarray):
        base = below
        if _mapped(base):
            return base
    return base if type(base) is np.ndarray else obj


def _below(obj: Any) -> Any:
    """What an array is a view of, past the helper that `as_strided` puts between."""
    base = obj.base
    return base.base if type(base).__name__ == "DummyArray" else base


def _mapped(obj: Any) -> bool:
    """Whether it is a memmap that comes back onto its file."""
    np = sys.modules["numpy"]
    return (
        type(obj) is np.memmap and not isinstance(obj.base, np.ndarray) and obj.filename is not None
    )


def _has_order(owner: Any) -> bool:
    return bool(owner.flags.c_contiguous or owner.flags.f_contiguous)


def _travels(owner: Any, view: Any) -> bool:
    if _mapped(owner):
        return True
    if not _has_order(owner):
        return False
    return bool(owner.nbytes <= max(_MUCH * view.nbytes, _SMALL))


def _exporter(owner: Any) -> Any:
    """An object of Python's own whose bytes the array shows, as `frombuffer` does."""
    base = owner.base
    if type(base) is memoryview:
        base = base.obj
    return base if type(base) in (bytearray, bytes, array.array) and len(base) else None


def _address(base: Any) -> int:
    return pointer(sys.modules["numpy"].frombuffer(base, "u1"))


def _whole(obj: Any, data: Any, writeable: bool | None = None) -> Any:
    order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
    may = obj.flags.writeable if writeable is None else writeable
    return make_array, (data, obj.dtype, obj.shape, order, may)


def _view(obj: Any, source: Any, start: int) -> Any:
    made = (source, obj.dtype, start, obj.shape, obj.strides)
    return make_view, made, obj.flags.writeable, None, None, fill_view


def _objects(pickler: Pickler, obj: Any) -> Any:
    """Objects have no addresses to be found by: a view goes with its owner, however large."""
    owner = _owner(obj)
    if owner is not obj and owner.dtype == obj.dtype and _has_order(owner):
        made = (owner, pointer(obj) - pointer(owner), obj.shape, obj.strides)
        return make_object_view, made, obj.flags.writeable, None, None, fill_view
    if owner is not obj:
        pickler.rebuilt(obj, "an array of its own, no longer a view of another one")
    if obj.dtype != object:
        return obj.__reduce__()
    order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
    flat = obj.ravel(order=order)
    known = columns.reduce(obj, flat)
    if known is not None:
        make, given = known
        return make, (*given, obj.shape, order, obj.flags.writeable)
    state = (flat.tolist(), obj.flags.writeable)
    return make_objects, (obj.shape, order), state, None, None, fill_objects


@frozen
def make_array(data: Any, dtype: Any, shape: tuple[int, ...], order: Any, writeable: bool) -> Any:
    """An array of its own memory."""
    import numpy as np

    inside = isinstance(data, bytes | bytearray)
    if inside and not data:
        made = np.empty(shape, dtype, order)
    else:
        made = np.ndarray(shape, dtype, data, order=order)
    if inside:
        made = made.copy(order="K")
    if not writeable:
        made.flags.writeable = False
    return made


@frozen
def make_view(source: Any, dtype: Any, start: int, shape: Any, strides: Any) -> Any:
    """An array over the memory of something else."""
    import numpy as np

    if isinstance(source, np.ndarray):
        whole: Any
        order = "F" if source.flags.f_contiguous and not source.flags.c_contiguous else "C"
        whole = source.view(np.ndarray)
        if not whole.flags.writeable:
            whole = _opened(source)
        source = whole.reshape(-1, order=order).view("u1")
    return np.ndarray(shape, dtype, source, offset=start, strides=strides)


def _opened(source: Any) -> Any:
    """A writable view of an array that is itself read-only, if it may be."""
    import numpy as np

    try:
        source.flags.writeable = True
    except ValueError:
        return source.view(np.ndarray)
    whole = source.view(np.ndarray)
    source.flags.writeable = False
    return whole


@frozen
def fill_view(made: Any, writeable: bool) -> None:
    """Make it read-only if it was."""
    if made.flags.writeable and not writeable:
        made.flags.writeable = False


@frozen
def make_object_view(source: Any, start: int, shape: Any, strides: Any) -> Any:
    """An array over another one's objects."""
    import numpy as np

    order = "F" if source.flags.f_contiguous and not source.flags.c_contiguous else "C"
    flat = source.reshape(-1, order=order)
    return np.lib.stride_tricks.as_strided(flat[start // source.itemsize :], shape, strides)


@frozen
def make_objects(shape: tuple[int, ...], order: Any) -> Any:
    """An array of objects, still empty."""
    import numpy as np

    return np.empty(shape, object, order)


@frozen
def fill_objects(made: Any, state: tuple[list[Any], bool]) -> None:
    """Put its objects in."""
    flat: Any = made.reshape(-1, order="F" if not made.flags.c_contiguous else "C")
    for index, value in enumerate(state[0]):
        flat[index] = value
    made.flags.writeable = state[1]


# -- subclasses ------------------------------------------------------------------------------


@rule("numpy.ndarray", derived=True)
def _subclass(_: Pickler, obj: Any) -> Any:
    """A subclass goes as a view of its memory with its attributes, unless it has own ways."""
    np = sys.modules["numpy"]
    kind = type(obj)
    own = (np.ndarray, np.ma.MaskedArray)
    for name in ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__"):
        where = next((base for base in kind.__mro__ if name in vars(base)), object)
        if where not in own and where is not object:
            return NotImplemented
    plain = obj.view(np.ndarray)
    return make_subclass, (plain, kind), dict(obj.__dict__), None, None, fill_subclass


@rule("numpy.memmap", "numpy.core.memmap.memmap")
def _memmap(pickler: Pickler, obj: Any) -> Any:
    """A memmap comes back onto its file; a private one with what was written to it."""
    np = sys.modules["numpy"]
    if not _mapped(obj):
        return make_subclass, (obj.view(np.ndarray), np.memmap), {}, None, None, fill_subclass
    if obj.mode not in ("r", "c"):
        obj.flush()
    path = os.fspath(obj.filename)
    order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
    try:
        status = os.stat(path)
        written = _written(obj, path) if obj.mode == "c" else []
    except (OSError, ValueError) as error:
        pickler.rebuilt(obj, f"memory of its own: its file cannot be read ({error})")
        return make_subclass, (obj.view(np.ndarray), np.memmap), {}, None, None, fill_subclass
    own = f", with {len(written)} page(s) of its own" if written else ""
    pickler.rebuilt(obj, f"it is mapped again from {path}, as the file is then{own}")
    where = (path, obj.dtype, obj.mode, obj.offset, obj.shape, order)
    reduced = (*where, pickler.root, (status.st_size, status.st_mtime_ns))
    return (make_memmap, reduced, written, None, None, fill_memmap) if written else (
        make_memmap, reduced
    )  # fmt: skip


def _written(obj: Any, path: str) -> list[tuple[int, bytes]]:
    """Pages of a private memmap that differ from its file: offset and content."""
    np = sys.modules["numpy"]
    here = obj.view(np.ndarray).reshape(-1, order="A").view("u1")
    there = np.memmap(path, "u1", "r", obj.offset, (here.size,))
    found = []
    for at in range(0, here.size, _LOOK):
        if not np.array_equal(here[at : at + _LOOK], there[at : at + _LOOK]):
            found += [
                (page, here[page : page + _PAGE].tobytes())
                for page in range(at, min(at + _LOOK, here.size), _PAGE)
                if not np.array_equal(here[page : page + _PAGE], there[page : page + _PAGE])
            ]
    return found


@frozen
def make_subclass(plain: Any, kind: Any) -> Any:
    """An array as a subclass of arrays, over the same memory."""
    return plain.view(kind)


@frozen
def fill_subclass(made: Any, state: dict[str, Any]) -> None:
    """Give it its attributes."""
    made.__dict__.update(state)


@frozen
def make_memmap(
    path: str, dtype: Any, mode: Any, offset: int, shape: Any, order: Any, root: str,
    status: tuple[int, int],
) -> Any:  # fmt: skip
    """A memmap on its file, which is never made or cut."""
    import numpy as np

    from . import places, remarks

    path = places.here(path)
    if not os.path.exists(path):
        return remarks.gone(root, "numpy.memmap", f"the file {path!r} is gone")
    found = os.stat(path)
    made = np.memmap(path, dtype, mode if mode in ("r", "c") else "r+", offset, shape, order)
    if (found.st_size, found.st_mtime_ns) != status:
        remarks.remark("changed", root, "numpy.memmap", f"{path} was written to since")
    return made


@frozen
def fill_memmap(made: Any, written: list[tuple[int, bytes]]) -> None:
    """Write the pages of its own to a private memmap."""
    import numpy as np

    if not isinstance(made, np.memmap):
        return
    flat: Any = _opened(made) if not made.flags.writeable else made.view(np.ndarray)
    order: Any = "F" if made.flags.f_contiguous and not made.flags.c_contiguous else "C"
    flat = flat.reshape(-1, order=order).view("u1")
    for at, content in written:
        flat[at : at + len(content)] = np.frombuffer(content, "u1")
