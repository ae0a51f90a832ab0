"""Large columns of plain objects: written once, as long as they stay the same.

An array of str, int, None and the like is what its pointers say while the objects that they
point to live. So its content is kept as it was written, beside a copy of the pointers that
holds the objects: the same pointers later are the same content, and the same memory is given
for it. An array that ends takes along what is kept of it.
"""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from dataclasses import dataclass
from typing import Any

from .. import kinds
from ..byvalue import Sink
from . import nans, strings
from .frozen import frozen

_FEW = 1024
"""Elements from which on it pays."""
_REPEATED = 2
"""Distinct objects are told apart when there are so many times fewer of them."""
_MUCH = 64 << 20
"""Bytes of pointers that are kept for one array at most, and for all together four times."""
_PLAIN = frozenset({str, int, float, bool, type(None), bytes, complex})


@dataclass(slots=True)
class _Column:
    """An array as it was written last."""

    pointers: Any
    made: Any
    """A function that makes it again, and its first arguments."""
    owner: Any
    """A weak reference to the array."""


_kept: dict[int, _Column] = {}


def reduce(obj: Any, flat: Any) -> Any:
    """The function that makes an array of plain objects again, and its first arguments.

    None when it has others too, or few. `flat` has them in the order of its memory.
    """
    if len(flat) < _FEW:
        return _write(flat)
    address: int = flat.__array_interface__["data"][0]
    keeps = address == obj.__array_interface__["data"][0] and flat.nbytes <= _MUCH
    known = _kept.get(address) if keeps else None
    if known is not None and known.owner() is not None and _same(known.pointers, flat):
        return known.made
    _kept.pop(address, None)
    made = _write(flat)
    if keeps and made is not None:
        _keep(address, obj, flat, made)
    return made


def _write(flat: Any) -> Any:
    if len(flat) < _FEW:
        texts = strings.reduce(flat)
        return None if texts is None else (make_strings, texts)
    values, places = _distinct(flat)
    found = kinds.sorts(values)
    if not found <= _PLAIN:
        return None
    if places is None and (texts := strings.reduce(flat, found)) is not None:
        return make_strings, texts
    if float in found and (where := nans.foreign(values)):
        own = tuple(values[at] for at in where)
        for at in where:
            values[at] = 0.0
        return make_holed, (pickle.PickleBuffer(_dumped(values)), places, own, tuple(where))
    return make_plain, (pickle.PickleBuffer(_dumped(values)), places)


def _distinct(flat: Any) -> tuple[list[Any], Any]:
    """Its distinct objects, and for each element which one it is.

    All objects as they come, and None, when there are nearly as many.
    """
    np, pd = sys.modules["numpy"], sys.modules.get("pandas")
    pointers = _pointers(flat)
    ordered = np.sort(pointers)
    count = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    if count * _REPEATED > len(flat):
        return flat.tolist(), None
    if pd is not None and hasattr(pd, "factorize"):
        places, found = pd.factorize(pointers.view("i8"))
        first = np.empty(len(found), "i8")
        first[places[::-1]] = np.arange(len(flat) - 1, -1, -1)
    else:
        _, first, places = np.unique(pointers, return_index=True, return_inverse=True)
    return flat[first].tolist(), places.astype("u4" if count < 1 << 32 else "u8")


def _dumped(values: list[Any]) -> bytearray:
    """Plain objects, few of them twice: a memo would be good for little."""
    pickler = pickle.Pickler(file := Sink(), 5)
    pickler.fast = True
    pickler.dump(values)
    nans.mark(file, values)
    return file


class _Undumped(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return nans.nan(pid)


def _pointers(flat: Any) -> Any:
    """The memory of an array of objects, as numbers."""
    np = sys.modules["numpy"]
    found = type("", (), {"__array_interface__": {
        "data": (flat.__array_interface__["data"][0], True), "shape": (len(flat),),
        "typestr": "<u8" if sys.byteorder == "little" else ">u8", "version": 3,
    }})()  # fmt: skip
    return np.asarray(found)


def _same(kept: Any, flat: Any) -> bool:
    np = sys.modules["numpy"]
    return len(kept) == len(flat) and bool(np.array_equal(_pointers(kept), _pointers(flat)))


def _keep(address: int, obj: Any, flat: Any, made: Any) -> None:
    def ended(gone: Any) -> None:
        if address in _kept and _kept[address].owner is gone:
            del _kept[address]

    _kept[address] = _Column(flat.copy(), made, weakref.ref(obj, ended))
    while sum(column.pointers.nbytes for column in _kept.values()) > 4 * _MUCH:
        del _kept[next(iter(_kept))]


@frozen
def make_plain(data: Any, places: Any, shape: Any, order: Any, writeable: bool) -> Any:
    """An array of plain objects, whose distinct ones were written apart."""
    import numpy as np

    values = _Undumped(io.BytesIO(data)).load()
    flat = np.empty(len(values), object)
    flat[:] = values
    return _shaped(flat if places is None else flat[places], shape, order, writeable)


@frozen
def make_holed(
    data: Any, places: Any, own: tuple[float, ...], where: tuple[int, ...], shape: Any, order: Any,
    writeable: bool,
) -> Any:  # fmt: skip
    """The same, with NaN that others may hold among its distinct objects."""
    import numpy as np

    values = _Undumped(io.BytesIO(data)).load()
    for at, value in zip(where, own, strict=True):
        values[at] = value
    flat = np.empty(len(values), object)
    flat[:] = values
    return _shaped(flat if places is None else flat[places], shape, order, writeable)


@frozen
def make_strings(data: Any, missing: Any, shape: Any, order: Any, writeable: bool) -> Any:
    """An array of str, None and NaN."""
    return _shaped(strings.make(data, missing), shape, order, writeable)


def _shaped(flat: Any, shape: Any, order: Any, writeable: bool) -> Any:
    made = flat.reshape(shape, order=order)
    made.flags.writeable = writeable
    return made
