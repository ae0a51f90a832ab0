"""What a session masks: its events, what its operator is shown, texts on their way to disk.

A `Mask` knows the secrets of one session and keeps, for each cell that runs, how far its
streams have come: a secret that comes in two pieces is found, also where other output lies
between them. Values that are no texts for people (digests, keys of blobs, what a skill gave)
stay as they are; `cave.policy.veil` is for those.
"""

from __future__ import annotations

import codecs
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Event,
    Output,
    OutputLate,
    StepReplied,
    StoredValue,
    TextDelta,
)
from cave.policy.redaction import Masker, Redactor
from cave.policy.veil import BEFORE, Veil

T = TypeVar("T")
E = TypeVar("E", bound=Event)

RECENT = 64
"""Cells whose streams are remembered: threads may go on writing."""

_EXACT = frozenset({
    "session", "digest", "edited", "hash", "key", "uid", "owner", "effect", "approval",
    "snapshot", "snapshots", "file", "full_blob", "prints", "packages",
})  # fmt: skip
_WORD = re.compile(r"(?:Literal\[.*|\w*(?:Status|Kind|Origin|Reason|State|End|Scope|Decision))$")


class Mask:
    """Masks what leaves one session. `names` are variables of this process's environment."""

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        environ: Mapping[str, str] = os.environ,
        key: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self.redactor = Redactor()
        self._environ = environ
        self._key = key
        self._names: tuple[str, ...] = ()
        self._now: dict[str, str] = {}
        self._known: dict[tuple[str, str], None] = {}
        self.kept = True
        """Whether variables that hold a secret come back with it."""
        self._veil: Veil | None = None
        self._cells: dict[int, dict[str, Masker]] = {}
        """By cell: the streams as they are journaled."""
        self._shown: dict[tuple[str, int, str], Masker] = {}
        """Texts as they are shown while they come."""
        self.take(names)

    def take(self, names: Sequence[str] = ()) -> None:
        """Mask what these variables hold now, too; what was masked before stays so.

        Raises `ConfigError` for a value that is too short to be told apart.
        """
        self._names = tuple(dict.fromkeys((*self._names, *names)))
        now = {name: self._environ.get(name, "") for name in self._names}
        for name, value in now.items():
            if value and (name, value) not in self._known:
                self.redactor.add(name, value)
                self._known[name, value] = None
        if now != self._now:
            self._now, self._veil = now, None

    def look(self) -> None:
        """Take in values that have changed in the environment. Raises `ConfigError`."""
        self.take()

    @property
    def veil(self) -> Veil:
        """For values that have to come back as they were."""
        if self._veil is None or self._veil.kept != self.kept:
            values = {
                name if self._now[name] == value else name + BEFORE: value
                for name, value in self._known
            }
            self._veil = Veil(self._key, values, self.kept)
        return self._veil

    # -- whole values ------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """A text with its secrets masked."""
        return self.redactor.mask(text)

    def value(self, value: T) -> T:
        """Texts, containers and frozen values with every text in them masked; the same object
        where nothing is to be masked."""
        texts: list[str] = []
        _collect(value, texts)
        return self._walk(value) if self.redactor.holds("\n".join(texts)) else value

    def _walk(self, value: Any) -> Any:
        match value:
            case str():
                return self.redactor.mask(value)
            case dict():
                return {self._walk(k): self._walk(v) for k, v in value.items()}
            case list():
                return [self._walk(item) for item in value]
            case tuple():
                return tuple(self._walk(item) for item in value)
            case StoredValue():
                return value
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                told = {name: getattr(value, name) for name in _texts_of(type(value))}
                masked = {name: self._walk(one) for name, one in told.items()}
                return replace(value, **{n: m for n, m in masked.items() if m != told[n]})
            case _:
                return value

    def chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """A long text in UTF-8 chunks, masked as a whole is."""
        masker, reader = self.redactor.masker(), codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in chunks:
            yield masker.feed(reader.decode(chunk)).encode()
        yield (masker.feed(reader.decode(b"", final=True)) + masker.end()).encode()

    # -- events ------------------------------------------------------------------------------

    def event(self, event: E) -> E:
        """An event as it is journaled."""
        masked: Any = event
        match event:
            case CellFinished() | OutputLate():
                if isinstance(event, CellFinished):
                    self._cells.pop(event.cell, None)  # once more is the same
                outputs = self._outputs(event.cell, event.outputs)
                if outputs != event.outputs:
                    masked = replace(event, outputs=outputs)
            case CellStarted() if self.redactor.holds(event.source):
                masked = replace(event, masked=True)
        found: E = self.value(masked)
        return found

    def _outputs(self, cell: int, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """Streams masked piece by piece, each to its end."""
        streams = self._cells.setdefault(cell, {})
        if len(self._cells) > RECENT:
            self._cells.pop(next(iter(self._cells)))
        made: list[Output] = []
        last: dict[str, int] = {}
        for one in outputs:
            if one.kind == "stream":
                masker = streams.setdefault(one.name, self.redactor.masker())
                last[one.name] = len(made)
                text = masker.feed(one.text)
                made.append(one if text == one.text else replace(one, text=text))
            else:
                made.append(one)
        for name, at in last.items():
            if rest := streams[name].end():
                made[at] = replace(made[at], text=made[at].text + rest)
        return tuple(made)

    # -- what streams ------------------------------------------------------------------------

    def passing(self, event: Event) -> Event | None:
        """A provisional event as it may be shown now; None when all of it waits."""
        match event:
            case CellOutput(output=Output(kind="stream") as output):
                text = self._feed(("cell", event.cell, output.name), output.text)
                return replace(event, output=replace(output, text=text)) if text else None
            case TextDelta():
                text = self._feed(("step", event.turn, str(event.step)), event.text)
                return replace(event, text=text) if text else None
            case _:
                return self.value(event)

    def _feed(self, stream: tuple[str, int, str], text: str) -> str:
        return self._shown.setdefault(stream, self.redactor.masker()).feed(text)

    def rests(self, event: Event) -> Iterator[Event]:
        """What has waited for more, and is to be shown before this event."""
        match event:
            case CellFinished():
                for stream in [s for s in self._shown if s[:2] == ("cell", event.cell)]:
                    if rest := self._shown.pop(stream).end():
                        output = Output("stream", rest, stream[2])
                        yield CellOutput(cell=event.cell, output=output)
            case StepReplied():
                stream = ("step", event.turn, str(event.step))
                masker = self._shown.pop(stream, None)
                if masker is not None and (rest := masker.end()):
                    yield TextDelta(turn=event.turn, step=event.step, text=rest)
            case _:
                return


@cache
def _texts_of(cls: type) -> tuple[str, ...]:
    """The fields of a value that may hold text for people."""
    return tuple(f.name for f in dataclasses.fields(cls) if _is_text(f))


def _is_text(field: dataclasses.Field[Any]) -> bool:
    told = str(field.type)
    return field.name not in _EXACT and not _WORD.match(told) and _MAYBE.search(told) is not None


_MAYBE = re.compile(r"\bstr\b|[A-Z]")


def _collect(value: Any, texts: list[str]) -> None:
    """All texts of a value, for one look at them together."""
    match value:
        case str():
            texts.append(value)
        case dict():
            for key, one in value.items():
                _collect(key, texts)
                _collect(one, texts)
        case list() | tuple():
            for one in value:
                _collect(one, texts)
        case StoredValue() | None | int() | float():
            pass
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for name in _texts_of(type(value)):
                _collect(getattr(value, name), texts)
