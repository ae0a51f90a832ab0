from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest

from cave.errors import ConfigError, StoreError
from cave.events import (
    CellFinished,
    CellStarted,
    CellStatus,
    Event,
    Fault,
    Output,
    SessionOpened,
    ValuesPut,
    Variable,
)
from cave.export import export
from cave.records import decode

STORY = Path(__file__).parent / "stream" / "golden" / "story.jsonl"


def story() -> list[Event]:
    records = map(json.loads, STORY.read_text("utf-8").splitlines())
    return [
        decode(r["type"], json.dumps(r["body"]).encode(), seq=r["seq"], at=r["at"], session="q3")
        for r in records
    ]


def journal(*cells: str | tuple[str, CellStatus]) -> list[Event]:
    events: list[Event] = [SessionOpened(version="0", seq=1)]
    for number, cell in enumerate(cells, 1):
        source, status = (cell, "ok") if isinstance(cell, str) else cell
        fault = None if status == "ok" else Fault("ValueError", "no", "ValueError: no")
        events += [
            CellStarted(cell=number, source=source),
            CellFinished(cell=number, status=status, error=fault, seq=2 * number + 1),
        ]
    return events


def ran(path: Path) -> str:
    """What the script prints when plain Python runs it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(tmp_path: Path, events: Iterable[Event]) -> Path:
    return export(events, tmp_path / "s.py", name="q3")


def test_a_notebook_tells_the_story(tmp_path: Path) -> None:
    """Prompts, notes and answers in markdown, cells with count, outputs and faults, in order."""
    path = export(story(), tmp_path / "q3.ipynb", name="q3")
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert book.metadata.kernelspec.name == "cave-python"
    assert book.metadata.cave.session == "q3"
    assert book.metadata.cave.seq == len(story())
    kinds = [c.cell_type for c in book.cells]
    assert kinds.count("code") == 6
    prose = "\n".join(c.source for c in book.cells if c.cell_type == "markdown")
    assert "Which airline left latest on average?" in prose
    assert "*Group by the column name instead.*" in prose
    assert "**ExpressJet Airlines Inc.** left latest" in prose
    assert "- `flights`: DataFrame 4,000 x 7 year i64" in prose
    assert "**The kernel died (signal 9).**" in prose
    code = [c for c in book.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == [1, 2, 3, 4, 5, 6]
    assert code[2].outputs[-1].ename == "KeyError"
    assert [o.output_type for o in code[3].outputs] == ["stream", "execute_result", "stream"]
    assert code[4].outputs[2].data["image/png"].startswith("iVBOR")
    assert "[cut: the cell put out 988,890 characters]" in code[4].outputs[-1].text


def test_an_export_is_a_pure_projection(tmp_path: Path) -> None:
    """The same events give the same bytes."""
    for name in ("q3.ipynb", "q3.py"):
        first = export(story(), tmp_path / name, name="q3").read_bytes()
        assert export(story(), tmp_path / name, name="q3").read_bytes() == first


def test_cut_text_is_completed_from_its_blob(tmp_path: Path) -> None:
    """Where the whole text can be had and is not too long, the notebook has it."""
    path = export(story(), tmp_path / "q3.ipynb", name="q3", read_blob=lambda _: "all of it\n")
    cell = next(c for c in nbformat.read(path, 4).cells if c.get("execution_count") == 5)
    assert cell.outputs[0].text == "all of it\n"
    assert not any("[cut" in str(o.get("text")) for o in cell.outputs)


def test_huge_output_is_clipped_with_a_marker(tmp_path: Path) -> None:
    """A notebook stays one that can be opened; the size that was cut is named."""
    events = journal("print('x' * 5_000_000)")
    text = Output("stream", "x" * 5_000_000, "stdout")
    events[-1] = CellFinished(cell=1, status="ok", outputs=(text,))
    path = export(events, tmp_path / "big.ipynb", name="q3")
    assert path.stat().st_size < 200_000
    assert "of 5,000,000 characters left out" in path.read_text()


def test_odd_outputs_are_valid_notebooks(tmp_path: Path) -> None:
    """Surrogates, nested MIME types, lists, scripts and empty errors pass nbformat's schema."""
    outputs = (
        Output("stream", "\udcc3\x1b[31m", "odd"),
        Output("display_data", data={"application/json": {"a": [1]}, "text/plain": ["a", "b"]}),
        Output("display_data", data={"application/vnd.x.v1+json": {"a": 1}, "text/x": 5}),
        Output("display_data", data={"application/javascript": "alert(1)"}),
        Output("error"),
    )
    events = journal("x")
    events[-1] = CellFinished(cell=1, status="ok", outputs=outputs)
    path = export(events, tmp_path / "odd.ipynb", name="q3")
    nbformat.validate(nbformat.read(path, as_version=4))
    assert "alert(1)" not in path.read_text()


def test_a_cell_that_has_not_ended_is_said_to_run(tmp_path: Path) -> None:
    """A journal cut in the middle of a cell exports too."""
    path = export(journal("x = 1")[:-1], tmp_path / "cut.ipynb", name="q3")
    assert "has not ended" in path.read_text()


