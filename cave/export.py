"""A session's story as a notebook or a script: a pure projection of its journal.

Both forms carry the session's name, the last event that they hold and a fingerprint of their
cells. An export is replaced by a newer one; a file of another origin, or an export that a
person has edited since, only with `overwrite=True`.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import io
import json
import os
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cave.errors import ConfigError, StoreError
from cave.events import (
    CellFinished,
    CellStarted,
    Event,
    KernelEnded,
    Output,
    OutputLate,
    Restored,
    TurnFinished,
    TurnStarted,
    ValuesDeleted,
    ValuesPut,
    Variable,
    clean,
)
from cave.lasting import Line
from cave.ports import Death
from cave.report import RestoreReport
from cave.turn import clip

PROSE = 200_000
"""Characters of a prompt or an answer that are exported."""
TEXT = 100_000
"""Characters of one output that a notebook gets."""
FULL = 1_000_000
"""Characters of one cell's text up to which a cut output is completed from its blob."""
PYTHON_MAGICS = ("%%time", "%%capture", "%%prun")
"""Cell magics whose cell is Python that runs once."""
MARK = "# cave export: "
"""How the first line of an exported script begins; JSON follows."""
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Block:
    """One cell of the file: prose, or a cell of the session with how it ended."""

    kind: Literal["prose", "code"]
    text: str
    started: CellStarted | None = None
    finished: CellFinished | None = None
    late: tuple[OutputLate, ...] = ()
    undone: bool = False
    """Whether the namespace went back behind it: what it did is not in the objects."""


@dataclass(frozen=True, slots=True)
class Story:
    """All that a file is made of."""

    name: str
    seq: int
    blocks: tuple[Block, ...]


