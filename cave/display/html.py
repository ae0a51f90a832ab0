"""Self-contained HTML of turns, cells, tables and sessions."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cave.display import doubts, reports, waiting
from cave.display.safe import escaped, image, visible
from cave.display.style import framed
from cave.display.tables import COLUMNS, RIGHT, VarTable, size
from cave.display.told import told_open
from cave.errors import CellError
from cave.events import CheckResult, Output, Usage, Variable
from cave.turn import Cell, Step, Turn, also, clip

TEXT = 20_000
"""Characters of one output; the rest is named."""
OUTPUTS = 100
"""Outputs of one cell; the number of the others is named."""
ROWS = 200
"""Rows of a table; the number of the others is named."""
GOOD, WAITS, BAD = ("✓", "c-ok"), ("●", "c-warn"), ("✗", "c-bad")
MARKS = {
    "ok": GOOD,
    "done": GOOD,
    "running": WAITS,
    "interrupted": WAITS,
    "needs_approval": WAITS,
    "needs_decision": WAITS,
    "needs_attention": WAITS,
    "over_budget": WAITS,
}


@dataclass(slots=True)
class Shown:
    """A turn as it is shown, ended or not."""

    n: int
    prompt: str
    status: str = "running"
    answer: str = ""
    reason: str = ""
    steps: list[Step] = field(default_factory=list)
    usage: Usage = Usage()
    running: int | None = None
    """The cell that runs now; its status means nothing yet."""
    thinking: str = ""
    """What the operator is saying now."""
    checks: tuple[CheckResult, ...] = ()
    """How what has to hold came out last."""

    @classmethod
    def of(cls, turn: Turn) -> Shown:
        """A turn that has ended."""
        return cls(
            turn.n,
            turn.prompt,
            turn.status,
            turn.answer,
            turn.reason,
            list(turn.steps),
            turn.usage,
            checks=turn.checks,
        )


def page(value: Any) -> str | None:
    """`value` as one self-contained piece of HTML; None for what this does not know."""
    body = _body(value)
    return None if body is None else framed(body)


def _body(value: Any) -> str | None:
    match value:
        case Shown():
            return turn(value)
        case Turn():
            return turn(Shown.of(value))
        case Step():
            return step(value) if value.cell is None else cell(value.cell)
        case Cell():
            return cell(value)
        case doubts.InDoubt() | waiting.Waiting():
            return doubts.html(value) if isinstance(value, doubts.InDoubt) else waiting.html(value)
        case VarTable():
            return variables(value)
        case _ if hasattr(value, "name") and hasattr(value, "kernel"):
            return session(value)
        case _:
            return reports.body(value)


# -- turns -----------------------------------------------------------------------------------


def turn(shown: Shown) -> str:
    """Request, one line for each step that unfolds to its cell, and the answer."""
    mark, css = MARKS.get(shown.status, BAD)
    facts = [f"{len(shown.steps)} step{'s' * (len(shown.steps) != 1)}", *_spent(shown.usage)]
    bar = (
        f'<div class="c-bar"><b><span class="{css}">{mark}</span> Turn {shown.n}</b>'
        f"<span>{escaped(shown.status.replace('_', ' '))}</span>{_spans(facts)}</div>"
    )
    done = shown.status == "done"
    parts = [
        bar,
        f'<div class="c-ask">{escaped(clip(shown.prompt, TEXT))}</div>' if shown.prompt else "",
        *(step(s, fold=done, running=shown.running) for s in shown.steps if s.cell is not None),
    ]
    if shown.thinking:
        parts.append(f'<div class="c-news">{escaped(shown.thinking[-2_000:])}</div>')
    if shown.answer:
        parts.append(f'<div class="c-answer">{_answer(shown)}</div>')
    parts += map(_check, shown.checks)
    if shown.reason:
        parts.append(f'<p class="c-warn">{escaped(shown.reason)}</p>')
    return "".join(parts)


def _check(result: CheckResult) -> str:
    mark, css = MARKS["ok"] if result.passed else ("✗", BAD)
    why = f" {escaped(result.message)}" if result.message else ""
    name = f'<span class="{css}">{mark}</span> {escaped(result.name)}'
    return f'<p>{name}<span class="c-dim">{why}</span></p>'


def _answer(shown: Shown) -> str:
    """The answer; columns stay columns where it is what the last cell printed."""
    cells = [s.cell for s in shown.steps if s.cell is not None]
    if "\n" in shown.answer and cells and cells[-1].text.strip("\n") == shown.answer.strip("\n"):
        return f"<pre>{escaped(clip(shown.answer, TEXT))}</pre>"
    return markdown(shown.answer)


def _spent(usage: Usage) -> list[str]:
    tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    about = "~" if usage.estimated else ""
    facts = [f"{usage.seconds:.1f} s"] if usage.seconds else []
    if usage.model_calls:
        facts.append(f"{about}{tokens:,} tokens in, {about}{usage.output_tokens:,} out")
    if usage.usd:
        facts.append(f"${usage.usd:.4f}" if usage.usd < 0.1 else f"${usage.usd:.2f}")
    return facts


def _spans(facts: Iterable[str]) -> str:
    return "".join(f"<span>{escaped(fact)}</span>" for fact in facts)


def step(value: Step, *, fold: bool = True, running: int | None = None) -> str:
    """A step: its note, and its cell to unfold. A failed one is open unless all `fold`."""
    own = value.cell
    if own is None:
        return f"<p>{escaped(value.note or 'answer')}</p>"
    status = "running" if own.n == running else own.status
    mark, css = MARKS.get(status, BAD)
    note = escaped(value.note or own.source.strip().split("\n", 1)[0][:100])
    seen = "" if status == "ok" else f" {escaped(status)}"
    seconds = "" if status == "running" else f" · {own.seconds:.1f} s"
    opened = "" if fold or status == "ok" else " open"
    return (
        f'<details{opened}><summary><span class="{css}">{mark}{seen}</span> {note} '
        f'<span class="c-dim">cell {own.n}{seconds}</span></summary>{_inside(own)}</details>'
    )


# -- cells -----------------------------------------------------------------------------------


def cell(value: Cell) -> str:
    """One cell: a line of facts, source, outputs, what changed."""
    mark, css = MARKS.get(value.status, BAD)
    note = f"<span>{escaped(value.note)}</span>" if value.note else ""
    return (
        f'<div class="c-bar"><b><span class="{css}">{mark}</span> Cell {value.n}</b>'
        f"<span>{escaped(value.status)}</span><span>{value.seconds:.1f} s</span>"
        f"<span>{escaped(value.origin)}</span>{note}</div>"
        f'<div class="c-box">{_inside(value)}</div>'
    )


def _inside(value: Cell) -> str:
    shown = value.outputs[:OUTPUTS]
    parts = [f'<pre class="c-code">{code(clip(value.source, TEXT))}</pre>', *map(_output, shown)]
    if hidden := len(value.outputs) - len(shown):
        parts.append(f'<div class="c-news">{hidden:,} more outputs</div>')
    if value.full_size:
        bound = f", all of it is <code>{escaped(value.bound)}</code>" if value.bound else ""
        parts.append(f'<div class="c-news">{value.full_size:,} characters{bound}</div>')
    if value.error is not None:
        parts.append(_fault(value.error))
    if not value.delta.empty:
        parts.append(f'<div class="c-news">{_changed(value)}</div>')
    if done := also(value.observed):
        parts.append(f'<div class="c-news">{escaped(clip(done, TEXT))}</div>')
    return "".join(parts)


def _fault(error: CellError) -> str:
    """The exception's own text, and its traceback to unfold."""
    told = "\n".join(filter(None, [clip(str(error), TEXT), error.hint]))
    said = f'<pre class="c-bad">{escaped(told)}</pre>'
    if not error.traceback:
        return said
    trace = escaped(clip(error.traceback, TEXT))
    return (
        f"{said}<details class='c-trace'><summary>traceback</summary><pre>{trace}</pre></details>"
    )


