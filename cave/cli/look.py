"""Verbs that read: ls, show, log, vars, files, save, export."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

import cave as api
from cave import artefacts, config, facade, home
from cave import audit as audits
from cave.cli import columns, counted, narrate
from cave.display.tables import VarTable, fitted
from cave.display.terminal import at_terminal
from cave.display.told import told_open
from cave.events import Event
from cave.history import History
from cave.portal import portal
from cave.ports import SessionInfo
from cave.shared import Account
from cave.spending import spent_of

FOLLOW = 0.3
"""Seconds between looks at the journal of `cave log -f`."""


def existing(name: str) -> str:
    """`name` when there is such a session. Raises `SessionNotFound`, `ConfigError`."""
    info(name)
    return name


def info(name: str) -> SessionInfo:
    """The store's row of a session. Raises `SessionNotFound`, `ConfigError`."""
    return portal().call(home.at().store.info(config.checked_name(name)))


def events(name: str, after: int = 0) -> list[Event]:
    """The journal of a session."""

    async def all_of() -> list[Event]:
        return [e async for e in home.at().store.read(name, after=after)]

    return portal().call(all_of())


def fold(name: str) -> History:
    """What the journal of a session adds up to."""
    history = History(home.at().text)
    history.feed(events(existing(name)))
    return history


def jsonable(value: Any) -> Any:
    """Values of cave, of pandas and of Python as JSON types."""
    if isinstance(value, Event):
        fields = {k: jsonable(getattr(value, k)) for k in _fields(value)}
        return {"type": type(value).type, **fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: jsonable(getattr(value, k)) for k in _fields(value)}
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None  # JSON has no NaN
    if isinstance(value, str | int | bool | type(None)):
        return value
    return jsonable(_plain(value))


def _plain(value: Any) -> Any:
    """Of pandas, numpy and the calendar: what `jsonable` knows."""
    kind = type(value).__name__
    if kind in {"NaTType", "NAType"}:
        return None
    if kind == "DataFrame" and hasattr(value, "reset_index"):
        return _records(value)
    if kind == "Series" and hasattr(value, "to_frame"):
        return value.to_dict() if value.index.is_unique else _records(value.to_frame())
    for method in ("to_dicts", "to_pylist", "isoformat", "tolist", "to_list"):
        if callable(getattr(value, method, None)):
            return getattr(value, method)()
    return str(value)


def _records(frame: Any) -> Any:
    """A row after the other; as lists where columns have the same name."""
    if type(frame.index).__name__ != "RangeIndex" and not {*frame.index.names} & {*frame.columns}:
        frame = frame.reset_index()
    if frame.columns.is_unique:
        return frame.to_dict("records")
    rows = [list(row) for row in frame.itertuples(index=False, name=None)]
    return {"columns": list(frame.columns), "data": rows}


def _fields(value: Any) -> Iterable[str]:
    return (f.name for f in dataclasses.fields(value) if not f.name.startswith("_"))


