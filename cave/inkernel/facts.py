"""What the host wants to know of this process."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from typing import Any

_PACKAGES = ("pandas", "numpy", "pyarrow", "polars", "dill", "ipykernel", "ipython")


@functools.cache
def of_process() -> dict[str, Any]:
    """Pid, interpreter, and the versions that decide how values cross."""
    return {
        "pid": os.getpid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
