"""Messages of a cell to its outputs: streams merged and folded, displays updated, all bounded.

`Fold` turns terminal text (carriage returns, backspaces, erased lines) into what a terminal
would show at last, incrementally and in linear time. `Outputs` collects a cell's messages
in memory that stays flat: above `LIMIT` characters the middle is cut and says so.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cave.events import Fault, Output, OutputKind, clean
from cave.kernel.wire import Message

LIMIT = 1 << 20
"""Characters of text that a cell's outputs hold."""
DISPLAYS = 8 << 20
"""Bytes of displays that they hold beside their text."""
_PLAIN = 10_000
_NAME = 1_000
_IDS = 10_000
"""Displays of one cell that can still be updated."""
_OVERHEAD = 60
_LONGEST_LINE = 1 << 16
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_MOVES = re.compile(r"(\r|\x08|\n|\x1b\[[012]?K)")


class Fold:
    """Terminal text to its last state. `feed` gives what is settled, `rest` the open line."""

    def __init__(self) -> None:
        self._line: list[str] = []
        self._at = 0

    def feed(self, text: str) -> str:
        """Take a piece; the text that no later piece can change any more."""
        if self._at == len(self._line) and not _moves(text):
            return self._plain(text)
        settled: list[str] = []
        for piece in _MOVES.split(text):
            match piece:
                case "":
                    pass
                case "\n":
                    settled.append("".join(self._line) + "\n")
                    self._line, self._at = [], 0
                case "\r":
                    self._at = 0
                case "\x08":
                    self._at = max(self._at - 1, 0)
                case "\x1b[K" | "\x1b[0K":
                    del self._line[self._at :]
                case "\x1b[2K":
                    self._line = [" "] * self._at
                case "\x1b[1K":
                    self._line[: self._at] = [" "] * self._at
                case _:
                    settled.append(self._write(piece))
        return "".join(settled)

    @property
    def rest(self) -> str:
        return "".join(self._line)

    def _plain(self, text: str) -> str:
        """Text that only moves forward: most of it."""
        head, newline, tail = text.rpartition("\n")
        if not newline:
            return self._write(text)
        settled = self.rest + head + newline
        self._line, self._at = [], 0
        return settled + self._write(tail)

    def _write(self, piece: str) -> str:
        end = self._at + len(piece)
        if end <= _LONGEST_LINE:
            self._line[self._at : end] = piece
            self._at = end
            return ""
        # a line this long is no progress bar: let go of it
        settled = "".join(self._line[: self._at]) + piece
        self._line, self._at = self._line[end:], 0
        return settled


def _moves(text: str) -> bool:
    return "\r" in text or "\x08" in text or "\x1b[" in text


@dataclass(slots=True, eq=False)
class _Item:
    """One output, whose text may lie in many pieces."""

    kind: OutputKind
    name: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    held: int = 0
    """Characters of its data, as JSON."""

    def output(self, text: str) -> Output:
        return Output(self.kind, clean(text), self.name, self.data, self.metadata)


_Piece = tuple[_Item, str]


