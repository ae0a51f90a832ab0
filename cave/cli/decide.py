"""Verbs by which people decide: recover what a death has cut, settle what is in doubt."""

from __future__ import annotations

import json
import time
from typing import Any, get_args

import click

import cave as api
from cave import facade
from cave.cli import narrate
from cave.cli.look import existing, fold, jsonable
from cave.display.doubts import decisions
from cave.errors import ConfigError
from cave.events import Decision


@click.command()
@click.argument("name")
@click.option("--plan", is_flag=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def recover(ctx: click.Context, name: str, plan: bool, as_json: bool) -> None:
    """Run the cells of session NAME again that a death has cut, or that stopped at what is
    settled now, as --plan says. `cave resume` does the same, and goes on with a turn."""
    session = facade.reach(existing(name))
    wanted = session.plan()
    if as_json and plan:
        click.echo(json.dumps(jsonable(wanted)))
    elif not as_json:
        click.echo(str(wanted))
    if plan:
        return
    done = session.recover()
    if as_json:
        click.echo(json.dumps(jsonable(done)))
    for n in done.cells:
        cell = session.history[n]
        narrate(f"cell {n} ran again: {cell.status}{f', {cell.error}' if cell.error else ''}")
    for n, why in done.left:
        narrate(f"cell {n} was left: {why}")
    for note in done.notes:
        narrate(f"{note.kind}: {note.name} ({note.type}): {note.reason}")
    ctx.exit(5 if done.left or session.in_doubt else 0)


@click.command()
@click.argument("effect", required=False)
@click.argument("decision", type=click.Choice(get_args(Decision)), required=False)
@click.option("--result", help="What the call gave, as JSON: goes with `done`.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def settle(effect: str | None, decision: Any, result: str | None, as_json: bool) -> None:
    """Say what became of EFFECT (`e3`, or `NAME/e3`); without it, list what is in doubt.

    `done`: it was, with --result; `not_done`: it is called when its cell goes on; `give_up`: it
    never is.
    """
    waiting = _waiting()
    if effect is None:
        _list(waiting, as_json=as_json)
        return
    if decision is None:
        raise click.UsageError("say what became of it: done, not_done or give_up")
    name, id = _found(effect, waiting)
    value = None if result is None else _parsed(result)
    settled = facade.reach(name).settle(id, decision, result=value)
    if as_json:
        click.echo(json.dumps(jsonable(settled)))
    narrate(f"{settled!r} in session {name!r}; go on with `cave resume {name}`")


@click.command()
@click.argument("effect", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def undo(effect: str | None, as_json: bool) -> None:
    """Call what compensates EFFECT (`e3`, or `NAME/e3`); without it, list what stands although
    the namespace of its session went back.

    The skill of the effect must be one that is discovered in this folder.
    """
    standing = _standing()
    if effect is None:
        if as_json:
            click.echo(json.dumps([{"session": name, **jsonable(s)} for name, s in standing]))
            return
        for name, s in standing:
            how = f"cave undo {name}/{s.effect}" if s.undo else "its skill has no undo="
            click.echo(f"{name}/{s.effect}  {s.call}  cell {s.cell}  {how}")
        if not standing:
            narrate("no effect stands beside the namespace of its session")
        return
    session, _, id = effect.rpartition("/")
    names = [session] if session else [name for name, s in standing if s.effect == id]
    if len(names) != 1:
        raise ConfigError(f"say of which session: NAME/{id}; {', '.join(names) or 'none'} has it")
    undone = facade.reach(existing(names[0])).undo(id)
    if as_json:
        click.echo(json.dumps(jsonable(undone)))
    narrate(f"{undone!r} in session {names[0]!r}")


def _standing() -> list[tuple[str, Any]]:
    """What stands beside the namespaces of sessions that went back, each with its session."""
    return [(info.name, s) for info in api.sessions() for s in fold(info.name).ledger.beside]


def _waiting() -> list[tuple[str, Any]]:
    """Effects in doubt, each with its session."""
    return [
        (info.name, entry) for info in api.sessions() for entry in fold(info.name).ledger.in_doubt()
    ]


def _list(waiting: list[tuple[str, Any]], *, as_json: bool) -> None:
    if as_json:
        rows = [{"session": name, **jsonable(entry.intent)} for name, entry in waiting]
        click.echo(json.dumps(rows))
        return
    if not waiting:
        narrate("no effect is in doubt")
    for name, entry in waiting:
        click.echo(f"{name}/{entry.id}  {entry.said}  {entry.reason}")
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.first.at))
        click.echo(f"    {at}, {entry.where}, key {entry.intent.key}")
        for decision, means in decisions(repeats=entry.first.repeats, undoes=entry.first.undoes):
            click.echo(f"    cave settle {name}/{entry.id} {decision:<8}  # {means}")


def _found(effect: str, waiting: list[tuple[str, Any]]) -> tuple[str, str]:
    session, _, id = effect.rpartition("/")
    found = [name for name, entry in waiting if entry.id == id and session in {"", name}]
    if len(found) == 1:
        return found[0], id
    there = ", ".join(f"{name}/{entry.id}" for name, entry in waiting) or "none"
    what = "is in doubt in several sessions" if found else "is not in doubt"
    raise ConfigError(f"effect {effect!r} {what}; in doubt: {there}")


def _parsed(result: str) -> Any:
    try:
        return json.loads(result)
    except ValueError as error:
        raise ConfigError(f"--result {result!r} is not JSON: {error}") from error
