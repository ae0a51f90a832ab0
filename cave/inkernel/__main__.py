"""Entry point: loads this folder as the package `_cave_kernel` and runs the kernel."""

import importlib
import importlib.util
import os
import sys

OLDEST = (7, 4)


def _load() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    # sys.path[0] is this folder, or with `-m` the working directory: neither may shadow
    # anything while we import; ipykernel puts the working directory back
    if sys.path and (not sys.path[0] or os.path.realpath(sys.path[0]) in _own(here)):
        del sys.path[0]
    spec = importlib.util.spec_from_file_location(
        "_cave_kernel", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_cave_kernel"] = module
    spec.loader.exec_module(module)


def _own(here: str) -> set[str]:
    try:
        return {os.path.realpath(here), os.path.realpath(os.getcwd())}
    except OSError:
        return {os.path.realpath(here)}


def _require() -> None:
    wanted = "'ipykernel>=7.4' dill"
    try:
        import dill  # noqa: F401
        import ipykernel
    except ImportError as exc:
        sys.exit(
            f"cave: {sys.executable} lacks {exc.name!r}, which a session's kernel needs; "
            f"type: {sys.executable} -m pip install {wanted}"
        )
    version = str(vars(ipykernel)["__version__"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        sys.exit(
            f"cave: {sys.executable} has ipykernel {version}, and a session's kernel needs "
            f"7.4 or later; type: {sys.executable} -m pip install {wanted}"
        )


if __name__ == "__main__":
    _load()
    _require()
    if sys.argv[1:2] == ["--template"]:
        importlib.import_module("_cave_kernel.template").main(sys.argv[2:])
    else:
        importlib.import_module("_cave_kernel.app").main(sys.argv[1:])