def _changed(value: Cell) -> str:
    made = [("+", v) for v in value.delta.added] + [("~", v) for v in value.delta.changed]
    facts = [f"{mark} <code>{escaped(v.name)}</code> {escaped(_kind(v))}" for mark, v in made[:20]]
    facts += [f"- <code>{escaped(name)}</code>" for name in value.delta.removed[:20]]
    hidden = len(made) + len(value.delta.removed) - len(facts)
    return " &nbsp; ".join([*facts, f"{hidden} more"] if hidden > 0 else facts)


def _kind(variable: Variable) -> str:
    if not variable.shape:
        return variable.type
    return f"{variable.type} {' x '.join(f'{n:,}' for n in variable.shape)}"


def _output(output: Output) -> str:
    """One output: text in a box, a checked image; HTML of a kernel is never injected."""
    if output.kind == "error":
        return ""
    if output.kind == "stream":
        css = ' class="c-err"' if output.name == "stderr" else ""
        return f"<pre{css}>{escaped(clip(output.text, TEXT))}</pre>"
    for mime in ("image/png", "image/jpeg"):
        if address := image(mime, output.data.get(mime)):
            return f'<img alt="output" src="{address}">'
    text = output.data.get("text/plain", "")
    text = text if isinstance(text, str) else "".join(map(str, text))
    return f"<pre>{escaped(clip(text, TEXT))}</pre>" if text else ""


