"""Verbs that care for skills: skills list, show, check, trust."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import click

from cave.cli import columns, counted, narrate
from cave.display.tables import fitted
from cave.errors import SkillError
from cave.skills import FolderSkill, ShadowWarning, Skill, discovery, trust
from cave.skills.folder import check as faults_of
from cave.skills.frontmatter import FILE
from cave.skills.loading import paths_in
from cave.skills.registry import Listed


@click.group()
def skills() -> None:
    """Show the skills that sessions can use here, check a folder of your own, trust a project."""


def _found() -> discovery.Discovery:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShadowWarning)  # --conflicts shows them all
        found = discovery.discover()
    for note in found.notes:
        narrate(note)
    return found


def _row(listed: Listed) -> dict[str, Any]:
    entry = listed.entry
    offers = [entry.name] if isinstance(entry, Skill) else list(entry.offers)
    return {
        "name": entry.name,
        "description": " ".join(entry.description.split()),
        "version": entry.version,
        "source": listed.source,
        "where": entry.where,
        "functions": offers,
    }


@skills.command("list")
@click.option("--conflicts", is_flag=True, help="Show only names that hide each other.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def skills_list(conflicts: bool, as_json: bool) -> None:
    """List the skills: name, source and description."""
    registry = _found().registry
    if conflicts:
        found = registry.conflicts()
        rows = [{"name": c.name, "used": c.used, "hidden": list(c.hidden)} for c in found]
        click.echo(json.dumps(rows)) if as_json else _lines(map(str, found))
        return
    rows = [_row(listed) for listed in registry.listed]
    if as_json:
        click.echo(json.dumps(rows))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    _lines(f"{row['name']:{width}}  {row['source']:<9}  {row['description']}" for row in rows)


def _lines(lines: Any) -> None:
    for line in lines:
        click.echo(fitted(line, columns()))


@skills.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def skills_show(name: str, as_json: bool) -> None:
    """Show what an operator reads of the skill NAME. Runs none of its scripts."""
    registry = _found().registry
    listed = {entry.entry.name: entry for entry in registry.listed}.get(name)
    if listed is None:
        _ = registry[name]  # raises with the nearest name
        raise SkillError(f"{name!r} is a function of a skill; show the skill")
    row, entry = _row(listed), listed.entry
    if isinstance(entry, FolderSkill):
        page = entry.page
        row |= {"license": page.license, "compatibility": page.compatibility}
        row |= {"allowed_tools": list(page.allowed_tools), "metadata": dict(page.metadata)}
        row |= {"files": list(entry.files), "body": entry.body}
    else:
        row |= {"signature": entry.signature, "body": entry.description}
    if as_json:
        click.echo(json.dumps(row))
        return
    for key in ("name", "description", "version", "source", "where", "license", "compatibility"):
        if row.get(key):
            click.echo(f"{key:<13}  {row[key]}")
    click.echo(f"{'functions':<13}  {', '.join(row['functions']) or 'none'}")
    if row.get("files"):
        click.echo(f"{'files':<13}  {', '.join(row['files'])}")
    click.echo(f"\n{row['body']}")


@skills.command("check")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def skills_check(ctx: click.Context, folder: str, as_json: bool) -> None:
    """Check the skill in DIR, or each skill below it. Runs the scripts; exits with 1 on faults."""
    path = Path(folder)
    folders = [path] if (path / FILE).is_file() else paths_in(path) or [path]
    faults = [fault for one in folders for fault in faults_of(one.absolute())]
    if as_json:
        keys = ("file", "field", "problem", "hint")
        click.echo(json.dumps([{key: str(getattr(f, key)) for key in keys} for f in faults]))
    else:
        for fault in faults:
            click.echo(str(fault))
    narrate(f"{counted(len(folders), 'skill')} checked: {counted(len(faults), 'fault')}")
    ctx.exit(1 if faults else 0)


@skills.command("trust")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
@click.option("--revoke", is_flag=True, help="Trust it no longer.")
def skills_trust(folder: str, revoke: bool) -> None:
    """Trust the project in DIR: it may bring skills, code and instructions that your sessions will
    use, and settings of its own; confined cells may read its files."""
    if revoke:
        narrate(f"{trust.distrust(folder)} is not trusted")
    else:
        narrate(
            f"{trust.trust(folder)} is trusted: kernels that start from now on can read it; "
            f"`cave skills list` shows its skills"
        )
