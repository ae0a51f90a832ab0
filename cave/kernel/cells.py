"""Cells as their host follows them: messages in, an `Executed` out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cave.events import CellStatus, Delta, Fault, Output, Variable, clean
from cave.kernel import output, spool
from cave.kernel.output import Outputs
from cave.kernel.wire import LARGEST, Codec, Message
from cave.ports import Begin, Death, Executed, SpooledCell, SpooledOutput

OUTPUTS = {"stream", "display_data", "update_display_data", "execute_result", "error"}
_STOPPED = {"KeyboardInterrupt", "CancelledError"}
_LONGEST, _MOST = 250, 200
"""Characters of a line on what a cell did outside of the namespace, and lines of one cell."""
_DIGITS = 15
"""Of the number of a cell, at most."""


def new_id(cell: int) -> str:
    """A message id that tells its cell, so that every output does through its parent."""
    return f"cave:{cell}:{secrets.token_hex(8)}"


def cell_of(msg_id: str) -> int | None:
    """The cell of a message id; None when a foreign client made it."""
    head, _, rest = msg_id.partition(":")
    number = rest.partition(":")[0]
    ours = head == "cave" and number.isdecimal() and len(number) <= _DIGITS
    return int(number) if ours else None


def told_of(begin: Begin) -> dict[str, Any]:
    """Where a cell begins, in the terms of its request."""
    loop = None if begin.items is None else {"count": begin.items, "keys": dict(begin.keys)}
    return {
        "statement": begin.statement,
        "calls": begin.calls,
        "forks": begin.forks,
        "loop": loop,
        "deaths": dict(begin.deaths),
    }


@dataclass(frozen=True, slots=True)
class Tape:
    """A kernel's spool with what is needed to read it."""

    folder: Path
    codec: Codec

    def messages(self, *, after: int, upto: int | None = None) -> Iterator[Message]:
        return spool.messages(self.folder, self.codec, after=after, upto=upto)

    def of(self, msg_id: str, *, first: int, upto: int | None) -> Iterator[Message]:
        """The messages that belong to one request."""
        found = self.messages(after=max(first - 1, 0), upto=upto)
        return (message for message in found if message.parent == msg_id)


@dataclass(slots=True, eq=False)
class Cell:
    """One cell on its way: what came of it so far, and whether it has ended."""

    cell: int | None
    msg_id: str
    source: str = ""
    on_output: Callable[[Output], None] | None = None
    replies: bool = True
    """Whether a reply on the shell channel is to be waited for (else it is another host's)."""
    outputs: Outputs = field(default_factory=Outputs)
    began: float = field(default_factory=time.monotonic)
    first: int = 0
    last: int = 0
    end: dict[str, Any] | None = None
    """Content of the kernel's `cave_reply`."""
    noted: dict[str, None] = field(default_factory=dict)
    """What it was about to do to the world, told before it did."""
    refused: dict[str, Any] | None = None
    replied: bool = False
    idle: bool = False
    timed_out: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, message: Message) -> None:
        """Take a message of IOPub (or the spool) that belongs to this cell."""
        self.first = self.first or message.number
        self.last = max(self.last, message.number)
        match message.type:
            case "status":
                self._status(str(message.content.get("execution_state")))
            case "execute_input":
                self.source = str(message.content.get("code", ""))
                self.started.set()
            case "cave_reply":
                self.end = message.content
            case "cave_observed":
                self._note(str(message.content.get("text", "")))
            case _:
                self.outputs.add(message)
                self._tell(message)

    def reply(self, message: Message) -> None:
        """Take the reply of the shell channel."""
        self.replied = True
        named = str(message.content.get("ename"))
        if named in {"LeaseLost", "NotAttached"} and not self.first_run:
            self.refused = message.content
            self.done.set()
        self._check()

    @property
    def first_run(self) -> bool:
        return self.started.is_set()

    def _note(self, text: str) -> None:
        if len(self.noted) < 2 * _MOST:
            self.noted[text[: 2 * _LONGEST]] = None

    def _status(self, state: str) -> None:
        if state == "idle":
            self.idle = True
            self._check()

    def _check(self) -> None:
        if self.idle and (self.replied or self.end is not None or not self.replies):
            self.done.set()

    def _tell(self, message: Message) -> None:
        if self.on_output is None or message.type not in OUTPUTS:
            return
        single = Outputs()
        single.add(message)
        for item in single.result():
            self.on_output(item)


