"""What the host wants to know of this process."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterable
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


DISTRIBUTIONS = {
    "IPython": "ipython",
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""Distributions that are called otherwise than their module."""


def versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the distributions that have these top-level modules, where that is known."""
    found = {name: _version_of(name) for name in names if name not in sys.stdlib_module_names}
    return {name: version for name, version in found.items() if version}


@functools.cache
def _version_of(name: str) -> str:
    return _version(DISTRIBUTIONS.get(name, name))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