def code(source: str) -> str:
    """Python source with highlighting, escaped."""
    from pygments import highlight  # type: ignore[import-untyped]  # ships no annotations

    lexer, formatter = _highlighter()
    return str(highlight(visible(source), lexer, formatter)).rstrip("\n")


@functools.cache
def _highlighter() -> tuple[Any, Any]:
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]  # the same
    from pygments.lexers import PythonLexer  # type: ignore[import-untyped]  # the same

    return PythonLexer(stripnl=False), HtmlFormatter(nowrap=True, classprefix="c")


def markdown(text: str) -> str:
    """An answer as HTML: tables and lists, no raw HTML, no images (they call out when seen)."""
    return str(_markdown().render(visible(clip(text, TEXT))))


@functools.cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


# -- tables and sessions ---------------------------------------------------------------------


def variables(table: VarTable) -> str:
    """The table of variables, `ROWS` of them at most."""
    if not table:
        return '<p class="c-dim">no variables</p>'
    css = {c: "c-num" if c in RIGHT else "c-text" if c == "summary" else "" for c in COLUMNS}
    head = "".join(f'<th class="{css[c]}">{c}</th>' for c in COLUMNS)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{css[c]}">{_field(c, text)}</td>'
            for c, text in zip(COLUMNS, row, strict=True)
        )
        + "</tr>"
        for row in table.fields[:ROWS]
    )
    hidden = len(table) - ROWS
    more = f'<p class="c-dim">{hidden:,} more variables</p>' if hidden > 0 else ""
    return (
        f'<div class="c-wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _field(column: str, text: str) -> str:
    inside = escaped(clip(text, 400))
    return f"<code>{inside}</code>" if column == "name" else inside


def session(value: Any) -> str:
    """A session: name, kernel, what was done and spent, its variables as last seen."""
    kernel = value.kernel
    alive = bool(getattr(kernel, "alive", False))
    state = f"kernel {kernel.pid}" if alive else "no kernel runs"
    profile = getattr(kernel, "profile", "")
    facts = [f"profile {profile}" if profile else "", _count(value, "turns", "turn")]
    facts += [_count(value, "history", "cell"), *_spent(getattr(value, "usage", Usage()))]
    css = "c-ok" if alive else "c-dim"
    bar = (
        f'<div class="c-bar"><b>Session {escaped(str(value.name))}</b>'
        f'<span class="{css}">● {escaped(state)}</span>{_spans(filter(None, facts))}</div>'
    )
    missing = told_open(profile, getattr(kernel, "degraded", ())) if alive else []
    bar += "".join(f'<p class="c-bad">{escaped(line)}</p>' for line in missing)
    table = getattr(value, "vars", None)
    if not isinstance(table, VarTable):
        return bar
    total = sum(v.size or 0 for v in table)
    held = f'<p class="c-dim">{len(table)} variables, {size(total)}</p>' if table else ""
    return bar + held + variables(table)


def _count(value: Any, attribute: str, noun: str) -> str:
    items = getattr(value, attribute, None)
    if items is None or not hasattr(items, "__len__"):
        return ""
    return f"{len(items)} {noun}{'s' * (len(items) != 1)}"
