"""Kinds of other libraries that pickle takes and does not give back, or not with a reason."""

from __future__ import annotations

import copyreg
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import kinds
from .frozen import frozen
from .lost import Lost
from .makers import set_state
from .places import here
from .recipes_processes import losing
from .remarks import gone
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_newobj = copyreg.__newobj__  # type: ignore[attr-defined]

losing(
    "it reads a file piece by piece; open it again, and skip what you have read",
    "pandas.io.parsers.readers.TextFileReader", "pandas.io.json._json.JsonReader",
    "pandas.io.stata.StataReader", "pandas.io.sas.sas_xport.XportReader",
    "pyarrow.lib.RecordBatchReader", "pyarrow.ipc.RecordBatchStreamReader",
    "pyarrow.ipc.RecordBatchFileReader", "pyarrow._csv.CSVStreamingReader",
)  # fmt: skip
losing(
    "it holds a file open; open it again",
    "pandas.io.excel._base.ExcelFile", "pandas.io.pytables.HDFStore",
    "pandas.io.excel._base.ExcelWriter", "pyarrow.parquet.core.ParquetFile",
    "pyarrow.parquet.core.ParquetWriter", "pyarrow.lib.NativeFile",
    "pyarrow.lib._CRecordBatchWriter", "h5py._hl.files.File", "netCDF4._netCDF4.Dataset",
    "openpyxl.reader.excel.ExcelReader",
)  # fmt: skip
losing("a bar of a loop that has ended", "tqdm.std.tqdm")
losing("it draws in a terminal that is gone", "rich.live.Live", "rich.progress.Progress")


# -- PIL -----------------------------------------------------------------------------------------


@rule("PIL.ImageFile.ImageFile", derived=True)
def _image(pickler: Pickler, obj: Any) -> Any:
    """Opening reads the header only. An image of several frames needs its file."""
    if not getattr(obj, "is_animated", False):
        if getattr(obj, "fp", None) is not None or getattr(obj, "_fp", None) is not None:
            obj.load()
        return NotImplemented
    path = getattr(obj, "filename", "")
    if not isinstance(path, str) or not path:
        return pickler.lose(obj, "an image of several frames that was read from no file")
    pickler.rebuilt(obj, f"opened again from {path!r}, at frame {obj.tell()}")
    return make_image, (pickler.root, os.path.abspath(path)), obj.tell(), None, None, fill_image


@frozen
def make_image(root: str, path: str) -> Any:
    """An image of several frames, opened from its file."""
    from PIL import Image

    path = here(path)
    if not os.path.exists(path):
        return gone(root, "PIL.Image", f"the file {path!r} is gone")
    return Image.open(path)


@frozen
def fill_image(made: Any, frame: int) -> None:
    """Go to its frame."""
    if not isinstance(made, Lost):
        made.seek(frame)


# -- ipywidgets ----------------------------------------------------------------------------------

_OF_CLASS = ("_model_", "_view_", "_dom_classes", "comm", "keys", "log", "tabbable", "tooltip")


@rule("ipywidgets.widgets.widget.Widget", derived=True)
def _widget(pickler: Pickler, obj: Any) -> Any:
    """Its traits; what connected it to a browser is made anew."""
    pickler.rebuilt(
        obj, "a new widget with the same values; display it again, and register callbacks again"
    )
    state = {
        name: getattr(obj, name)
        for name in obj.keys
        if not name.startswith(_OF_CLASS) and not obj.traits()[name].read_only
    }
    return make_widget, (type(obj), state)


@frozen
def make_widget(kind: Any, state: dict[str, Any]) -> Any:
    """A widget with these values."""
    return kind(**{name: value for name, value in state.items() if not isinstance(value, Lost)})


# -- callbacks that libraries leave out ----------------------------------------------------------


@rule("matplotlib.cbook.CallbackRegistry", derived=True)
def _callbacks(_: Pickler, obj: Any) -> Any:
    """With the callbacks of the user, and of widgets: matplotlib drops all but its own."""
    state = obj.__getstate__()
    for signal, known in obj.callbacks.items():
        for number, proxy in known.items():
            call = proxy()
            if call is not None and _is_of_user(call):
                state["callbacks"].setdefault(signal, {})[number] = call
    return _newobj, (type(obj),), state


def _is_of_user(call: Any) -> bool:
    owner = getattr(call, "__self__", None)
    module = kinds.module(type(owner)) if owner is not None else getattr(call, "__module__", "")
    return module in ("__main__", "matplotlib.widgets")


@rule("traitlets.traitlets.HasTraits", derived=True)
def _has_traits(_: Pickler, obj: Any) -> Any:
    """With what observes this object: traitlets keeps only what observes all of its class."""
    reduced = obj.__reduce_ex__(5)
    handlers = sys.modules["traitlets"].EventHandler
    observing = [
        (handler, name, kind)
        for name, by_kind in getattr(obj, "_trait_notifiers", {}).items()
        for kind, found in by_kind.items()
        for handler in found
        if not isinstance(handler, handlers)
    ]
    if not observing or reduced[0] is not _newobj or any(map(_is_some, reduced[3:])):
        return NotImplemented
    return (*reduced[:2], (reduced[2], observing), None, None, fill_observed)


def _is_some(part: Any) -> bool:
    return part is not None


@frozen
def fill_observed(made: Any, state: tuple[Any, list[tuple[Any, Any, Any]]]) -> None:
    """Give an object its traits, and then who hears of them."""
    set_state(made, state[0])
    for handler, name, kind in state[1]:
        made._add_notifiers(handler, name, kind)


# -- processes -----------------------------------------------------------------------------------


@rule("psutil.Process")
def _process(pickler: Pickler, obj: Any) -> Any:
    """This process is the next kernel then; another one is the same, if it still runs."""
    if obj.pid == os.getpid():
        pickler.rebuilt(obj, "the process of the kernel, which is another one then")
        return make_process, ()
    pickler.rebuilt(obj, f"process {obj.pid}, if it still runs then")
    return NotImplemented


@frozen
def make_process() -> Any:
    """The process of this kernel."""
    return importlib.import_module("psutil").Process()
