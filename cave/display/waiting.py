"""Requests that wait for a person's leave: what is to be done, why one is asked, what to type."""

from __future__ import annotations

import importlib
import time
from typing import Any, cast

from cave.approval import Approval
from cave.display.safe import escaped, visible

NOTHING = "nothing waits to be approved"
_SOURCE = 2_000
"""Characters of a cell that are shown."""


class Waiting(tuple[Approval, ...]):
    """The approvals that a session waits for, which shows itself as a table."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """In lines, each with what to type."""
        return "\n".join("\n".join(lines(asked)) for asked in self) if self else f"({NOTHING})"

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        display = importlib.import_module("cave.display")
        return cast("dict[str, str]", display.mimebundle(self))


def lines(asked: Approval, *, terminal: bool = False) -> list[str]:
    """What is to be approved, in full, and what to type for it."""
    return [
        f"{name(asked, terminal=terminal)}  {visible(asked.what)}  {when(asked)}",
        f"    {visible(asked.reason)}",
        *(f"    | {line}" for line in visible(shown(asked)).splitlines()),
        *(f"    {line}" for line in typed(asked, terminal=terminal)),
    ]


def name(asked: Approval, *, terminal: bool) -> str:
    """The id, with its session where several are shown together."""
    return f"{asked.session}/{asked.id}" if terminal else asked.id


def shown(asked: Approval) -> str:
    """The code that is to run, or that makes the call."""
    text = asked.source.strip("\n")
    rest = len(text) - _SOURCE
    return f"{text[:_SOURCE]}\n... ({rest:,} more characters)" if rest > 0 else text


def when(asked: Approval) -> str:
    """When it was asked, and until when an answer counts."""
    at = _at(asked.asked_at)
    return at if asked.expires_at is None else f"{at}, until {_at(asked.expires_at)}"


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def typed(asked: Approval, *, terminal: bool = False) -> list[str]:
    """The lines that answer it."""
    if terminal:
        id = name(asked, terminal=True)
        return [f"cave approve {id}", f'cave deny {id} --reason "..."']
    return [f"s.approve({asked.id!r})", f's.deny({asked.id!r}, reason="...")']


def html(waiting: Waiting) -> str:
    """A table of what is to be done, and under each row what to type."""
    if not waiting:
        return f'<p class="c-dim">{NOTHING}</p>'
    bar = (
        '<div class="c-bar"><b><span class="c-warn">●</span> To be approved</b>'
        "<span>answer each, then type <code>s.resume()</code></span></div>"
    )
    heads = "".join(f"<th>{title}</th>" for title in ("id", "what", "asked", "why"))
    rows = "".join(map(_row, waiting))
    return (
        f'{bar}<div class="c-wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(asked: Approval) -> str:
    answers = "".join(
        f"<div style='line-height:1.8'><code>{escaped(line)}</code></div>" for line in typed(asked)
    )
    return (
        f"<tr><td><code>{escaped(asked.id)}</code></td>"
        f"<td class='c-text'><code>{escaped(asked.what)}</code></td>"
        f"<td>{when(asked)}</td><td class='c-text'>{escaped(asked.reason)}</td></tr>"
        f"<tr><td></td><td colspan='3'><pre>{escaped(shown(asked))}</pre>{answers}</td></tr>"
    )
