"""Variables as lines of facts: one of them, what a cell changed, what was lost, all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cave.events import Delta, Variable
from cave.stream.tokens import estimate

LINE = 600
"""Characters of facts that one variable gets where it was just made."""
KNOWN = 320
"""The same where it is told what changed of one that is known already."""
SHORT = 160
"""The same in a one-line summary."""
DELTA_TOKENS = 800
"""What the changes of one cell may cost."""
DIGEST_TOKENS = 1_500
"""What the list of all variables may cost."""
NAMED = 40
"""Names given where there is no room for facts."""

_WORD = re.compile(r"[^\W\d]\w*")


def one_line(text: str, limit: int) -> str:
    """`text` on one line, its end cut off above `limit` characters."""
    line = " ".join(text[: 4 * limit + 100].split())
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


def describe(variable: Variable, limit: int = LINE) -> str:
    """One line: name, type, shape, facts (without the shape, where they begin with it)."""
    facts = one_line(variable.summary, limit)
    shape = _shape(variable).removeprefix("len ")
    if shape and facts.startswith(f"{shape} "):
        facts = facts[len(shape) + 1 :]
    if facts and not facts.startswith("("):
        facts = f"({facts})"
    return f"{variable.name} {_kind(variable)} {facts}".rstrip()


def _shape(variable: Variable) -> str:
    match variable.shape:
        case None | ():
            return ""
        case (length,):
            return f"len {length:,}"
        case shape:
            return "x".join(f"{n:,}" for n in shape)


def _kind(variable: Variable) -> str:
    return f"{one_line(variable.type, 80)} {_shape(variable)}".rstrip()


def changes(delta: Delta) -> list[str]:
    """A line for each name that a cell added (+), changed (~) or removed (-)."""
    marked = [("+", v) for v in delta.added] + [("~", v) for v in delta.changed]
    lines: list[str] = []
    tokens = 0
    for at, (mark, variable) in enumerate(marked):
        line = f"{mark} {_changed(variable)}"
        tokens += estimate(line)
        if tokens > DELTA_TOKENS and lines:
            rest = marked[at:]
            lines.append(f"and {len(rest)} more: {_names(f'{m} {v.name}' for m, v in rest)}")
            break
        lines.append(line)
    if delta.removed:
        lines.append(f"- {_names(delta.removed)}")
    return lines


def _changed(variable: Variable) -> str:
    """A variable with what changed of it; of another name's object no facts a second time."""
    if not variable.change:
        return describe(variable)
    change = one_line(variable.change, KNOWN)
    if change.startswith("is ") and ";" not in change:
        return f"{variable.name} {change}"
    return f"{describe(variable, KNOWN)} [{change}]"


def brief(delta: Delta) -> str:
    """The same within one line: facts of the first three new names, the others by name."""
    parts = [f"+ {describe(v, SHORT)}" for v in delta.added[:3]]
    if delta.added[3:]:
        parts.append(f"+ {_names(v.name for v in delta.added[3:])}")
    if delta.changed:
        parts.append(f"~ {_names(f'{v.name} {_kind(v)}' for v in delta.changed)}")
    if delta.removed:
        parts.append(f"- {_names(delta.removed)}")
    return "; ".join(parts)


def lost(variables: Iterable[Variable]) -> str:
    """Every name that went with a kernel, with its type and the cell that made it."""
    return ", ".join(
        f"{v.name} {one_line(v.type, 80)}" + (f" (cell {v.cell})" if v.cell else "")
        for v in variables
    )


def digest(
    variables: Sequence[Variable], limit_tokens: int = DIGEST_TOKENS, *, words: str = ""
) -> str:
    """All variables within a limit that says what it left out: first those that `words` (the
    request) name, by their own name or one of their columns, then the most recent."""
    lines: list[str] = []
    tokens = 0
    ordered = _named_first(_recent_first(variables), words)
    for at, variable in enumerate(ordered):
        line = describe(variable)
        tokens += estimate(line)
        if tokens > limit_tokens and lines:
            rest = ordered[at:]
            lines.append(f"(left out here: {len(rest)} more: {_names(v.name for v in rest)})")
            break
        lines.append(line)
    return "\n".join(lines)


def _named_first(variables: list[Variable], words: str) -> list[Variable]:
    """Those that a text names first, in the order that they had."""
    said = {word.lower() for word in _WORD.findall(words[:20_000]) if len(word) > 2}
    if not said:
        return variables

    def rank(variable: Variable) -> int:
        name = variable.name.lower()
        if name in said or said.issuperset(part for part in name.split("_") if part):
            return 0
        return 2 - (not said.isdisjoint(map(str.lower, _WORD.findall(variable.summary))))

    return sorted(variables, key=rank)


def _recent_first(variables: Sequence[Variable]) -> list[Variable]:
    """By the cell that set them last; what was put ranks with what came before it."""
    ranked, rank = [], 0
    for at, variable in enumerate(variables):
        rank = rank if variable.cell is None else max(rank, variable.cell)
        own = rank if variable.cell is None else variable.cell
        ranked.append(((own, at), variable))
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    return [variable for _, variable in ranked]


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - NAMED
    return ", ".join(listed[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
