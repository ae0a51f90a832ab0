"""What the live namespace knows about a fault: the nearest names, the nearest columns."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping

from cave.errors import CellError
from cave.events import Variable

_NAME = re.compile(r"name '(\w+)' is not defined")
_WORD = re.compile(r"[^\W\d]\w*")
_COLUMN = re.compile(
    r"(?:^|, |\()([^,()]+) (?:[iuf]\d{1,3}|str|bool|obj\w*|cat\w*|date\w*|time\w*|dec\w*)\b"
)
"""A column in the facts of a frame: its name before its type."""


def hint(error: CellError, source: str, variables: Mapping[str, Variable]) -> str:
    """What the kernel said of the fault. Of faults without that: one line for a NameError or
    the KeyError of a column; nothing where nothing is near."""
    if error.hint:
        return error.hint
    match error.name:
        case "NameError":
            found = _NAME.search(error.message)
            near = _nearest(found[1], tuple(variables)) if found else ()
            return f"(names that are there: {', '.join(near)})" if near else ""
        case "KeyError":
            key = error.message.strip("'\"[]")
            used = [variables[w] for w in dict.fromkeys(_WORD.findall(source)) if w in variables]
            lines = [_columns(key, v) for v in used[:5]]
            return "\n".join(filter(None, lines))
        case _:
            return ""


def _columns(key: str, variable: Variable) -> str:
    names = tuple(dict.fromkeys(name.strip() for name in _COLUMN.findall(variable.summary)))
    if len(names) < 2 or key in names:
        return ""
    near = _nearest(key, names)
    said = "nearest columns" if near else "columns"
    return f"({said} of {variable.name}: {', '.join(near or names[:30])})"


@functools.lru_cache(maxsize=256)
def _nearest(word: str, names: tuple[str, ...]) -> tuple[str, ...]:
    lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), lower, n=3, cutoff=0.5)
    return tuple(lower[name] for name in found)