def executed(run: Cell, tape: Tape, *, death: Death | None = None, whole: bool = False) -> Executed:
    """How the cell ended; `whole` when all its messages were read from the spool.

    Otherwise the spool is asked where it knows more than the wire told: what went above the
    cap, and what was on its way when the kernel died.
    """
    outputs = run.outputs
    cut = death is not None and run.end is None
    if run.first and not whole and (cut or (run.end or {}).get("capped")):
        outputs = _reread(run, tape, upto=None if cut else run.last)
    end = run.end or {}
    status = _status(run, end, died=death is not None and not end)
    text = partial(_text, tape, run.msg_id, run.first, run.last)
    return Executed(
        status=status,
        outputs=outputs.result(),
        error=_fault(status, end, death),
        seconds=_seconds(end.get("seconds")) or time.monotonic() - run.began,
        kept=death is None,
        delta=delta_of(end.get("delta")),
        spool=run.last,
        full_size=outputs.size if outputs.clipped else 0,
        full_text=text if outputs.clipped else None,
        bound=clean(str(end.get("bound") or "")),
        observed=_observed(run, end),
    )


def _observed(run: Cell, end: dict[str, Any]) -> tuple[str, ...]:
    """What the cell did to the world: by the notes before, and by what its end tells."""
    told = end.get("observed")
    texts = [*run.noted, *(told if isinstance(told, list) else [])]
    lines = (" ".join(clean(str(text)).split())[:_LONGEST] for text in texts)
    return tuple(dict.fromkeys(line for line in lines if line))[:_MOST]


def _reread(run: Cell, tape: Tape, *, upto: int | None) -> Outputs:
    """The outputs as the spool has them; the cell's end, too, if it is there."""
    found = Cell(run.cell, run.msg_id, replies=False)
    for message in tape.of(run.msg_id, first=run.first, upto=upto):
        found.take(message)
        if found.done.is_set():
            break
    run.end = run.end or found.end
    run.last = max(run.last, found.last)
    run.noted = run.noted | found.noted
    # a smaller spool means a full disk: then the wire knows more
    return found.outputs if found.outputs.size >= run.outputs.size else run.outputs


def _text(tape: Tape, msg_id: str, first: int, last: int) -> Iterable[bytes]:
    return output.full_text(tape.of(msg_id, first=first, upto=last))


def _status(run: Cell, end: dict[str, Any], *, died: bool) -> CellStatus:
    if died:
        return "timeout" if run.timed_out else "died"
    if end.get("status") == "ok":
        return "ok"
    if run.timed_out:
        return "timeout"
    if end.get("interrupted") and str(end.get("ename")) in _STOPPED:
        return "interrupted"
    return "error"


def _fault(status: CellStatus, end: dict[str, Any], death: Death | None) -> Fault | None:
    if status == "ok":
        return None
    if death is not None and not end:
        return Fault("KernelDied", str(death))
    fault = output.fault_of(end)
    if fault.name == "CancelledError" and end.get("interrupted"):
        return Fault("KeyboardInterrupt", "", fault.traceback)
    return fault


# -- values from JSON that is not trusted ----------------------------------------------------