def test_a_script_runs_again(tmp_path: Path) -> None:
    """Plain cells, and cells that raised half-way, give the same names and outputs."""
    path = script(
        tmp_path,
        journal("x = 1", ("y = 2\nraise ValueError('no')", "error"), "print(x + y)"),
    )
    assert ran(path) == "3\n"
    assert "# %% cell 3" in path.read_text()


def test_a_script_awaits(tmp_path: Path) -> None:
    """Top-level await runs in a loop of its own and binds the script's globals."""
    source = '''import asyncio as aio
text = """
two lines"""
async def f(n):
    inner = n
    return inner
got = [await f(k) for k in range(3)]
await aio.sleep(0)'''
    path = script(tmp_path, journal(source, "print(got, repr(text), aio.__name__)"))
    assert ran(path) == "[0, 1, 2] '\\ntwo lines' asyncio\n"


def test_a_script_has_no_magics(tmp_path: Path) -> None:
    """What only IPython understands becomes a comment, and the cells around it run."""
    path = script(
        tmp_path,
        journal(
            "%matplotlib inline\nx = 1",
            "for k in range(1):\n    !ls",
            "%%time\ny = 2\n%timeit y",
            "%%bash\nls /",
            "x?",
            "print(x, y)",
        ),
    )
    assert ran(path) == "1 2\n"


def test_a_script_begins_with_its_futures(tmp_path: Path) -> None:
    """`from __future__` of a later cell moves to where Python allows it."""
    future = "from __future__ import (\n    annotations,\n)\nx: Missing = 1"
    path = script(tmp_path, journal("y = 1", future, "print(x + y)"))
    assert ran(path) == "2\n"


@pytest.mark.parametrize("status", ["timeout", "interrupted", "died"])
def test_a_script_leaves_out_what_was_stopped(tmp_path: Path, status: CellStatus) -> None:
    """A cell that was stopped or killed the kernel is a comment that says why."""
    path = script(tmp_path, journal(("while True: pass", status), "print(1)"))
    assert ran(path) == "1\n"
    assert f"# left out ({status}: ValueError)" in path.read_text()


def test_a_script_leaves_out_what_is_no_python(tmp_path: Path) -> None:
    """A syntax error in one cell does not make a syntax error of the script."""
    path = script(tmp_path, journal(("x = (", "error"), "print(1)"))
    assert ran(path) == "1\n"


def test_prose_cannot_become_code(tmp_path: Path) -> None:
    """Line ends of every kind in prompts and values stay inside comments."""
    odd = Variable("x", "int", summary="a\x0bimport os\rprint('escaped')\u2028print('escaped')")
    path = script(tmp_path, [ValuesPut(variables=(odd,))])
    assert ran(path) == ""


def test_an_export_is_replaced_by_a_newer_one(tmp_path: Path) -> None:
    """A file that is an export of ours, untouched, is written again without asking."""
    for name in ("q3.ipynb", "q3.py"):
        export(story()[:5], tmp_path / name, name="q3")
        path = export(story(), tmp_path / name, name="q3")
        assert "ExpressJet" in path.read_text()


@pytest.mark.parametrize("name", ["q3.ipynb", "q3.py"])
def test_an_edited_export_is_kept(tmp_path: Path, name: str) -> None:
    """What a person changed in an export is not lost, unless they say overwrite=True."""
    path = export(story(), tmp_path / name, name="q3")
    edited = path.read_text().replace("flights.merge", "flights.join")
    path.write_text(edited)
    with pytest.raises(ConfigError, match="overwrite=True"):
        export(story(), path, name="q3")
    assert path.read_text() == edited
    assert export(story(), path, name="q3", overwrite=True).read_text() != edited


@pytest.mark.parametrize("content", [b"", b"x = 1\n", b"{}", b"[1]", b'{"cells": 1}', b"\xff\x00"])
@pytest.mark.parametrize("name", ["mine.ipynb", "mine.py"])
def test_another_file_is_kept(tmp_path: Path, name: str, content: bytes) -> None:
    """A file that no export of ours made is never replaced unasked."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="overwrite=True"):
        export(story(), path, name="q3")
    assert path.read_bytes() == content


def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path) -> None:
    """The form follows the suffix; another one is refused with those that there are."""
    with pytest.raises(ConfigError, match=r"\.ipynb, \.py or \.dill"):
        export(story(), tmp_path / "q3.docx", name="q3")


def test_a_missing_folder_says_what_to_type(tmp_path: Path) -> None:
    """No folder is made by guess."""
    with pytest.raises(ConfigError, match="mkdir -p"):
        export(story(), tmp_path / "no" / "q3.py", name="q3")
    (tmp_path / "d.py").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        export(story(), tmp_path / "d.py", name="q3")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room the old export stays whole, nothing is left beside it, the error is typed."""
    path = export(story()[:5], tmp_path / "q3.ipynb", name="q3")
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        export(story(), path, name="q3")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
