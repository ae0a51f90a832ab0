"""Arrays and scalars of numpy as raw buffers with a dtype that is spelled out.

Object arrays are written element by element with the other codecs. Arrays keep their shape,
dtype (byte order, alignment and offsets of fields included) and Fortran order; what is not
contiguous is written as a C array.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from .codec import (
    Decoder,
    Encoder,
    Malformed,
    Node,
    fields,
    instance,
    integers,
    reads,
    text,
    typename,
    writes,
)

_SIMPLE = re.compile(
    r"[|<>](b1|[iu](1|2|4|8)|f(2|4|8|12|16)|c(8|16|24|32)|[USV]\d{1,9}"
    r"|[mM]8(\[\d{0,6}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
_SCALARS = tuple({np.dtype(char).type for char in "?bBhHiIlLqQefdgFDGmMSUV"})


@writes("np.array", np.ndarray)
def write_array(enc: Encoder, arr: Any) -> list[Node]:
    """`[dtype, shape, order, ref]`, or `[None, shape, order, elements]` for objects."""
    order = "F" if arr.flags.f_contiguous and not arr.flags.c_contiguous else "C"
    flat = (arr.T if order == "F" else np.ascontiguousarray(arr)).reshape(-1)
    shape = list(arr.shape)
    if arr.dtype == object:
        return [None, shape, order, enc.nodes(flat.tolist())]
    return [write_dtype(enc, arr.dtype), shape, order, enc.stow(_raw(flat))]


def _raw(flat: Any) -> Any:
    return flat.view(np.uint8) if flat.dtype.itemsize and flat.size else b""


@reads("np.array")
def read_array(dec: Decoder, node: list[Node]) -> Any:
    """A writable array: over the buffer where that is writable, else over a copy."""
    return _array(dec, node, own=True)


def borrow(dec: Decoder, node: Node) -> Any:
    """The array of a node for someone who copies it: read-only when its buffer is."""
    if type(node) is not list or not node or node[0] != "np.array":
        raise Malformed("an array was expected")
    return _array(dec, node, own=False)


def _array(dec: Decoder, node: list[Node], *, own: bool) -> Any:
    _, dtype, dims, order, data = fields(node, 5)
    shape = tuple(integers(dims))
    if order not in ("C", "F") or len(shape) > 32 or any(n < 0 for n in shape):
        raise Malformed("not the shape of an array")
    if dtype is None:
        return _objects(dec, data, shape, order)
    kind = read_dtype(dec, dtype)
    count = math.prod(shape)
    raw = dec.raw(data)
    if len(raw) != count * kind.itemsize or (not kind.itemsize and count > 1 << 20):
        raise Malformed("the buffer of an array has another length")
    flat = np.frombuffer(raw, np.uint8) if len(raw) else np.empty(0, np.uint8)
    if (own and not flat.flags.writeable) or flat.ctypes.data % (kind.alignment or 1):
        flat = flat.copy()
    arr = np.ndarray(shape, kind, buffer=flat.data if len(raw) else None, order=order)
    _check(arr, kind)
    return arr


def _objects(dec: Decoder, data: Node, shape: tuple[int, ...], order: Any) -> Any:
    items = dec.nodes(data)
    if len(items) != math.prod(shape):
        raise Malformed("an array of objects has another length")
    flat = np.empty(len(items), object)
    for at, item in enumerate(items):
        flat[at] = item
    return flat.reshape(shape, order=order)


def _check(arr: Any, dtype: Any) -> None:
    """Booleans are 0 or 1 and characters are Unicode: numpy itself never asks."""
    if dtype.subdtype is not None:
        return
    if dtype.names is not None:
        for name in dtype.names:
            _check(arr[name], arr[name].dtype)
    elif dtype.kind == "b" and arr.size and arr.view(np.uint8).max() > 1:
        raise Malformed("not a boolean")
    elif dtype.kind == "U" and arr.size and dtype.itemsize:
        _check_text(np.ascontiguousarray(arr).reshape(-1).view(dtype.byteorder + "u4"))


def _check_text(points: Any) -> None:
    if points.max() > 0x10FFFF:
        raise Malformed("not a character")


# -- dtypes ----------------------------------------------------------------------------------


def write_dtype(enc: Encoder, dtype: Any) -> Node:
    """The dtype's own short name, or its fields with offsets."""
    if dtype.hasobject:
        raise enc.refusal("an array with Python objects among its fields")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["sub", write_dtype(enc, base), list(shape)]
    if dtype.names is not None:
        return ["struct", [_field(enc, dtype, name) for name in dtype.names], dtype.itemsize,
                dtype.isalignedstruct]  # fmt: skip
    if dtype.type not in _SCALARS or not _SIMPLE.fullmatch(dtype.str):
        raise enc.refusal(f"an array of dtype {dtype}")
    return dtype.str


def _field(enc: Encoder, dtype: Any, name: str) -> Node:
    inner, offset, *title = dtype.fields[name]
    return [enc.node(name), write_dtype(enc, inner), offset, enc.node(title[0] if title else None)]


def read_dtype(dec: Decoder, node: Node) -> Any:
    """A dtype without objects. Raises `Malformed`, or what numpy says of its parts."""
    match node:
        case str() if _SIMPLE.fullmatch(node):
            return np.dtype(node)
        case ["sub", base, list(shape)]:
            return np.dtype((read_dtype(dec, base), tuple(integers(shape))))
        case ["struct", list(members), int(size), bool(align)]:
            return _struct(dec, members, size, align=align)
    raise Malformed("not a dtype")


def _struct(dec: Decoder, members: list[Node], size: int, *, align: bool) -> Any:
    names, formats, offsets, titles = [], [], [], []
    for member in members:
        name, inner, offset, title = instance(member, list)
        names.append(text(dec.node(name)))
        formats.append(read_dtype(dec, inner))
        offsets.append(instance(offset, int))
        titles.append(None if title is None else text(dec.node(title)))
    spec = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    if any(title is not None for title in titles):
        spec["titles"] = titles
    made = np.dtype(spec, align=align)  # type: ignore[call-overload]
    if made.itemsize != size:
        raise Malformed("not the size of its fields")
    return made


# -- scalars ---------------------------------------------------------------------------------


@writes("np.scalar", *_SCALARS)
def _write_scalar(enc: Encoder, obj: Any) -> list[Node]:
    """Texts go as they are: an array would strip the zeros at their ends."""
    if type(obj) is np.str_:
        return ["U", enc.node(str(obj))]
    if type(obj) is np.bytes_:
        return ["S", enc.node(bytes(obj))]
    arr = np.asarray(obj)
    if type(arr[()]) is not type(obj):
        raise enc.refusal(f"a scalar of {typename(obj)}")
    return [write_dtype(enc, arr.dtype), enc.stow(_raw(arr.reshape(-1)))]


@reads("np.scalar")
def _read_scalar(dec: Decoder, node: list[Node]) -> Any:
    _, dtype, data = fields(node, 3)
    if dtype == "U":
        return np.str_(text(dec.node(data)))
    if dtype == "S":
        return np.bytes_(instance(dec.node(data), bytes))
    arr = _array(dec, ["np.array", dtype, [], "C", data], own=True)
    return arr[()]