def delta_of(value: Any) -> Delta:
    """What the kernel says that a cell did to the namespace."""
    if not isinstance(value, dict):
        return Delta()
    removed = value.get("removed")
    return Delta(
        variables_of(value.get("added")),
        variables_of(value.get("changed")),
        tuple(clean(str(name)) for name in removed) if isinstance(removed, list) else (),
        _prints(value.get("added")) | _prints(value.get("changed")),
    )


def _prints(rows: Any) -> dict[str, str]:
    rows = rows if isinstance(rows, list) else []
    found = [row for row in rows if isinstance(row, dict) and "name" in row]
    return {
        clean(str(row["name"])): clean(str(row["print"])[:64]) for row in found if row.get("print")
    }


def variables_of(rows: Any) -> tuple[Variable, ...]:
    """Descriptions of variables; rows that are none are left out."""
    if not isinstance(rows, list):
        return ()
    return tuple(_variable(row) for row in rows if isinstance(row, dict) and "name" in row)


def _variable(row: dict[str, Any]) -> Variable:
    shape = row.get("shape")
    return Variable(
        name=clean(str(row["name"])),
        type=clean(str(row.get("type", ""))),
        shape=tuple(map(_int, shape)) if isinstance(shape, list) else None,
        size=_maybe_int(row.get("size")),
        cell=_maybe_int(row.get("cell")),
        summary=output.clean_tree(str(row.get("summary", ""))),
        change=output.clean_tree(str(row.get("change", ""))),
    )


def _int(value: Any) -> int:
    return number_of(value) or 0


def _maybe_int(value: Any) -> int | None:
    return number_of(value)


def number_of(value: Any) -> int | None:
    """A number that a kernel told; None for what is none, or is out of all measure."""
    return value if type(value) is int and -LARGEST < value < LARGEST else None


def _seconds(value: Any) -> float:
    number = type(value) in {int, float} and 0 <= value < LARGEST
    return float(value) if number else 0.0


# -- the gap ---------------------------------------------------------------------------------


class Gap:
    """Sorts messages that nobody followed into cells and late output."""

    def __init__(self, tape: Tape, *, skip: set[int] | None = None) -> None:
        self._tape = tape
        self._skip = skip or set()
        self._open: dict[str, Cell] = {}
        self._entries: list[SpooledCell | SpooledOutput] = []
        self._late: dict[int, tuple[Outputs, int]] = {}

    def add(self, message: Message) -> None:
        """Take the next message, in the order of numbers."""
        run = self._open.get(message.parent)
        if run is None and message.type == "execute_input":
            run = Cell(cell_of(message.parent), message.parent, replies=False)
            run.first = message.number
            self._open[message.parent] = run
        if run is not None:
            run.take(message)
            if run.done.is_set():
                self._finish(run)
        elif message.metadata.get("cave") == "note":
            return  # it tells what the spool itself holds
        elif message.type in OUTPUTS and message.number not in self._skip:
            self._add_late(message)

    def still_open(self) -> list[Cell]:
        """Cells whose end has not been seen."""
        return list(self._open.values())

    def entries(self, death: Death | None = None) -> list[SpooledCell | SpooledOutput]:
        """All that was found; cells without an end died with the kernel, or run."""
        self._flush_late()
        for run in self.still_open():
            found = executed(run, self._tape, death=death, whole=True) if death else None
            self._entries.append(SpooledCell(run.cell, run.source, found))
        return self._entries

    def _finish(self, run: Cell) -> None:
        self._flush_late()
        del self._open[run.msg_id]
        found = executed(run, self._tape, whole=True)
        self._entries.append(SpooledCell(run.cell, run.source, found))

    def _add_late(self, message: Message) -> None:
        cell = cell_of(message.parent)
        if cell is not None:
            outputs, _ = self._late.get(cell) or (Outputs(), 0)
            outputs.add(message)
            self._late[cell] = (outputs, message.number)

    def _flush_late(self) -> None:
        for cell, (outputs, number) in self._late.items():
            self._entries.append(SpooledOutput(cell, outputs.result(), number))
        self._late.clear()
