"""Verbs by which people give leave: approvals, approve, deny."""

from __future__ import annotations

import json
from typing import Any

import click

import cave as api
from cave import facade
from cave.approval import Approval
from cave.cli import narrate
from cave.cli.look import existing, jsonable
from cave.display.waiting import NOTHING, lines
from cave.errors import ConfigError


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def approvals(name: str | None, as_json: bool) -> None:
    """List what waits to be approved, in session NAME or in all."""
    waiting = api.approvals() if name is None else facade.reach(existing(name)).approvals
    if as_json:
        click.echo(json.dumps([jsonable(asked) for asked in waiting]))
        return
    for asked in waiting:
        click.echo("\n".join(lines(asked, terminal=True)))
    if not waiting:
        narrate(NOTHING)


@click.command()
@click.argument("approval", metavar="ID", required=False)
@click.option("--edit", "edits", multiple=True, metavar="NAME=JSON", help="Take this argument.")
@click.option("--session", "whole", is_flag=True, help="For all later calls of the kind, too.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def approve(approval: str | None, edits: tuple[str, ...], whole: bool, as_json: bool) -> None:
    """Say yes to what waits under ID (`a3`, or `NAME/a3`); without ID, to the only one."""
    asked = _found(approval)
    taken = dict(map(_edit, edits))
    answer = facade.reach(asked.session).approve(
        asked.id, edits=taken or None, scope="session" if whole else "once", via="terminal"
    )
    _told(answer, asked, as_json=as_json)


@click.command()
@click.argument("approval", metavar="ID", required=False)
@click.option("--reason", default="", help="What the operator is told.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def deny(approval: str | None, reason: str, as_json: bool) -> None:
    """Say no to what waits under ID (`a3`, or `NAME/a3`); without ID, to the only one."""
    asked = _found(approval)
    answer = facade.reach(asked.session).deny(asked.id, reason=reason, via="terminal")
    _told(answer, asked, as_json=as_json)


def _told(answer: Approval, asked: Approval, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(jsonable(answer)))
    where = f"{asked.session}/{asked.id}"
    narrate(
        f"{answer.state}: {where} {asked.what}; a process that has the session open goes on by "
        f"itself, else type `cave resume {asked.session}`"
    )


def _found(approval: str | None) -> Approval:
    """The one that is meant. Raises `ConfigError` naming those that wait."""
    waiting = api.approvals()
    name, _, id = (approval or "").rpartition("/")
    found = [a for a in waiting if id in {"", a.id} and name in {"", a.session}]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{a.session}/{a.id}" for a in waiting) or "none"
    if approval is None:
        raise ConfigError(f"say which: cave approve NAME/ID; waiting are {there}")
    what = "waits in several sessions" if found else "does not wait for an answer"
    raise ConfigError(f"approval {approval!r} {what}; waiting are {there}")


def _edit(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"--edit {text!r} is not NAME=JSON; type for example --edit amount=10")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise ConfigError(
            f"--edit {text!r}: {value!r} is not JSON ({error}); a text wants quotes: "
            f"--edit '{name}=\"...\"'"
        ) from error
