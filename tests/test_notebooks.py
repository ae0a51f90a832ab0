"""The notebooks are run from the first cell to the last, without a model or a display."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FEW = {"RECORDS": 200, "KILLS": 2}
"""What cells that are tagged as parameters say in a test: as little as will do."""
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
@pytest.mark.usefixtures("sessions")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell runs without an error in a fresh kernel and an empty home."""
    monkeypatch.chdir(tmp_path)
    notebook = shortened(nbformat.read(path, as_version=4))
    client = NotebookClient(
        notebook,
        timeout=100,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    codes = [c for c in notebook.cells if c.cell_type == "code"]
    assert codes
    assert all(c.execution_count for c in codes)
    assert not [o for c in codes for o in c.outputs if o.output_type == "error"]


def shortened(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook, with its parameters small."""
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            names = [line.split(" = ")[0] for line in cell.source.splitlines()]
            cell.source = "\n".join(f"{name} = {FEW[name]}" for name in names)
    return notebook


def test_there_are_notebooks() -> None:
    """The folder is not empty, so that the test above checks something."""
    assert NOTEBOOKS