def export(
    events: Iterable[Event],
    path: Path | str,
    *,
    name: str,
    read_blob: Callable[[str], str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the events of session `name` to a new `.ipynb` or `.py` file, all of it or nothing.

    `read_blob` gives the whole text of a cell whose journaled output was cut; it is asked for
    texts that a file can bear. Raises `ConfigError` for a suffix that is not known, a folder
    that is not there, and a file that is not to be replaced; `StoreError` when the disk is full.
    """
    path = Path(path).expanduser()
    forms = {".ipynb": _notebook, ".py": _script}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise ConfigError(
            f"cannot export to {str(path)!r}: the name must end with {', '.join(forms)} or .dill"
        )
    if not overwrite:
        _check_replaceable(path)
    text = form(story(events, name, read_blob))
    write(path, text.encode("utf-8"))
    return path


# -- the story -------------------------------------------------------------------------------


def story(
    events: Iterable[Event], name: str, read_blob: Callable[[str], str] | None = None
) -> Story:
    """The events as prose and cells, in their order."""
    listed = list(events)
    ends = {e.cell: _whole(e, read_blob) for e in listed if isinstance(e, CellFinished)}
    late = [e for e in listed if isinstance(e, OutputLate)]
    undone = ends.keys() - standing(listed)
    blocks = [Block("prose", f"# {name}\n\nA session of cave.")]
    for event in listed:
        if isinstance(event, CellStarted):
            if event.note:
                blocks.append(Block("prose", f"*{' '.join(event.note.split())}*"))
            mine = tuple(e for e in late if e.cell == event.cell)
            end = ends.get(event.cell)
            gone = event.cell in undone
            blocks.append(Block("code", clean(event.source), event, end, mine, undone=gone))
        elif text := _prose(event):
            blocks.append(Block("prose", clip(clean(text), PROSE)))
    return Story(name, max((e.seq for e in listed), default=0), tuple(blocks))


def standing(events: Iterable[Event]) -> set[int]:
    """The cells whose work the namespace holds at the end: those on the line of snapshots that
    was taken, when it went back to an earlier moment or lost its last cells with a kernel."""
    line = Line()
    for event in events:
        line.feed(event)
    return set(line.cells())


def _whole(event: CellFinished, read_blob: Callable[[str], str] | None) -> CellFinished:
    """The cell's end with all of its text, where that was cut and is not too long."""
    if read_blob is None or not event.full_blob or event.full_size > FULL:
        return event
    kept = tuple(o for o in event.outputs if o.kind != "stream" and _is_rich(o.data))
    whole = Output("stream", read_blob(event.full_blob), "stdout")
    return replace(event, outputs=(whole, *kept), full_size=0)


def _is_rich(data: dict[str, Any]) -> bool:
    return any(mime != "text/plain" for mime in data)


def _prose(event: Event) -> str:
    """What an event other than a cell says in markdown; nothing for most."""
    match event:
        case TurnStarted():
            return f"## Request {event.turn}\n\n{event.prompt}"
        case TurnFinished():
            ended = "" if event.status == "done" else f"*{event.status}: {event.reason}*"
            return "\n\n".join(filter(None, [event.answer, ended]))
        case ValuesPut():
            return (
                "Put into the session from outside (needed to run the cells below again):\n\n"
                + "\n".join(map(_row, event.variables))
            )
        case ValuesDeleted():
            return "Names deleted: " + ", ".join(f"`{name}`" for name in event.names)
        case KernelEnded() if event.lost or event.reason != "closed":
            how = Death(event.pid, event.reason, event.signal, event.status)
            lost = "\n".join(map(_row, event.lost)) or "No variable was lost."
            return f"**The {how}.** Lost with it:\n\n{lost}" if event.lost else f"**The {how}.**"
        case Restored() if event.reason in {"asked", "death"}:
            report = RestoreReport.of(event)
            return "\n".join(f"- {' '.join(line.split())}" for line in report.lines)
        case _:
            return ""


def _row(variable: Variable) -> str:
    shape = " x ".join(f"{n:,}" for n in variable.shape or ())
    facts = " ".join(filter(None, [variable.type, shape, variable.summary]))
    return f"- `{variable.name}`: {' '.join(facts.split())}"


# -- files -----------------------------------------------------------------------------------


def _fingerprint(texts: Iterable[str]) -> str:
    """Tells whether the cells of a file are as they were written (ends of lines aside)."""
    joined = json.dumps(["\n".join(t.rstrip() for t in text.split("\n")) for text in texts])
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def _notebook(told: Story) -> str:
    """A notebook of format 4.5, checked against its schema."""
    import nbformat

    carried = _fingerprint(block.text for block in told.blocks)
    spec = {"name": "cave-python", "display_name": "cave (durable Python)", "language": "python"}
    book = {
        "cells": [_cell(block, f"cave-{number}") for number, block in enumerate(told.blocks)],
        "metadata": {
            "cave": {"session": told.name, "seq": told.seq, "cells": carried},
            "kernelspec": spec,
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    nbformat.validate(book)
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _cell(block: Block, id: str) -> dict[str, Any]:
    source = block.text.splitlines(keepends=True)
    if block.started is None:
        return {"cell_type": "markdown", "id": id, "metadata": {}, "source": source}
    started, end = block.started, block.finished
    status = end.status if end else "not ended"
    facts: dict[str, Any] = {"cell": started.cell, "origin": started.origin, "status": status}
    if block.undone:
        facts["undone"] = True
    return {
        "cell_type": "code",
        "id": id,
        "execution_count": started.cell,
        "metadata": {"cave": facts},
        "outputs": [_output(o, started.cell) for o in _outputs(block)],
        "source": source,
    }


def _outputs(block: Block) -> list[Output]:
    """The outputs of a cell in order, its fault at the end, and what was left out."""
    end = block.finished
    if end is None:
        return [Output("stream", "[this cell has not ended]\n", "stderr")]
    outputs = [o for o in end.outputs if o.kind != "error" or end.error is None]
    if end.full_size:
        marker = f"[cut: the cell put out {end.full_size:,} characters]\n"
        outputs.append(Output("stream", marker, "stderr"))
    outputs += [o for event in block.late for o in event.outputs]
    if end.error is not None:
        data = {"ename": end.error.name, "evalue": end.error.message}
        outputs.append(Output("error", end.error.traceback, data=data))
    return outputs


def _output(output: Output, count: int) -> dict[str, Any]:
    match output.kind:
        case "stream":
            name = "stderr" if output.name == "stderr" else "stdout"
            text = clip(clean(output.text), TEXT).splitlines(keepends=True)
            return {"output_type": "stream", "name": name, "text": text}
        case "error":
            trace = clip(clean(output.text), TEXT).splitlines()
            ename, _, evalue = (trace or ["Error"])[-1].partition(": ")
            said = {"ename": ename, "evalue": evalue, **output.data}
            return {"output_type": "error", "traceback": trace, **said}
        case kind:
            data = _bundle(output.data)
            made = {"output_type": kind, "data": data, "metadata": output.metadata}
            return made | ({"execution_count": count} if kind == "execute_result" else {})


def _bundle(data: dict[str, Any]) -> dict[str, Any]:
    """A MIME bundle as nbformat takes it; scripts and widgets without a kernel are left out."""
    kept = {m: v for m, v in data.items() if "javascript" not in m and "jupyter.widget" not in m}
    return {
        mime: value if isinstance(value, str) or mime.endswith("json") else _text(value)
        for mime, value in kept.items()
    }


def _text(value: Any) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else json.dumps(value)


# -- scripts ---------------------------------------------------------------------------------


def _script(told: Story) -> str:
    """Percent format: prose as comments, cells as code that runs again where inputs exist."""
    parts: list[str] = []
    imports = set()
    for block in told.blocks:
        if block.started is None:
            parts.append("# %% [markdown]\n" + _commented(block.text))
            continue
        code, needs = script_cell(block)
        imports |= needs
        parts.append(f"# %% cell {block.started.cell}\n{code}")
    body = "\n\n".join(["\n".join(sorted(imports)), *parts] if imports else parts) + "\n"
    facts = {"session": told.name, "seq": told.seq, "cells": _fingerprint([body])}
    return f"{MARK}{json.dumps(facts)}\n{body}"


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())


def script_cell(block: Block) -> tuple[str, set[str]]:
    """A cell as lines of a plain script, and the imports that its beginning needs.

    A cell that failed may fail again without stopping the script; one that was stopped, died
    or is no Python is a comment. Magics are left out; `await` runs in a loop of its own.
    """
    end = block.finished
    status = end.status if end else "not ended"
    fault = f": {end.error.name}" if end and end.error else ""
    source = _without_magics(block.text)
    tree = _parsed(source)
    if block.undone:
        return f"# left out (undone: the namespace went back)\n{_commented(block.text)}", set()
    if tree is None or status not in {"ok", "error"}:
        why = f"# left out ({status}{fault})" if status != "ok" else "# left out (no plain Python)"
        return f"{why}\n{_commented(block.text)}", set()
    source, needs = _without_future(source, tree)
    tree = ast.parse(source)
    if _awaits(source):
        awaited = _awaited(source, tree, block)
        if awaited is None:
            return f"# left out (await at the top level)\n{_commented(block.text)}", set()
        source, needs = awaited, needs | {"import asyncio"}
    if status == "error" and tree.body:
        head = f"with contextlib.suppress(Exception):  # it ended with an error{fault}\n"
        source, needs = head + _indented(source), needs | {"import contextlib"}
    return source.rstrip("\n"), needs


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _without_future(source: str, tree: ast.Module) -> tuple[str, set[str]]:
    """`from __future__` is only allowed at a script's beginning."""
    found = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    lines = source.split("\n")
    for node in found:
        own = range(node.lineno - 1, node.end_lineno or node.lineno)
        lines = [f"# {line}" if at in own else line for at, line in enumerate(lines)]
    return "\n".join(lines), {ast.unparse(node) for node in found}


def _awaits(source: str) -> bool:
    """Whether the source is Python only because cells may await."""
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return False


def _awaited(source: str, tree: ast.Module, block: Block) -> str | None:
    """The cell inside a coroutine that sets the script's globals; None where that is no Python."""
    number = block.started.cell if block.started else 0
    names = sorted(_bound(tree))
    declared = f"    global {', '.join(names)}\n" if names else ""
    run = f"asyncio.run(_cell_{number}())"
    made = f"async def _cell_{number}():\n{declared}{_indented(source)}\n\n\n{run}"
    return None if _awaits(made) else made


def _bound(tree: ast.Module) -> set[str]:
    """Names that the statements of a module bind, not those inside functions and classes."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(node.id)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case _:
                pass
        waiting.extend(ast.iter_child_nodes(node))
    return names - {"*"}


def _indented(source: str) -> str:
    """Each line that begins outside of a string, indented; strings keep their text."""
    lines = source.rstrip("\n").split("\n")
    inside: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name.endswith("STRING_START"):
            opened.append(token.start[0])
        elif name.endswith("STRING_END"):
            inside.update(range(opened.pop() + 1, token.end[0] + 1))
        elif token.type == tokenize.STRING:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
    return "\n".join(
        line if number in inside or not line.strip() else f"    {line}"
        for number, line in enumerate(lines, 1)
    )


def _without_magics(source: str) -> str:
    """Source with what only IPython understands turned into comments."""
    if _parsed(source) is not None:
        return source
    from IPython.core.inputtransformer2 import TransformerManager

    first, _, rest = source.lstrip().partition("\n")
    if first.startswith(PYTHON_MAGICS):
        return f"# {first}\n{_without_magics(rest)}"
    try:
        transform: Any = TransformerManager
        plain = str(transform().transform_cell(source))
    except SyntaxError:
        return source
    own = set(source.split("\n"))
    return "\n".join(
        line if line in own or "get_ipython()" not in line else _as_comment(line)
        for line in plain.rstrip("\n").split("\n")
    )


def _as_comment(line: str) -> str:
    bare = line.lstrip()
    return f"{line[: len(line) - len(bare)]}pass  # needs IPython: {bare}"


# -- writing ---------------------------------------------------------------------------------


def _check_replaceable(path: Path) -> None:
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return
    except IsADirectoryError:
        raise ConfigError(f"{str(path)!r} is a folder; name a file in it") from None
    except (OSError, UnicodeDecodeError):
        text = ""
    carried, found = _marks(path, text)
    if carried is None:
        why = "is there and is no export of a session"
    elif carried != found:
        why = "was edited since it was exported"
    else:
        return
    raise ConfigError(
        f"{str(path)!r} {why}; choose another name, or replace it with overwrite=True "
        f"(at the terminal: --overwrite)"
    )


def _marks(path: Path, text: str) -> tuple[str | None, str]:
    """The fingerprint that an export carries (None for another file), and that of its cells."""
    try:
        if path.suffix.lower() == ".py":
            first, _, body = text.partition("\n")
            if not first.startswith(MARK):
                return None, ""
            return str(json.loads(first.removeprefix(MARK))["cells"]), _fingerprint([body])
        book = json.loads(text)
        sources = ["".join(cell["source"]) for cell in book["cells"]]
        return str(book["metadata"]["cave"]["cells"]), _fingerprint(sources)
    except (ValueError, KeyError, TypeError):
        return None, ""


def write(path: Path, content: bytes, *, new: bool = False) -> Path:
    """The file at once: written beside its place, then renamed.

    Raises `StoreError` when the disk is full, `ConfigError` for a place that cannot be, and
    when something is there where a `new` file is to be made.
    """
    path = path.expanduser()
    if new and path.exists():
        raise ConfigError(f"{str(path)!r} is there already; type overwrite=True to replace it")
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        try:
            with beside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _named(error, path) from error
    return path


def _named(error: OSError, path: Path) -> ConfigError | StoreError:
    if error.errno in FULL_DISK:
        return StoreError(
            f"the disk is full: {str(path)!r} was not written, and nothing was changed; "
            f"make room and export again"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ConfigError(
            f"there is no folder {str(path.parent)!r}; make it with: mkdir -p {path.parent}"
        )
    return ConfigError(f"cannot write {str(path)!r}: {error.strerror or error}")
