"""Verbs that look after sessions and the machine: interrupt, close, rm, doctor, models, demo."""

from __future__ import annotations

import json
import os
import sys

import click

import cave as api
from cave import facade
from cave.cli import narrate
from cave.cli.look import existing, jsonable


@click.command()
@click.argument("name")
@click.option("--kill", is_flag=True, help="Kill the kernel when SIGINT has no effect in 10 s.")
@click.pass_context
def interrupt(ctx: click.Context, name: str, kill: bool) -> None:
    """Stop what runs in session NAME, whichever process operates it."""
    came = facade.reach(name).interrupt(kill=kill)
    narrate(came.message)
    ctx.exit(0 if came else 1)


@click.command()
@click.argument("name")
@click.option("--discard", is_flag=True, help="Also when there is no room for what it holds.")
def close(name: str, discard: bool) -> None:
    """Take a snapshot of session NAME and end its kernel. Says what is lost, if anything."""
    facade.reach(name).close(discard=discard)
    narrate(f"closed {name!r}")


@click.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Delete session NAME: its kernel, journal and files."""
    existing(name)
    if not yes:
        click.confirm(f"delete session {name!r} with its journal and files?", abort=True, err=True)
    api.delete(name)
    narrate(f"deleted {name!r}")


@click.command()
@click.option("--verify", metavar="NAME", help="Check the hash chain of this session's journal.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def doctor(ctx: click.Context, verify: str | None, as_json: bool) -> None:
    """Check this machine: home, store, kernel, models; or the journal of one session."""
    from cave import doctor as checks

    findings = checks.verify(verify) if verify else checks.examine()
    if as_json:
        click.echo(json.dumps(jsonable(findings)))
    else:
        width = max(len(f.what) for f in findings)
        for found in findings:
            click.echo(f"{found.state:<8} {found.what:<{width}}  {found.detail}")
    ctx.exit(0 if all(f.state != "FAILED" for f in findings) else 1)


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """Show the operators that can be used here; `pull` and `ls` care for local models."""
    if ctx.invoked_subcommand is not None:
        return
    from cave.operators.models import known

    rows = known()
    if as_json:
        click.echo(json.dumps(jsonable(rows)))
        return
    for row in rows:
        click.echo(f"{'ready' if row.ready else 'missing':<8} {row.spec:<36} {row.detail}")


@models.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def models_ls(as_json: bool) -> None:
    """List the local model files in the home folder."""
    from cave.operators.models import local_files

    files = [str(path) for path in local_files()]
    if as_json:
        click.echo(json.dumps(files))
    elif files:
        click.echo("\n".join(files))
    else:
        narrate("no local models; fetch one with: cave models pull")


@models.command("pull")
def models_pull() -> None:
    """Fetch a small coder model from its official place, for use without a key."""
    from cave.operators import models as local

    with click.progressbar(range(100), label="model", file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(int(100 * done / max(total, 1)) - bar.pos)

        path = local.pull(progress=progress)
    click.echo(path)


@click.command()
@click.option("--model", help="Let this model work (a key alone never spends money).")
@click.option("--keep", is_flag=True, help="Keep the session afterwards.")
@click.pass_context
def demo(ctx: click.Context, model: str | None, keep: bool) -> None:
    """Tell the story of a session on real data: turns, a join, a repair, a database."""
    from cave.demo import story

    ctx.exit(story.tell(model=model or os.environ.get("CAVE_MODEL") or None, keep=keep))
