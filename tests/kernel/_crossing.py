"""The two roads between host and kernel, in one process."""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from cave.kernel import values
from cave.kernel.values import Parcel
from cave.ports import KernelFacts
from tests import _inkernel

kernel: Any = _inkernel.load("values")

VERSIONS = {"pandas": pd.__version__, "numpy": np.__version__, "pyarrow": pa.__version__,
            "polars": pl.__version__, "dill": "0.4"}  # fmt: skip


def peer(python: str = platform.python_version(), **packages: str | None) -> KernelFacts:
    found = {k: v for k, v in (VERSIONS | packages).items() if v is not None}
    return KernelFacts(1, python, "python", found, "open", Path("k.json"), 0.0)


def got(obj: object, *, writable: bool = False, allow_pickle: bool = False) -> Any:
    """An object as `get` gives it."""
    kind, header, buffers = kernel.dump("v", obj, allow_pickle=allow_pickle)
    make = bytearray if writable else bytes
    parcel = Parcel(kind, header, [make(buffer) for buffer in buffers])
    return values.unpack(parcel, name="v", allow_pickle=allow_pickle)


def put(to: KernelFacts | None = None, /, **objects: object) -> dict[str, Any]:
    """Objects as a kernel gets them."""
    parcel = values.pack(objects, peer=to or peer())
    return kernel.load(parcel.kind, parcel.header, [bytearray(b) for b in parcel.buffers])
