"""Does in IPython with Kishu what `snapshots.py` does in cave; run by the interpreter that has it.

    PYTHON benchmarks/peer_kishu.py FOLDER

Reads one request of JSON a line, `{"cell": SOURCE}` or `{"back": true}` (come back to the last
checkpoint of an earlier process in FOLDER), and answers each with a line of JSON: the seconds
that Kishu took beside the cell itself, and the bytes by which its database grew.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Spent:
    """Seconds in Kishu's hooks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on(self, hook: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(given: Any) -> None:
            began = time.perf_counter()
            hook(given)
            self.seconds += time.perf_counter() - began

        return timed


def attach(folder: Path) -> tuple[Any, Any, Spent]:
    os.environ["KISHU_PATH_ROOT"] = str(folder)
    import nbformat
    from IPython.core.interactiveshell import InteractiveShell
    from kishu.jupyterint import KishuForJupyter  # type: ignore[import-not-found]
    from kishu.notebook_id import NotebookId  # type: ignore[import-not-found]

    notebook = folder / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), notebook)
    KishuForJupyter.save_notebook = lambda self: None  # there is no browser that would
    KishuForJupyter.reload_jupyter_frontend = lambda self: None
    shell = InteractiveShell.instance()
    kishu = KishuForJupyter(NotebookId("key", notebook, "kernel"), shell)
    spent = Spent()
    kishu.pre_run_cell = spent.on(kishu.pre_run_cell)
    kishu.post_run_cell = spent.on(kishu.post_run_cell)
    kishu.install_kishu_hooks()
    return shell, kishu, spent


def size(kishu: Any) -> int:
    base = kishu.database_path()
    return sum(path.stat().st_size for path in base.parent.glob(base.name + "*"))


def come_back(folder: Path, kishu: Any) -> None:
    """A check-out of the newest commit, which an earlier process noted."""
    kishu.checkout((folder / "commit").read_text(), skip_notebook=True)


def note(folder: Path, kishu: Any) -> None:
    (folder / "commit").write_text(kishu._kishu_graph.head())  # noqa: SLF001  there is no other way


def answer(folder: Path, request: dict[str, Any], shell: Any, kishu: Any, spent: Spent) -> Any:
    before, spent.seconds = size(kishu), 0.0
    if "back" in request:
        began = time.perf_counter()
        come_back(folder, kishu)
        return {"seconds": time.perf_counter() - began, "written": 0}
    result = shell.run_cell(request["cell"], store_history=True)
    result.raise_error()
    note(folder, kishu)
    return {"seconds": spent.seconds, "written": size(kishu) - before}


def main() -> None:
    folder = Path(sys.argv[1])
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Kishu prints is no answer
    shell, kishu, spent = attach(folder)
    for line in sys.stdin:
        try:
            found = answer(folder, json.loads(line), shell, kishu, spent)
        except Exception as fault:  # noqa: BLE001  told to who asked
            found = {"fault": f"{type(fault).__name__}"}
        print(json.dumps(found), file=told, flush=True)


if __name__ == "__main__" and len(sys.argv) > 1:
    main()
