"""VarTable: the variables of a session as a list that shows itself as a table."""

from __future__ import annotations

import importlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast, overload

from cave.events import Variable

COLUMNS = ("name", "type", "shape", "size", "cell", "fidelity", "summary")
RIGHT = frozenset({"shape", "size", "cell"})
CELL = 60
"""Characters of one field in the text table."""


class VarTable(Sequence[Variable]):
    """The variables, in the order of their making: `vars[0]`, `vars["df"]`, `"df" in vars`."""

    def __init__(self, rows: Iterable[Variable]) -> None:
        self._rows = tuple(rows)

    @property
    def names(self) -> list[str]:
        """The names, in order."""
        return [row.name for row in self._rows]

    @overload
    def __getitem__(self, at: int | str) -> Variable: ...
    @overload
    def __getitem__(self, at: slice) -> VarTable: ...

    def __getitem__(self, at: int | str | slice) -> Variable | VarTable:
        if isinstance(at, slice):
            return VarTable(self._rows[at])
        if isinstance(at, int):
            return self._rows[at]
        for row in self._rows:
            if row.name == at:
                return row
        raise KeyError(at)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._rows)

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return any(row.name == item for row in self._rows)
        return item in self._rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VarTable) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    @property
    def fields(self) -> list[tuple[str, ...]]:
        """Each row as texts, in the order of `COLUMNS`."""
        return [texts(row) for row in self._rows]

    @property
    def text(self) -> str:
        """An aligned table of plain text."""
        return table(COLUMNS, self.fields) if self._rows else "(no variables)"

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        display = importlib.import_module("cave.display")
        return cast("dict[str, str]", display.mimebundle(self))


def texts(row: Variable) -> tuple[str, ...]:
    """The fields of a variable as people read them."""
    return (
        row.name,
        row.type,
        "" if row.shape is None else " x ".join(f"{n:,}" for n in row.shape),
        "" if row.size is None else size(row.size),
        "" if row.cell is None else str(row.cell),
        row.fidelity,
        row.summary,
    )


def size(count: int) -> str:
    """Bytes in a readable unit: `224 kB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns of plain text, long fields cut; nothing in it can move a cursor."""
    lines = [columns, *([_field(text) for text in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    aligned = (
        "  ".join(_padded(*part) for part in zip(columns, line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def fitted(text: str, columns: int | None) -> str:
    """`text` with lines that end before the edge of a terminal; as it is without `columns`."""
    if columns is None:
        return text
    return "\n".join(_cut(line, columns) for line in text.split("\n"))


def _cut(line: str, columns: int) -> str:
    if _width(line) <= columns:
        return line
    line = line[: max(columns - 3, 0)]
    while _width(line) > columns - 3 and line:
        line = line[:-1]
    return line + "..."


def _field(text: str) -> str:
    from cave.display.safe import visible

    line = " ".join(visible(text[: 4 * CELL]).split())
    return line if len(line) <= CELL and len(text) <= 4 * CELL else line[: CELL - 3] + "..."


def _padded(column: str, text: str, width: int) -> str:
    blank = " " * (width - _width(text))
    return blank + text if column in RIGHT else text + blank


def _width(text: str) -> int:
    """Columns that `text` takes in a terminal (UAX 11; combining marks take none)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
