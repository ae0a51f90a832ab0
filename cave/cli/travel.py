"""Verbs of time: snapshot, snapshots, restore, diff, fork, gc."""

from __future__ import annotations

import json
import time
from typing import get_args

import click

import cave as api
from cave import facade, home
from cave.cleaning import collect
from cave.cli import counted, narrate
from cave.cli.look import existing, fold, jsonable
from cave.display.tables import size, table
from cave.events import ForkEffects
from cave.portal import portal
from cave.report import Diff


def _moment(text: str) -> int | str:
    """A moment as it is typed: a number is a cell's."""
    return int(text) if text.isdecimal() else text


@click.command()
@click.argument("name")
@click.argument("label", required=False, default="")
def snapshot(name: str, label: str) -> None:
    """Take a snapshot of session NAME now; LABEL names it, and it is always kept then."""
    taken = api.open(existing(name)).snapshot(label)
    narrate(f"{taken!r}, {size(taken.written)} new of {size(taken.size)}")


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def snapshots(name: str, as_json: bool) -> None:
    """List the snapshots of session NAME, oldest first."""
    rows = list(fold(name).lasting.snapshots.values())
    if as_json:
        click.echo(json.dumps(jsonable(rows)))
        return
    if not rows:
        narrate(f"session {name!r} has no snapshots yet")
        return
    fields = [
        (
            row.snapshot,
            str(row.cell),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at)),
            size(row.written),
            size(row.size),
            row.name or ("" if row.inside is None else f"(inside cell {row.inside.cell})"),
        )
        for row in rows
    ]
    click.echo(table(("id", "cell", "taken", "new", "holds", "name"), fields))


@click.command()
@click.argument("name")
@click.argument("at", metavar="CELL|'turn N'|NAME")
@click.option("--plan", is_flag=True, help="Only show what would change.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def restore(name: str, at: str, plan: bool, as_json: bool) -> None:
    """Bring session NAME back to an earlier moment: after a cell or turn, or a snapshot."""
    existing(name)
    if plan:
        inner = facade.reach(name)._inner  # noqa: SLF001 - looks only; no kernel is made
        _print_diff(portal().call(inner.outlook(_moment(at))), as_json=as_json)
        return
    report = api.open(name).restore(_moment(at))
    click.echo(json.dumps(jsonable(report)) if as_json else str(report))


@click.command()
@click.argument("name")
@click.argument("old")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def diff(name: str, old: str, new: str, as_json: bool) -> None:
    """Show which names changed in session NAME from one moment to another."""
    existing(name)
    found = facade.reach(name).diff(_moment(old), _moment(new))
    _print_diff(found, as_json=as_json)


def _print_diff(found: Diff, *, as_json: bool) -> None:
    click.echo(json.dumps(jsonable(found)) if as_json else str(found))


@click.command()
@click.argument("name")
@click.argument("new")
@click.option("--at", help="A moment, as `cave restore` takes it; now if not said.")
@click.option(
    "--effects",
    type=click.Choice(get_args(ForkEffects)),
    default="ask",
    help="Calls that touch the world: ask before one that NAME has made since, deny or allow all.",
)
def fork(name: str, new: str, at: str | None, effects: ForkEffects) -> None:
    """Make session NEW with the objects of session NAME, now or at an earlier moment."""
    existing(name)
    parent = facade.reach(name)
    session = parent.fork(new, None if at is None else _moment(at), effects=effects)
    narrate(f"{new!r} has {counted(len(session.vars), 'variable')} of {name!r}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option("--now", is_flag=True, help="Also what is younger than a day.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def gc(dry_run: bool, now: bool, as_json: bool) -> None:
    """Remove what no kept snapshot needs: old images, torn files, temporary files."""
    found = portal().call(collect(home.at(), dry_run=dry_run, now=now))
    if as_json:
        click.echo(json.dumps(jsonable(found)))
        return
    for name, freed in found.items():
        narrate(f"{name}: {size(freed)}")
    verb = "would free" if dry_run else "freed"
    click.echo(f"{verb} {size(sum(found.values()))}")