def _ago(at: float) -> str:
    seconds = max(0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def ls(as_json: bool) -> None:
    """List the sessions, the last changed first."""
    rows = portal().call(home.at().sessions())
    if as_json:
        click.echo(json.dumps(jsonable(rows)))
        return
    if not rows:
        narrate('no sessions yet; make one with: cave ask NAME "..." --data FILE')
    width = max((len(r.name) for r in rows), default=0)
    for row in rows:
        state = f"operated by pid {row.holder.pid}" if row.holder else "idle"
        click.echo(f"{row.name:{width}}  {_ago(row.changed):>10}  {row.events:>6} events  {state}")


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def show(name: str, as_json: bool) -> None:
    """Show session NAME: kernel, variables, turns, spend, what waits."""
    row, history = info(name), fold(name)
    facts = {
        "name": name,
        "created": row.created,
        "changed": row.changed,
        "events": row.events,
        "operated_by": row.holder.pid if row.holder else None,
        "kernel": jsonable(history.kernel),
        "cells": len(history.cells),
        "running": history.running.cell if history.running else None,
        "turns": jsonable(list(history.turns.values())),
        "pending": jsonable(history.pending),
        "variables": jsonable(list(history.lasting.of(history.variables.values()))),
        "lost": jsonable(history.lost),
        "usage": jsonable(history.usage),
        "approvals": jsonable(list(facade.reach(name).approvals)),
        "budgets": jsonable(accounts(row.uid or name)),
        "workdir": str(home.at().workdir(name)),
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(fitted("\n".join(_shown(name, row, history)), columns()))


def accounts(uid: str) -> Sequence[Account]:
    """The budget of a session and those above it."""
    return portal().call(home.at().store.accounts(uid))


def _budgets(row: SessionInfo, history: History) -> list[str]:
    """What is spent of each limit: of the session, then of those that it was forked from."""
    above = history.opened.forked_from if history.opened is not None else ""
    found = accounts(row.uid or row.name)
    names = ["", f" of {above!r}", *(" above that" for _ in found[2:])]
    return [
        f"{used} spent{name}"
        for account, name in zip(found, names, strict=False)
        for used in spent_of(account)
    ]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _shown(name: str, row: SessionInfo, history: History) -> list[str]:
    kernel, usage = history.kernel, history.usage
    serves = "none"
    if kernel:
        gone = "" if _runs(kernel.pid) else " (not running any more)"
        serves = f"number {kernel.kernel}, pid {kernel.pid}{gone}, Python {kernel.python}"
    tokens = f"{usage.input_tokens + usage.cache_read_tokens:,} in, {usage.output_tokens:,} out"
    estimate = " (estimated)" if usage.estimated else ""
    usd = "unknown" if usage.usd is None else f"${usage.usd:.4f}"
    turns, cells = counted(len(history.turns), "turn"), counted(len(history.cells), "cell")
    lines = [
        f"session   {name}, made {_ago(row.created)}, changed {_ago(row.changed)}",
        f"kernel    {serves}" + (f", profile {kernel.profile}" if kernel else ""),
        f"work      {turns}, {cells}, {usage.seconds:.1f} s",
        f"spent     {counted(usage.model_calls, 'model call')}, {tokens}{estimate}, {usd}",
        f"folder    {home.at().workdir(name)}",
    ]
    missing = told_open(kernel.profile, kernel.degraded) if kernel else []
    lines += [f"open      {line}" for line in missing]
    lines += [f"budget    {told}" for told in _budgets(row, history)]
    if history.running:
        lines.append(f"running   cell {history.running.cell}")
    lines += [
        f"approve   {a.what}: type `cave approve {name}/{a.id}` or `cave deny {name}/{a.id}`"
        for a in facade.reach(name).approvals
    ]
    if history.pending:
        reason = at_terminal(history.pending.reason, name)
        lines.append(f"waits     turn {history.pending.n}: {reason}")
    lines += [f"variable  {v.name}: {v.type} {v.summary}"[:160] for v in history.variables.values()]
    lines += [f"lost      {v.name}: {v.type}" for v in history.lost]
    lines += [
        f"turn {n:<4} {t.status}: {t.prompt.splitlines()[0][:100] if t.prompt else ''}"
        for n, t in history.turns.items()
    ]
    return lines


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on as events come, until Ctrl-C.")
@click.option("--after", type=int, default=0, help="Only events with a higher number.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option(
    "--audit", is_flag=True, help="Who allowed what, and whether the hash chain is whole."
)
@click.option("--anchor", help="With --audit: compare with the anchor that was printed earlier.")
@click.pass_context
def log(
    ctx: click.Context,
    *,
    name: str,
    follow: bool,
    after: int,
    as_json: bool,
    audit: bool,
    anchor: str | None,
) -> None:
    """Print the journal of session NAME, an event a line.

    A terminal shows the beginning of each line; a pipe and --json get all of it. --audit prints
    who allowed what, when, on which evidence (the digest of the exact bytes, the record and its
    hash), what is wrong with the hash chain, and an anchor: kept elsewhere, it shows later
    whether anything up to there was changed. Then the exit status is 1.
    """
    existing(name)
    if audit or anchor is not None:
        ctx.exit(_audit(name, after, anchor, as_json=as_json))
    while True:
        for event in events(name, after):
            line = json.dumps(jsonable(event)) if as_json else fitted(_line(event), columns())
            click.echo(line)
            after = event.seq
        if not follow:
            return
        portal().call(asyncio.sleep(FOLLOW))


def _audit(name: str, after: int, known: str | None, *, as_json: bool) -> int:
    """Print the audit; gives the exit status."""
    store = home.at().store
    seals = portal().call(store.seals(name))
    told = [line for line in audits.lines(events(name), seals) if line.seq > after]
    faults = [f"record {f.seq}: {f.reason}" for f in portal().call(store.verify(name))]
    differs = audits.moved(seals, known) if known is not None else ""
    wrong, end = [*faults, *filter(None, [differs])], audits.anchor(seals)
    if as_json:
        for line in told:
            click.echo(json.dumps(jsonable(line)))
        click.echo(json.dumps({"records": len(seals), "anchor": end, "faults": wrong}))
        return int(bool(wrong))
    for line in told:
        click.echo(fitted(_audited(line), columns()))
    for fault in wrong:
        click.echo(f"FAILED  {fault}")
    if not wrong:
        since = f", and goes on from anchor {known.partition(':')[0]}" if known else ""
        click.echo(f"ok      {len(seals)} records, the hash chain is whole{since}")
    click.echo(f"anchor  {end}")
    return int(bool(wrong))


def _audited(line: audits.Line) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
    digest = f" digest {line.digest[:16]}" if line.digest else ""
    evidence = f"record {line.record[:16]}{digest}"
    return f"{line.seq:>5} {at} {line.deed:<9} {line.what}; by {line.by}; {evidence}"


def _line(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    facts = {
        k: v
        for k, v in jsonable(event).items()
        if k not in ("type", "seq", "at", "session") and v not in (None, "", [], {}, 0, 0.0)
    }
    text = " ".join(f"{k}={_short(v)}" for k, v in facts.items())
    return f"{event.seq:>5} {at} {type(event).type:<16} {text}"


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = [item.get("name") or item.get("kind") or item for item in value]
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 100 else f"{text[:97]}..."


@click.command("vars")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def vars_(name: str, as_json: bool) -> None:
    """List the variables of session NAME."""
    history = fold(name)
    held = VarTable(history.lasting.of(history.held.values()))  # nothing is started for a look
    rows = api.open(name).vars if history.kernel else held
    if as_json:
        click.echo(json.dumps(jsonable(list(rows))))
    elif not rows:
        narrate("no variables; its kernel has ended" if history.kernels else "no variables yet")
    else:
        click.echo(fitted(repr(rows), columns()))


vars = vars_


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def files(name: str, as_json: bool) -> None:
    """List the files that cells of session NAME wrote."""
    found = artefacts.files(home.at().workdir(existing(name)))
    click.echo(json.dumps(found) if as_json else "\n".join(found), nl=bool(found) or as_json)


@click.command()
@click.argument("name")
@click.argument("file")
@click.argument("folder")
def save(name: str, file: str, folder: str) -> None:
    """Copy FILE out of session NAME into FOLDER (or to a path); links are refused."""
    click.echo(artefacts.save(home.at().workdir(existing(name)), file, folder))


@click.command()
@click.argument("name")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help=".ipynb or .py"
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
def export(name: str, output: Path, overwrite: bool) -> None:
    """Write the story of session NAME to a new file."""
    from cave.export import export as write

    journal = events(existing(name))
    click.echo(write(journal, output, name=name, read_blob=home.at().text, overwrite=overwrite))
