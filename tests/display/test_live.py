from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import nbclient
import nbformat

from cave.display import LiveTurn
from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Event,
    InterruptSent,
    Output,
    TurnFinished,
)

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Ascii(io.StringIO):
    encoding = "ascii"


def told(events: list[Event], stream: io.StringIO, **options: bool) -> str:
    live = LiveTurn.for_environment(stream, **options)
    for event in events:
        live(event)
    live.close()
    return stream.getvalue()


def test_a_stream_gets_plain_lines(events: list[Event]) -> None:
    """Notes, sources, outputs, ends, changes, deaths with their losses, and the answer."""
    text = told(events, io.StringIO())
    for line in (
        "turn 1 · scripted",
        "  Join the names and average the delays.",
        '    joined.groupby("airline")["dep_delay"].mean()',
        "  ✗ cell 3 error 0.3 s · KeyError: 'airline'",
        "    + joined DataFrame 4,000 x 8 310 kB",
        "  ● a reply could not be used: Send one block of Python, or the answer as plain text.",
        "  │ rows 4000",
        "  │ ExpressJet Airlines Inc.    22.1",
        "  ✓ cell 4 ok 0.1 s",
        "**ExpressJet Airlines Inc.** left latest: 22.1 minutes on average (`top`).",
        "  ✗ kernel died (signal 6); lost: top (Series), fig (Figure)",
        "turn 2 needs_attention: go on with s.resume()",
    ):
        assert line in text.splitlines()
    assert "\x1b" not in text


def test_output_is_limited_and_counted(events: list[Event]) -> None:
    """A cell that prints much shows its first lines and the number of the others."""
    text = told(events, io.StringIO())
    assert "  │ bar 39" in text
    assert "  │ bar 40" not in text
    assert "more lines" in text


def test_the_answer_is_left_to_the_caller(events: list[Event]) -> None:
    """With answer=False narration has no answer, so that it is printed once, on stdout."""
    assert "left latest" not in told(events, io.StringIO(), answer=False)


def test_advice_is_what_to_type_there() -> None:
    """Beside an answer on stdout advice names verbs of cave; an error is left to the caller."""
    ends: list[Event] = [
        TurnFinished(turn=2, status="interrupted", reason="interrupted; go on with s.resume()"),
        TurnFinished(turn=3, status="failed", reason="the key was refused"),
    ]
    ends = [replace(end, session="q3") for end in ends]
    assert told(ends, io.StringIO(), answer=False).splitlines() == [
        "turn 2 interrupted; go on with `cave resume q3`",
        "turn 3 failed",
    ]
    assert "turn 3 failed: the key was refused" in told(ends, io.StringIO())


def test_a_terminal_gets_colours(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours of ours on a terminal; none of them when NO_COLOR is set."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[32m" in told(events, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in told(events, Terminal())


def test_no_escape_of_a_cell_reaches_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cells print, raise and are made of is harmless on a real terminal too."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    evil = "\x1b]0;owned\x07\x1b[2J\u202e[red]"
    text = told(
        [
            CellStarted(cell=1, source=evil, note=evil),
            CellOutput(cell=1, output=Output("stream", evil + "\n", "stdout")),
            CellOutput(cell=1, output=Output("display_data", data={"text/plain": evil})),
            CellFinished(cell=1, status="ok"),
            InterruptSent(cell=1, action="refused", reason=evil),
            TurnFinished(turn=1, status="done", answer=evil),
        ],
        Terminal(),
    )
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert text.count("[red]") == 6


def test_a_stream_without_utf8_gets_ascii(events: list[Event]) -> None:
    """Where the encoding has no marks of ours, others stand for them."""
    text = told(events, Ascii())
    text.encode("ascii")
    assert "+ cell 4 ok" in text


def test_a_line_without_end_is_bounded() -> None:
    """Megabytes without a newline, or a progress bar, end as one short line."""
    piece = Output("stream", "\rstep" + "x" * 10_000, "stdout")
    many = [CellOutput(cell=1, output=piece) for _ in range(1_000)]
    text = told(
        [CellStarted(cell=1, source="x"), *many, CellFinished(cell=1, status="ok")], io.StringIO()
    )
    assert len(text) < 2_000


def test_a_stream_that_is_gone_ends_the_narration_only(events: list[Event]) -> None:
    """A closed terminal does not stop the turn that is being shown."""
    stream = io.StringIO()
    live = LiveTurn.for_environment(stream)
    live(events[0])
    stream.close()
    for event in events:
        live(event)
    live.close()
    live.close()
    assert stream.closed


def test_nobody_is_told_nothing() -> None:
    """In a pipe nothing is written, and neither rich nor IPython is imported for it."""
    code = (
        "import sys; from cave.display import LiveTurn; from cave.events import TurnStarted\n"
        "live = LiveTurn.for_environment(); live(TurnStarted(turn=1, prompt='x')); live.close()\n"
        "assert not live.shows\n"
        "assert not {'rich', 'IPython', 'pygments', 'markdown_it'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        cwd=ROOT,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


NOTEBOOK = """
import sys, time
sys.path.insert(0, ROOT)
from cave.display import LiveTurn
from cave.events import *
live = LiveTurn.for_environment()
live(TurnStarted(turn=1, prompt="Count."))
live(StepReplied(turn=1, step=1, kind="cell", source="x"))
live(CellStarted(cell=1, source="for k in range(9): print(k)", note="Count up."))
for k in range(300):
    live(CellOutput(cell=1, output=Output("stream", f"line {k}\\n", "stdout")))
END
"""


def shown(end: str) -> list[nbformat.NotebookNode]:
    """The outputs that a real notebook has saved."""
    source = NOTEBOOK.replace("ROOT", repr(str(ROOT))).replace("END", end)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(book, timeout=60, kernel_name="python3").execute()
    return book.cells[0].outputs


def test_a_notebook_has_one_output() -> None:
    """Hundreds of events leave one clean output with the answer, in HTML and in text."""
    outputs = shown(
        'live(CellFinished(cell=1, status="ok", outputs=(Output("stream", "8\\n", "stdout"),)))\n'
        'live(TurnFinished(turn=1, status="done", answer="**Eight**."))\n'
        "live.close()"
    )
    assert [o.output_type for o in outputs] == ["display_data"]
    assert outputs[0].data["text/plain"] == "Turn 1: **Eight**."
    assert "<strong>Eight</strong>" in outputs[0].data["text/html"]
    assert "line 299" not in outputs[0].data["text/html"]


def test_a_notebook_shows_the_last_output_of_a_quiet_cell() -> None:
    """An update that came too soon for the next one is made up for, without another event."""
    outputs = shown("time.sleep(0.5)")
    assert "line 299" in outputs[0].data["text/html"]
    assert "running" in outputs[0].data["text/html"]