class Outputs:
    """The outputs of one cell, built from its messages one by one.

    The pieces of text that come first stay as the head, the latest as the tail; what falls
    out between is counted and marked.
    """

    def __init__(self, *, limit: int = LIMIT, displays: int = DISPLAYS) -> None:
        self._half = limit // 2
        self._displays = displays
        self._clear = False
        self._empty()

    def _empty(self) -> None:
        self._head: list[_Piece] = []
        self._tail: deque[_Piece] = deque()
        self._room = [self._half, self._half]
        self._shown = 0
        self._plain_room = self._displays
        self._open: tuple[_Item, Fold] | None = None
        self._by_id: dict[str, _Item] = {}
        self._cut = 0
        self._size = 0

    @property
    def clipped(self) -> bool:
        return self._cut > 0

    @property
    def size(self) -> int:
        """Characters of text in all, also of what was cut."""
        return self._size + (len(self._open[1].rest) if self._open else 0)

    def add(self, message: Message) -> None:
        """Take one message; types that are no output are ignored."""
        content = message.content
        if message.type in _OUTPUTS and self._clear:
            self._clear = False
            self._empty()
        match message.type:
            case "stream":
                name = "stderr" if content.get("name") == "stderr" else "stdout"
                self._stream(name, str(content.get("text", "")))
            case "display_data" | "execute_result" as kind:
                self._display(kind, content)
            case "update_display_data":
                self._update(content)
            case "error":
                self._close()
                fault = fault_of(content)
                self._put(_Item("error", fault.name), fault.traceback)
            case "clear_output":
                self._clear = bool(content.get("wait"))
                if not self._clear:
                    self._empty()

    def result(self) -> tuple[Output, ...]:
        """What there is now; the middle is cut when it is too much."""
        pieces = [*self._head]
        if self._cut:
            note = f"\n[... {self._cut:,} characters cut ...]\n"
            pieces.append((_Item("stream", "stdout"), note))
        pieces += self._tail
        if self._open:
            pieces.append((self._open[0], self._open[1].rest))
        groups = itertools.groupby(pieces, key=lambda piece: piece[0])
        outputs = [item.output("".join(text for _, text in group)) for item, group in groups]
        return tuple(out for out in outputs if out.kind != "stream" or out.text)

    def _stream(self, name: str, text: str) -> None:
        if self._open is None or self._open[0].name != name:
            self._close()
            self._open = (_Item("stream", name), Fold())
        item, fold = self._open
        if settled := fold.feed(text):
            self._put(item, settled)

    def _close(self) -> None:
        """Another output comes: the open line can change no more."""
        if self._open:
            item, fold = self._open
            self._open = None
            self._put(item, fold.rest)

    def _display(self, kind: OutputKind, content: dict[str, Any]) -> None:
        self._close()
        item = _Item(kind)
        self._fill(item, content)
        identity = str(_mapping(content, "transient").get("display_id") or "")
        if 0 < len(identity) <= _NAME and len(self._by_id) < _IDS:
            self._by_id[identity] = item
        self._size += len(str(item.data.get("text/plain", "")))
        self._put(item, "")

    def _fill(self, item: _Item, content: dict[str, Any]) -> None:
        """Give an item its data; of what is too much the plain text, or nothing, is kept."""
        data, metadata = _mapping(content, "data"), _mapping(content, "metadata")
        size = len(json.dumps(data)) + len(json.dumps(metadata))
        if self._shown + size - item.held > self._displays:
            room = min(_PLAIN, self._plain_room)
            data, metadata = {"text/plain": str(data.get("text/plain", ""))[:room]}, {}
            self._plain_room -= len(data["text/plain"])
            size = 0
        self._shown += size - item.held
        item.held = size
        item.data, item.metadata = clean_tree(data), clean_tree(metadata)

    def _update(self, content: dict[str, Any]) -> None:
        item = self._by_id.get(str(_mapping(content, "transient").get("display_id")))
        if item is not None:
            self._fill(item, content)

    def _put(self, item: _Item, text: str) -> None:
        """Keep a piece in the head while that has room, else as the end of the tail."""
        self._size += len(text)
        if not self._tail and not self._cut:
            taken, text = text[: self._room[0]], text[self._room[0] :]
            self._head.append((item, taken))
            self._room[0] = max(self._room[0] - len(taken) - _OVERHEAD, 0)
            if not text:
                return
        self._tail.append((item, text[-self._half :]))
        self._cut += max(len(text) - self._half, 0)
        self._room[1] -= min(len(text), self._half) + _OVERHEAD
        while self._room[1] < 0 and len(self._tail) > 1:
            _, lost = self._tail.popleft()
            self._cut += len(lost)
            self._room[1] += len(lost) + _OVERHEAD


_OUTPUTS = {"stream", "display_data", "execute_result", "error"}


def fault_of(content: dict[str, Any]) -> Fault:
    """The exception that an `error` message or an error reply tells of."""
    lines = content.get("traceback")
    trace = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
    return Fault(
        clean(str(content.get("ename", "Error"))[:_NAME]),
        clean(str(content.get("evalue", ""))[:LIMIT]),
        clean(_ANSI.sub("", trace[:LIMIT])),
        clean(str(content.get("hint", ""))[:_PLAIN]),
    )


def clean_tree(value: Any) -> Any:
    """JSON without lone surrogates."""
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_tree(item) for item in value]
        case dict():
            return {clean(str(key)): clean_tree(item) for key, item in value.items()}
        case _:
            return value


def _mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def full_text(messages: Iterable[Message]) -> Iterator[bytes]:
    """All text of a cell, folded: streams and the text of displays, as UTF-8 chunks."""
    fold, name = Fold(), ""
    for message in messages:
        content = message.content
        match message.type:
            case "stream":
                if name not in {"", content.get("name")}:
                    yield _utf8(fold.rest)
                    fold = Fold()
                name = str(content.get("name"))
                yield _utf8(fold.feed(str(content.get("text", ""))))
            case "display_data" | "execute_result":
                plain = str(_mapping(content, "data").get("text/plain", ""))
                yield _utf8(fold.rest + plain + "\n")
                fold, name = Fold(), ""
            case _:
                continue
    yield _utf8(fold.rest)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
