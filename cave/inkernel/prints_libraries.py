"""Prints of what numpy, pandas, pyarrow, polars and torch make.

Arrays are read in the order of their elements, however they lie in memory; columns one by
one, however a frame gathers them in blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import kinds
from .prints import Printer, Unprintable

Rule = Callable[[Printer, Any], None]

COLUMNS = 256
"""Columns of a frame that are looked at."""
SAMPLE = 1_500
"""Elements that are looked at of an array that is too long to be looked at whole."""
_ENDS = 128


def known(kind: type) -> Rule | None:
    """The rule for a class of these libraries, if its instances need one."""
    if kinds.library(kind) == "matplotlib" or kinds.name(kind) == "LazyFrame":
        return _refuse
    return _RULES.get((kinds.library(kind), kinds.name(kind)))


def _refuse(_printer: Printer, _obj: Any) -> None:
    raise Unprintable


def _places(count: int, most: int) -> Any:
    """Positions to look at: all, or an even sample with both ends."""
    np = sys.modules["numpy"]
    if count <= most:
        return None
    even = np.arange(0, count, count // min(most, SAMPLE) + 1)
    return np.concatenate([np.arange(_ENDS), even, np.arange(count - _ENDS, count)])


# -- numpy -----------------------------------------------------------------------------------


def ndarray(printer: Printer, arr: Any, *, parts: int = 1) -> None:
    """Kind, shape and elements; `parts` share what room there is."""
    dtype = arr.dtype
    if kinds.name(type(arr)) not in {"ndarray", "memmap"}:
        printer._class(type(arr))
        space = {k: v for k, v in (kinds.attributes(arr) or {}).items() if k != "_sharedmask"}
        printer.mapping("attributes", space)
        arr = arr.view(sys.modules["numpy"].ndarray)
    if dtype.names:
        printer.several("record", str(dtype.descr), arr.shape)
        for name in dtype.names:
            ndarray(printer, arr[name], parts=parts * len(dtype.names))
        return
    printer.write("array", f"{dtype.str} {arr.shape}".encode())
    if not arr.size or not dtype.itemsize:
        return
    size = 64 if dtype.hasobject else dtype.itemsize
    places = _places(arr.size, max(printer.limit(parts) // size, 1024))
    if places is not None:
        flat = arr.reshape(-1) if arr.flags.c_contiguous else arr.flat
        arr = flat[places]
    if dtype.hasobject:
        printer.sequence("objects", arr.reshape(-1).tolist())
    else:
        printer.write("elements", arr.tobytes())


# -- pandas ----------------------------------------------------------------------------------


def frame(printer: Printer, df: Any) -> None:
    """Labels, then column by column."""
    count = df.shape[1]
    printer.several("frame", kinds.qualname(type(df)), df.shape, df.attrs)
    index(printer, df.index)
    index(printer, df.columns)
    chosen = range(count)
    if count > COLUMNS:
        chosen = [*range(0, count, count // COLUMNS + 1), count - 1]  # type: ignore[assignment]
    parts = max(len(chosen), 1)
    for at in chosen:
        column(printer, df._get_column_array(at), parts=parts)


def series(printer: Printer, made: Any) -> None:
    """Name, labels, values."""
    printer.several("series", kinds.qualname(type(made)), made.name, made.attrs)
    index(printer, made.index)
    column(printer, made.array)


def index(printer: Printer, made: Any) -> None:
    """The labels of a frame or series."""
    kind = kinds.name(type(made))
    printer.several("index " + kind, list(made.names))
    if kind == "RangeIndex":
        printer.several("range", made.start, made.stop, made.step)
    elif kind == "MultiIndex":
        for level, codes in zip(made.levels, made.codes, strict=True):
            index(printer, level)
            column(printer, codes)
    else:
        printer.add(str(getattr(made, "freqstr", None)))
        column(printer, made.array)


def column(printer: Printer, values: Any, *, parts: int = 1) -> None:
    """An array of numpy or an extension array of pandas."""
    if isinstance(values, sys.modules["numpy"].ndarray):
        ndarray(printer, values, parts=parts)
        return
    printer.write("column", f"{kinds.name(type(values))} {values.dtype} {len(values)}".encode())
    inner = getattr(values, "_ndarray", None)
    if kinds.name(type(values)) == "Categorical":
        printer.write("ordered" if values.ordered else "unordered")
        index(printer, values.categories)
        ndarray(printer, values.codes, parts=parts)
    elif inner is not None:
        ndarray(printer, inner, parts=parts)
    elif hasattr(values, "_pa_array"):
        chunked(printer, values._pa_array, parts=parts)
    elif hasattr(values, "_mask") and hasattr(values, "_data"):
        masked(printer, values, parts=parts)
    elif kinds.name(type(values)) == "IntervalArray":
        printer.add(values.closed)
        column(printer, values.left.array, parts=2 * parts)
        column(printer, values.right.array, parts=2 * parts)
    else:
        places = _places(len(values), 500)
        printer.sequence("items", list(values if places is None else values.take(places)))


def masked(printer: Printer, values: Any, *, parts: int) -> None:
    """Numbers with holes: what lies below a hole does not count."""
    data, mask = values._data, values._mask
    places = _places(len(data), max(printer.limit(parts) // (data.itemsize + 1), 1024))
    if places is not None:
        data, mask = data[places], mask[places]
    filled = data.copy()
    filled[mask] = 0
    printer.write("values", filled.tobytes())
    printer.write("mask", mask.tobytes())


# -- pyarrow ---------------------------------------------------------------------------------


def table(printer: Printer, made: Any) -> None:
    """A table or batch: its schema, then column by column."""
    printer.several("table", str(made.schema), made.num_rows)
    for one in made.columns:
        chunked(printer, one, parts=made.num_columns)


def chunked(printer: Printer, made: Any, *, parts: int = 1) -> None:
    """An array of Arrow, in one chunk or several."""
    count = len(made)
    printer.write("arrow", f"{made.type} {count}".encode())
    room = printer.limit(parts)
    width = max(made.nbytes // max(count, 1), 1)
    if count * width > room and count > 2 * _ENDS:
        step = count // 24
        pieces = [made.slice(at, 16) for at in range(0, count, step)]
        pieces.append(made.slice(count - _ENDS))
        made = _joined([it for piece in pieces for it in getattr(piece, "chunks", [piece])])
    _piece(printer, made)


def _joined(pieces: list[Any]) -> Any:
    arrow = sys.modules["pyarrow"]
    if isinstance(pieces[0], arrow.ExtensionArray):
        pieces = [piece.storage for piece in pieces]
    return arrow.concat_arrays(pieces)


def _piece(printer: Printer, made: Any) -> None:
    arrow = sys.modules["pyarrow"]
    if hasattr(made, "chunks") and made.num_chunks == 0:
        return
    if hasattr(made, "chunks"):
        made = _joined(made.chunks) if made.num_chunks > 1 else made.chunk(0)
    kind, types = made.type, arrow.types
    if types.is_integer(kind) or types.is_floating(kind):
        printer.write("numbers", made.to_numpy(zero_copy_only=False).tobytes())
    elif not (types.is_string(kind) or types.is_large_string(kind)) or not _texts(printer, made):
        printer.sequence("items", made.to_pylist())


def _texts(printer: Printer, made: Any) -> bool:
    """Texts as they lie in memory; False where something else is between them."""
    np, arrow = sys.modules["numpy"], sys.modules["pyarrow"]
    _, offsets, data = made.buffers()
    if offsets is None or data is None:
        return False
    size = np.int64 if arrow.types.is_large_string(made.type) else np.int32
    ends = np.frombuffer(offsets, size)[made.offset : made.offset + len(made) + 1]
    lengths = np.diff(ends)
    holes = made.is_null().to_numpy(zero_copy_only=False)
    if lengths[holes].any():
        return False
    printer.write("holes", holes.tobytes())
    printer.write("lengths", lengths.astype(np.int64).tobytes())
    printer.write("texts", memoryview(data)[ends[0] : ends[-1]])
    return True


# -- polars, torch ---------------------------------------------------------------------------


def polars_frame(printer: Printer, df: Any) -> None:
    """A schema, then column by column."""
    printer.several("polars", str(df.schema), df.height)
    for one in df.get_columns()[:COLUMNS]:
        polars_series(printer, one)


def polars_series(printer: Printer, made: Any) -> None:
    """Name, type, values."""
    printer.several("series", made.name, str(made.dtype))
    places = _places(made.len(), 1_000) if "numpy" in sys.modules else None
    printer.sequence("items", (made if places is None else made.gather(places)).to_list())


def tensor(printer: Printer, made: Any) -> None:
    """A dense tensor in ordinary memory."""
    if made.device.type != "cpu" or made.layout is not sys.modules["torch"].strided:
        raise Unprintable
    printer.several("tensor", str(made.dtype), bool(made.requires_grad))
    ndarray(printer, made.detach().contiguous().view(sys.modules["torch"].uint8).numpy()
            if made.dtype.itemsize and made.dim() else made.detach().numpy())  # fmt: skip


_RULES: dict[tuple[str, str], Rule] = {
    ("numpy", "ndarray"): ndarray,
    ("pandas", "DataFrame"): frame,
    ("pandas", "Series"): series,
    ("pandas", "Index"): index,
    ("pandas", "ExtensionArray"): column,
    ("pyarrow", "Table"): table,
    ("pyarrow", "RecordBatch"): table,
    ("pyarrow", "Array"): chunked,
    ("pyarrow", "ChunkedArray"): chunked,
    ("pyarrow", "Schema"): lambda p, o: p.several("schema", str(o)),
    ("pyarrow", "DataType"): lambda p, o: p.several("type", str(o)),
    ("polars", "DataFrame"): polars_frame,
    ("polars", "Series"): polars_series,
    ("torch", "Tensor"): tensor,
}
