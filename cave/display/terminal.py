"""A running turn in a terminal: plain lines, narration only, nothing on stdout.

Text of a kernel is made harmless first: no escape sequence of a cell reaches the terminal.
"""

from __future__ import annotations

import os
import re
from typing import Any, TextIO

from cave.display.safe import visible
from cave.display.tables import size
from cave.display.told import told_death, told_interrupt, told_return
from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Checked,
    Delta,
    Event,
    InterruptSent,
    KernelEnded,
    Output,
    Restored,
    StepReplied,
    TurnFinished,
    TurnResumed,
    TurnStarted,
    Variable,
)
from cave.turn import also, plain

LINES = 40
"""Lines of output that one cell shows; the number of the others is named."""
SOURCE = 15
"""Lines of a cell's source that are shown."""
WIDTH = 500
"""Characters of one line of output."""
MARKS = "│ ✓ ✗ ● ·"
PLAIN = str.maketrans({"│": "|", "✓": "+", "✗": "x", "●": "*", "·": "-"})


class TerminalFace:
    """Writes what happens as lines on `stream`; colours only for a terminal that wants them."""

    def __init__(self, stream: TextIO, *, answer: bool = True) -> None:
        self._stream: TextIO | None = stream
        self._answer = answer
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._ascii = not _encodes(MARKS, self._encoding)
        self._console = _console(stream)
        self._lines = 0
        self._partial = ""

    def show(self, event: Event) -> None:
        match event:
            case TurnStarted() | TurnResumed():
                by = f" · {event.operator}" if event.operator else ""
                goes = "goes on" if isinstance(event, TurnResumed) else ""
                self._say(" ".join(filter(None, [f"turn {event.turn}", goes])) + by, "bold")
            case StepReplied(kind="malformed"):
                self._say(f"  ● a reply could not be used: {event.text}", "yellow")
            case CellStarted():
                self._cell(event)
            case CellOutput():
                self._output(event.output)
            case CellFinished():
                self._finished(event)
            case InterruptSent():
                self._say(f"  ● {told_interrupt(event)}", "yellow")
            case KernelEnded():
                self._say(f"  ✗ {told_death(event)}", "red")
            case Restored():
                for line in told_return(event).splitlines():
                    self._say(f"  ● {line}", "yellow")
            case Checked():
                for result in event.results:
                    mark, style = ("✓", "green") if result.passed else ("✗", "red")
                    told = f"{result.name}: {result.message}".removesuffix(": ")
                    self._say(f"  {mark} {told}"[:WIDTH], style)
            case TurnFinished():
                self._ended(event)
            case _:
                pass

    def close(self) -> None:
        self._flush()

    def _cell(self, event: CellStarted) -> None:
        self._lines, self._partial = 0, ""
        if event.note:
            self._say(f"  {event.note}")
        lines = event.source.strip("\n").split("\n")
        for line in lines[:SOURCE]:
            self._say(f"    {line}", "cyan")
        if len(lines) > SOURCE:
            self._say(f"    ... {len(lines) - SOURCE} more lines", "dim")

    def _output(self, output: Output) -> None:
        if output.kind == "error":
            return
        text = output.text if output.kind == "stream" else _text(output)
        *lines, self._partial = (self._partial + text).split("\n")
        self._partial = self._partial[-WIDTH * 4 :]
        for line in lines:
            self._line(line)
        if output.kind != "stream":
            self._flush()

    def _line(self, line: str) -> None:
        self._lines += 1
        if self._lines <= LINES:
            line = plain(line)
            self._say(f"  │ {line[:WIDTH]}{' ...' if len(line) > WIDTH else ''}", "dim")

    def _flush(self) -> None:
        if self._partial:
            line, self._partial = self._partial, ""
            self._line(line)

    def _finished(self, event: CellFinished) -> None:
        self._flush()
        if self._lines > LINES:
            self._say(f"  │ ... {self._lines - LINES:,} more lines", "dim")
        mark, style = ("✓", "green") if event.status == "ok" else ("✗", "red")
        fault = ""
        if event.error:
            fault = f" · {event.error.name}: {event.error.message}".removesuffix(": ")
        line = f"  {mark} cell {event.cell} {event.status} {event.seconds:.1f} s{fault}"
        self._say(line.replace("\n", " ")[:WIDTH], style)
        if event.error and event.error.hint:
            self._say(f"    {event.error.hint}", style)
        for change in _changes(event.delta):
            self._say(f"    {change}", "dim")
        if done := also(event.observed):
            self._say(f"    {done}"[:WIDTH], "dim")

    def _ended(self, event: TurnFinished) -> None:
        if event.status != "done":
            self._say(f"turn {event.turn} {self._reason(event)}", "yellow")
        if event.answer and self._answer:
            self._say(event.answer)

    def _reason(self, event: TurnFinished) -> str:
        """Why the turn ended. The caller who prints the answer tells of an error as well."""
        reason = event.reason
        if not self._answer:
            reason = "" if event.status == "failed" else at_terminal(reason, event.session)
        if reason.startswith(event.status):
            return reason
        return f"{event.status}: {reason}" if reason else event.status

    def _say(self, text: str, style: str = "") -> None:
        """Write lines; a stream that is gone ends the narration, not the work."""
        if self._stream is None:
            return
        text = visible(text.translate(PLAIN) if self._ascii else text)
        text = text.encode(self._encoding, "backslashreplace").decode(self._encoding)
        try:
            if self._console is None:
                self._stream.write(text + "\n")
            else:
                self._console.print(text, style=style or None, soft_wrap=True)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def at_terminal(text: str, session: str) -> str:
    """Advice that names calls of Python, as what to type at a terminal."""
    longer = f"`cave resume {session} --steps ...`"
    text = text.replace("s.resume(budget=cave.Budget(steps=...))", longer)
    text = re.sub(r"s\.(approve|deny)\('(\w+)'\)", rf"`cave \1 {session}/\2`", text)
    return text.replace("s.resume()", f"`cave resume {session}`")


def _console(stream: TextIO) -> Any:
    """A rich console for a terminal that wants colours; else None."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return None
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _encodes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _text(output: Output) -> str:
    value = output.data.get("text/plain", "")
    return value if isinstance(value, str) else "".join(map(str, value))


def _changes(delta: Delta) -> list[str]:
    """The names that changed, ten of each kind."""
    lines = [f"+ {_facts(v)}" for v in delta.added[:10]]
    lines += [f"~ {_facts(v)}" for v in delta.changed[:10]]
    lines += [f"- {name}" for name in delta.removed[:10]]
    hidden = len(delta.added) + len(delta.changed) + len(delta.removed) - len(lines)
    return [*lines, f"{hidden} more names changed"] if hidden else lines


def _facts(variable: Variable) -> str:
    shape = " x ".join(f"{n:,}" for n in variable.shape or ())
    held = size(variable.size) if variable.size is not None else ""
    return " ".join(filter(None, [variable.name, variable.type, shape, held]))
