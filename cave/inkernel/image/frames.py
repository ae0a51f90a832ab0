"""Rules for pandas, pyarrow and polars: no memory is copied through the stream."""

from __future__ import annotations

import copyreg
import importlib
import sys
from typing import Any

from . import memory
from .frozen import frozen
from .makers import update_dict
from .pickler import LARGE, Pickler
from .rules import rule

_BLOCKS = "pandas.core.internals.blocks."

# -- pandas ----------------------------------------------------------------------------------


@rule(f"{_BLOCKS}NumpyBlock", f"{_BLOCKS}ExtensionBlock", f"{_BLOCKS}DatetimeLikeBlock",
      f"{_BLOCKS}NDArrayBackedExtensionBlock", f"{_BLOCKS}DatetimeTZBlock")  # fmt: skip
def _block(_: Pickler, obj: Any) -> Any:
    """Blocks that share values know of each other, so that who writes copies first."""
    refs = getattr(obj, "refs", None)
    if refs is None or not refs.has_reference():
        return NotImplemented
    return make_block, (obj.values, obj.mgr_locs.indexer, obj.ndim, refs)


@rule("pandas.core.internals.managers.SingleBlockManager")
def _manager(_: Pickler, obj: Any) -> Any:
    (block,) = obj.blocks
    refs = getattr(block, "refs", None)
    if refs is None or not refs.has_reference():
        return NotImplemented
    return make_manager, (block, obj.axes[0])


@rule("pandas._libs.internals.BlockValuesRefs")
def _refs(_: Pickler, _obj: Any) -> Any:
    return make_refs, ()


@rule("pandas.core.indexes.base.Index", "pandas.Index", derived=True)
def _index(_: Pickler, obj: Any) -> Any:
    refs = vars(obj).get("_references")
    if refs is None or not refs.has_reference():
        return NotImplemented
    reduced = obj.__reduce__()
    if len(reduced) > 2 and reduced[2] is not None:
        return NotImplemented
    return (*reduced[:2], refs, None, None, fill_index)


@rule("pandas.core.arrays.arrow.array.ArrowExtensionArray", "pandas.arrays.ArrowExtensionArray",
      derived=True)  # fmt: skip
def _arrow_column(_: Pickler, obj: Any) -> Any:
    """As it is; pandas itself would put the chunks together first."""
    return copyreg.__newobj__, (type(obj),), dict(obj.__dict__), None, None, update_dict  # type: ignore[attr-defined]


@frozen
def make_block(values: Any, placement: Any, ndim: int, refs: Any) -> Any:
    """A block that shares its values."""
    blocks = importlib.import_module("pandas.core.internals.blocks")
    internals = importlib.import_module("pandas._libs.internals")
    place = internals.BlockPlacement(placement)
    values = blocks.maybe_coerce_values(values)
    return blocks.new_block(values, place, ndim=ndim, refs=refs)


@frozen
def make_manager(block: Any, axis: Any) -> Any:
    """What holds the block of a series."""
    managers = importlib.import_module("pandas.core.internals.managers")
    return managers.SingleBlockManager(block, axis)


@frozen
def make_refs() -> Any:
    """What blocks that share values know each other by."""
    return importlib.import_module("pandas._libs.internals").BlockValuesRefs()


@frozen
def fill_index(made: Any, refs: Any) -> None:
    """Let an index be known to who shares its values."""
    made._references = refs
    refs.add_index_reference(made)


# -- pyarrow ---------------------------------------------------------------------------------


@rule("pyarrow.lib.Array", derived=True)
def _array(_: Pickler, obj: Any) -> Any:
    """A slice goes as what it shows: its buffers are those of the whole."""
    if obj.get_total_buffer_size() <= 2 * obj.nbytes + LARGE:
        return NotImplemented
    return same, (_compact(obj),)


def _compact(obj: Any) -> Any:
    pa = sys.modules["pyarrow"]
    batch = pa.RecordBatch.from_arrays([obj], [""])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_all().column(0).chunk(0)


@rule("pyarrow.lib.Buffer", derived=True)
def _buffer(pickler: Pickler, obj: Any) -> Any:
    """Memory, once per stream; numpy's arrays may look at it as well."""
    if not obj.is_cpu or not obj.size or "numpy" not in sys.modules:
        return NotImplemented
    if obj.size < LARGE:
        pickler.places.add(obj.address)
    known = memory.of(pickler)
    low, high = obj.address, obj.address + obj.size
    found = known.find(low, high)
    if found is not None:
        return make_arrow_buffer, (found[0], found[1], obj.size)
    region = memory.Region(low, high, obj)
    known.claim(low, high, region, obj)
    return make_arrow_buffer, (region, 0, obj.size)


@frozen
def make_arrow_buffer(source: Any, start: int, size: int) -> Any:
    """Memory of Arrow."""
    pa = importlib.import_module("pyarrow")
    return pa.py_buffer(memoryview(_bytes(source))[start : start + size])


def _bytes(source: Any) -> Any:
    order = "F" if source.flags.f_contiguous and not source.flags.c_contiguous else "C"
    return source.reshape(-1, order=order).view("u1")


@frozen
def same(obj: Any) -> Any:
    """What it is given."""
    return obj


# -- polars ----------------------------------------------------------------------------------


@rule("polars.dataframe.frame.DataFrame")
def _polars_frame(pickler: Pickler, obj: Any) -> Any:
    """Through Arrow's memory, where that gives the same columns back."""
    return _by_arrow(pickler, obj, obj)


@rule("polars.series.series.Series")
def _polars_series(pickler: Pickler, obj: Any) -> Any:
    return _by_arrow(pickler, obj, obj.to_frame())


def _by_arrow(pickler: Pickler, obj: Any, frame: Any) -> Any:
    pl = sys.modules["polars"]
    kinds = set(map(type, frame.dtypes))
    if pl.Object in kinds:
        return make_polars, (_with_objects(pl, frame), obj is frame)
    if frame.estimated_size() < LARGE or "pyarrow" not in sys.modules:
        return NotImplemented
    try:
        table = frame.to_arrow(compat_level=pl.CompatLevel.newest())
        if pl.from_arrow(table).schema != frame.schema:
            return NotImplemented
    except Exception:
        return NotImplemented
    pickler.from_library("pyarrow")
    return make_polars, (table, obj is frame)


def _with_objects(pl: Any, frame: Any) -> Any:
    return [
        (column.name, column.to_list()) if column.dtype == pl.Object else column
        for column in frame.get_columns()
    ]


@frozen
def make_polars(data: Any, whole: bool) -> Any:
    """A frame or a series."""
    pl = importlib.import_module("polars")
    if isinstance(data, list):
        columns = [
            pl.Series(entry[0], entry[1], dtype=pl.Object) if isinstance(entry, tuple) else entry
            for entry in data
        ]
        frame = pl.DataFrame(columns)
    else:
        frame = pl.from_arrow(data)
    return frame if whole else frame.to_series(0)
