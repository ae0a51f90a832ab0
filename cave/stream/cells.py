"""A cell in the prompt: one line for an old one, its whole result for a recent one."""

from __future__ import annotations

from collections.abc import Mapping

from cave.events import Variable
from cave.stream.facts import LINE, brief, changes, one_line
from cave.stream.hints import hint
from cave.stream.traces import relevant
from cave.turn import Cell, Output, also, clip, plain, text_of

OUTPUT = 4_000
"""Characters of a cell's text that reach the prompt, head and tail together."""
MESSAGE = 1_500
"""Characters of an exception's own text that do."""
QUOTED = 80
"""Characters up to which a single printed line is shown in a summary."""


def summary(cell: Cell, *, source: bool = False) -> str:
    """One line of facts: number, status, time, note, names that changed, size of its output.

    With `source` the first line of the code stands in the place of the note.
    """
    note = one_line(_head(cell.source) if source else cell.note, 120)
    head = f"cell {cell.n} {cell.status} {cell.seconds:.1f}s" + (f" [{note}]" if note else "")
    parts = [one_line(str(cell.error), 200)] if cell.error else []
    if changed := brief(cell.delta):
        parts.append(changed)
    if done := also(cell.observed, 3):
        parts.append(one_line(plain(done), 200))
    if printed := _printed(cell):
        parts.append(printed)
    return f"{head}: {'; '.join(parts)}" if parts else head


def _head(source: str) -> str:
    first, _, rest = source.strip().partition("\n")
    more = rest.count("\n") + 1 if rest else 0
    return first + (f" ... {more} more line{'s' * (more != 1)}" if more else "")


def own_outputs(cell: Cell) -> tuple[Output, ...]:
    """What it put out until its end; later output is told as news of its own."""
    return cell.outputs[: len(cell.outputs) - cell.late] if cell.late else cell.outputs


def _printed(cell: Cell) -> str:
    if cell.full_size:
        return f"{cell.full_size:,} characters printed"
    outputs = own_outputs(cell)
    size = sum(len(_text(o)) for o in outputs)
    if size <= 2 * QUOTED and len(text := plain(text_of(outputs)).strip()) <= QUOTED:
        return f"printed {text!r}" if text and "\n" not in text else _lines(outputs)
    return _lines(outputs)


def _lines(outputs: tuple[Output, ...]) -> str:
    text = [_text(o).rstrip("\n") for o in outputs]
    lines = sum(t.count("\n") + 1 for t in text if t)
    images = sum(any(m.startswith("image/") for m in o.data) for o in outputs)
    parts = [f"{lines:,} line{'s' * (lines != 1)} printed"] if lines else []
    return ", ".join([*parts, f"{images} image{'s' * (images != 1)}"] if images else parts)


def _text(output: Output) -> str:
    if output.kind == "stream":
        return output.text
    value = output.data.get("text/plain", "")
    return value if isinstance(value, str) else "".join(value)


def result(
    cell: Cell, *, variables: Mapping[str, Variable] | None = None, died: bool = False
) -> str:
    """What came of a cell: status, changes, output, fault with a hint from `variables`.

    `died` says that the end of its kernel is told elsewhere.
    """
    lines = [f"cell {cell.n} {cell.status} {cell.seconds:.1f}s", *changes(cell.delta)]
    if done := also(cell.observed):
        lines.append(one_line(plain(done), LINE))
    if output := _output(cell):
        lines.append(output)
    if cell.error is not None and not (died and cell.status == "died"):
        fault = clip(plain(str(cell.error)), MESSAGE)
        frames = [f for f in relevant(cell.error.traceback) if not f.startswith(fault)]
        help = hint(cell.error, cell.source, variables or {})
        lines += [*frames, fault, *([help] if help else [])]
    elif cell.ok and len(lines) == 1:
        lines.append("(no output; no variable changed)")
    return "\n".join(lines)


def _output(cell: Cell) -> str:
    outputs = own_outputs(cell)
    text = plain(text_of(outputs)).strip("\n")
    if not text.strip():
        return ""
    whole = max(cell.full_size, len(text))
    shown = clip(text, OUTPUT, total=whole)
    more = f"\n(all {whole:,} characters: variable {cell.bound})" if cell.bound else ""
    return f"output:\n{shown}{more}"
