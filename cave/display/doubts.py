"""Effects that wait for a person: what was called, when, what is known, and what to type."""

from __future__ import annotations

import importlib
import time
from typing import Any, cast

from cave.display.safe import escaped, visible
from cave.turn import Effect

ROWS = 100
"""Effects that are shown; the number of the others is said."""
NOTHING = "no effect is in doubt"


def decisions(*, repeats: str = "", undoes: str = "") -> tuple[tuple[str, str], ...]:
    """What may be said of an effect, and what it means: of a call, of one that repeats another
    that stands, of one that undoes another."""
    if undoes:
        return (
            ("done", f"it was done: {undoes} does not stand any more"),
            ("not_done", f"it was not: s.undo({undoes!r}) calls it"),
            ("give_up", f"it is never called, and {undoes} stands"),
        )
    if repeats:
        return (
            ("not_done", "have it called all the same"),
            ("done", "take what was done already for this call"),
            ("give_up", "it is never called"),
        )
    return (
        ("done", "it was done: the cell goes on with its result"),
        ("not_done", "it was not: it is called when its cell goes on"),
        ("give_up", "it is never called"),
    )


class InDoubt(tuple[Effect, ...]):
    """The effects in doubt of a session, which shows itself as a table."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """In lines, each effect with the three lines to type."""
        if not self:
            return f"({NOTHING})"
        blocks = [_lines(effect) for effect in self[:ROWS]]
        hidden = len(self) - ROWS
        more = [f"({hidden:,} more)"] if hidden > 0 else []
        return "\n".join(["\n".join(block) for block in blocks] + more)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        display = importlib.import_module("cave.display")
        return cast("dict[str, str]", display.mimebundle(self))


def _lines(effect: Effect) -> list[str]:
    typed = _typed(effect)
    width = max(len(line) for line, _ in typed)
    return [
        f"{effect.id}  {visible(_said(effect))}  {_when(effect)}, {_where(effect)}",
        f"    {visible(effect.reason)}",
        *(f"    {line:<{width}}  # {means}" for line, means in typed),
    ]


def _typed(effect: Effect) -> list[tuple[str, str]]:
    lines = []
    plain = not (effect.repeats or effect.undoes)
    for decision, means in decisions(repeats=effect.repeats, undoes=effect.undoes):
        result = ", result=..." if decision == "done" and plain else ""
        lines.append((f"s.settle({effect.id!r}, {decision!r}{result})", means))
    return lines


def _said(effect: Effect) -> str:
    told = ", ".join(f"{name}={text}" for name, text in effect.arguments.items())
    return f"{effect.skill}({told})"


def _when(effect: Effect) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(effect.at))


def _where(effect: Effect) -> str:
    return f"undoes {effect.undoes}" if effect.undoes else f"cell {effect.cell}"


def html(effects: InDoubt) -> str:
    """A table of what was called, and under each row what to type."""
    if not effects:
        return f'<p class="c-dim">{NOTHING}</p>'
    count = f"{len(effects)} effect{'s' * (len(effects) != 1)}"
    waits = "waits" if len(effects) == 1 else "wait"
    bar = (
        f'<div class="c-bar"><b><span class="c-warn">●</span> In doubt</b>'
        f"<span>{count} {waits} for you; look each up, then type one of its lines, then "
        f"<code>s.resume()</code></span></div>"
    )
    heads = "".join(f"<th>{name}</th>" for name in ("effect", "call", "when", "where", "known"))
    rows = "".join(_row(effect) for effect in effects[:ROWS])
    hidden = len(effects) - ROWS
    more = f'<p class="c-dim">{hidden:,} more</p>' if hidden > 0 else ""
    return (
        f'{bar}<div class="c-wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _row(effect: Effect) -> str:
    typed = "".join(
        f"<div style='line-height:1.8'><code>{escaped(line)}</code> "
        f"<span class='c-dim'>{escaped(means)}</span></div>"
        for line, means in _typed(effect)
    )
    return (
        f"<tr><td><code>{escaped(effect.id)}</code></td>"
        f"<td class='c-text'><code>{escaped(_said(effect))}</code></td>"
        f"<td>{_when(effect)}</td><td>{escaped(_where(effect))}</td>"
        f"<td class='c-text'>{escaped(effect.reason)}</td></tr>"
        f"<tr><td></td><td colspan='4'>{typed}</td></tr>"
    )
