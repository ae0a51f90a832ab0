"""How values are shown: in a notebook as HTML, in a terminal as text, and while work runs.

What a kernel put out is never trusted here: text is escaped, control characters of
terminals and of text direction are made visible, and no HTML of a kernel is injected.
"""

from __future__ import annotations

from typing import Any

from cave.display.doubts import InDoubt
from cave.display.live import LiveTurn
from cave.display.tables import VarTable
from cave.display.waiting import Waiting
from cave.turn import Turn

__all__ = ["InDoubt", "LiveTurn", "VarTable", "Waiting", "mimebundle"]


def mimebundle(value: Any) -> dict[str, str]:
    """`text/plain` and self-contained `text/html` of a Session, Turn, Step, Cell or table.

    A Turn that was shown while it ran is one line of text, as it stands above already.
    """
    from cave.display import html, safe

    own = isinstance(value, VarTable | InDoubt | Waiting)
    plain = value.text if own else safe.visible(repr(value))
    if isinstance(value, Turn) and value.streamed:
        return {"text/plain": plain}
    shown = html.page(value)
    return {"text/plain": plain} if shown is None else {"text/plain": plain, "text/html": shown}
