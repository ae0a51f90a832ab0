"""HTML of what is told about snapshots: RestoreReport, Snapshot, Diff."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from cave.display.safe import escaped
from cave.display.tables import size
from cave.report import Diff, Entry, RestoreReport, Snapshot

NAMES = 200
"""Names that one line gives; the number of the others is said."""
ROWS = 200
"""Rows of a table; the number of the others is said."""


def body(value: Any) -> str | None:
    """The inside of its page; None for what this does not know."""
    match value:
        case RestoreReport():
            return restored(value)
        case Snapshot():
            return snapshot(value)
        case Diff():
            return diff(value)
        case _:
            return None


def restored(report: RestoreReport) -> str:
    """A line of counts, a table of what is not as it was."""
    well = len(report.restored) + len(report.kept)
    mark, css = ("✓", "c-ok") if report.exact else ("●", "c-warn")
    bar = (
        f'<div class="c-bar"><b><span class="{css}">{mark}</span> Restored</b>'
        f"<span>as after cell {report.cell}</span><span>{well} exact</span>"
        f"<span>{report.seconds:.2f} s</span></div>"
    )
    rows = [
        (kind, entry) for kind in ("lost", "changed", "rebuilt") for entry in getattr(report, kind)
    ]
    parts = [bar]
    if report.undone:
        cells = ", ".join(map(str, report.undone[:NAMES]))
        parts.append(f'<p class="c-warn">without what came later: cells {cells}</p>')
    if rows:
        parts.append(_entries(rows))
    if report.assumed:
        parts.append(f'<p class="c-dim">assumed: {_names(e.name for e in report.assumed)}</p>')
    if well:
        names = [entry.name for entry in (*report.kept, *report.restored)]
        parts.append(f'<p class="c-dim">exact: {_names(names)}</p>')
    parts += [
        f'<p class="c-warn">{escaped(name)} was {escaped(then)}, is '
        f"{escaped(now or 'not installed')}</p>"
        for name, then, now in report.versions
    ]
    if report.effects_after:
        parts.append('<p class="c-warn">what later cells did to the world stands:</p>')
        parts.append(_entries([("stands", entry) for entry in report.effects_after]))
    return "".join(parts)


def _entries(rows: list[tuple[str, Entry]]) -> str:
    lines = "".join(
        f"<tr><td>{kind}</td><td><code>{escaped(entry.name)}</code></td>"
        f"<td>{escaped(entry.type)}</td><td class='c-num'>{entry.cell or ''}</td>"
        f"<td class='c-text'>{escaped(entry.reason)}</td></tr>"
        for kind, entry in rows[:ROWS]
    )
    hidden = len(rows) - ROWS
    more = f'<p class="c-dim">{hidden:,} more</p>' if hidden > 0 else ""
    head = "<th></th><th>name</th><th>type</th><th class='c-num'>cell</th><th>reason</th>"
    return (
        f'<div class="c-wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{more}"
    )


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(f"<code>{escaped(name)}</code>" for name in listed[:NAMES])
    hidden = len(listed) - NAMES
    return f"{shown}, {hidden:,} more" if hidden > 0 else shown


def snapshot(value: Snapshot) -> str:
    """One line: name, moment, size."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value.at))
    return (
        f'<div class="c-bar"><b>Snapshot {escaped(value.name or value.id)}</b>'
        f"<span>after cell {value.cell}</span><span>{at}</span>"
        f"<span>{size(value.size)}, {size(value.written)} new</span></div>"
    )


def diff(value: Diff) -> str:
    """A line for what was added, changed and removed."""
    lines = [
        f'<div class="c-news"><b>{mark}</b> {_names(names)}</div>'
        for mark, names in (("+", value.added), ("~", value.changed), ("-", value.removed))
        if names
    ]
    return "".join([*lines, f'<p class="c-dim">{len(value.unchanged)} unchanged</p>'])
