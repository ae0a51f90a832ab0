"""Loads `cave/inkernel` as the kernel does: a folder, under the name `_cave_kernel`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "cave" / "inkernel"


def load(name: str) -> ModuleType:
    """A module of the kernel's side, as `_cave_kernel.NAME`."""
    if "_cave_kernel" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "_cave_kernel", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["_cave_kernel"] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"_cave_kernel.{name}")
