"""Verbs that act on a session: ask, run, resume, put, get."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import cave as api
from cave import data
from cave.cli import EXIT_CODES, narrate
from cave.cli.look import existing, jsonable
from cave.display.safe import visible
from cave.errors import OperatorError
from cave.turn import Cell, Turn


def _finish(result: Turn | Cell | None, *, as_json: bool = False) -> int:
    """Print what came out; the exit code."""
    match result:
        case Turn():
            if as_json:
                click.echo(json.dumps(jsonable(result)))
            elif result.answer:
                click.echo(result.answer)
            return 1 if result.ok and result.reason else EXIT_CODES[result.status]
        case Cell():
            if as_json:
                click.echo(json.dumps(jsonable(result)))
            elif result.text:
                click.echo(result.text)
            if result.error and result.error.traceback and not as_json:
                narrate(visible(result.error.traceback))
            if result.error and result.error.hint and not as_json:
                narrate(visible(result.error.hint))
            if result.error is not None and result.error.name == "ApprovalRequired":
                return 3
            return 0 if result.ok else 130 if result.status == "interrupted" else 1
        case _:
            narrate("nothing waits in this session")
            return 0


def _limits(what: str) -> Callable[[Any], Any]:
    """Options of a budget; the verb has them as one argument, `budget`."""
    options = (
        click.option("--steps", type=int, help=f"Most calls of the model in {what}."),
        click.option("--tokens", type=int, help=f"Most tokens in {what}."),
        click.option("--usd", type=float, help=f"Most US dollars in {what}."),
        click.option("--seconds", type=float, help=f"Most seconds of work in {what}."),
    )

    def decorate(verb: Callable[..., Any]) -> Any:
        @functools.wraps(verb)
        def limited(*args: Any, **given: Any) -> Any:
            limits = {name: given.pop(name) for name in ("steps", "tokens", "usd", "seconds")}
            known = {name: value for name, value in limits.items() if value is not None}
            return verb(*args, budget=api.Budget(**known) if known else None, **given)

        made: Any = limited
        for option in reversed(options):
            made = option(made)
        return made

    return decorate


@click.command()
@click.argument("name")
@click.argument("prompt", required=False)
@click.option(
    "--data", "files", multiple=True, metavar="FILE|VAR=FILE", help="Put a file in first."
)
@click.option("--model", help="As in `cave models`: anthropic, openai:MODEL@URL, llama:FILE, ...")
@_limits("this turn")
@click.option("--returns", metavar="VAR", help="Print this variable after the answer.")
@click.option("--wait", type=float, help="Seconds to wait while another process works.")
@click.option("--json", "as_json", is_flag=True, help="Print the turn as JSON.")
@click.pass_context
def ask(
    ctx: click.Context,
    name: str,
    prompt: str | None,
    files: tuple[str, ...],
    model: str | None,
    budget: api.Budget | None,
    returns: str | None,
    wait: float | None,
    as_json: bool,
) -> None:
    """Let the model work on PROMPT in session NAME; without PROMPT, a prompt loop."""
    session = api.open(name, operator=model, wait=wait)
    session.narration = sys.stderr
    if files:
        narrate(f"put {', '.join(data.load_into(session, files))}")
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise click.UsageError("give a PROMPT, pipe one in, or run it in a terminal")
    if prompt is None:
        _loop(session, budget)
        return
    turn = session.ask(prompt, budget=budget, returns=returns)
    code = _finish(turn, as_json=as_json)
    if returns and turn.ok and not turn.reason and not as_json:
        click.echo(str(turn.value))
    ctx.exit(code)


def _loop(session: api.Session, budget: api.Budget | None) -> None:
    narrate(f"session {session.name!r}; an empty line or Ctrl-D ends")
    while True:
        try:
            prompt = input("> ").strip()
        except EOFError:
            return
        if not prompt:
            return
        try:
            _finish(session.ask(prompt, budget=budget))
        except OperatorError as error:
            narrate(f"cave: {error}")


@click.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--timeout", type=float, help="Seconds until the cell is stopped.")
@click.option("--wait", type=float, help="Seconds to wait while another process works.")
@click.option("--json", "as_json", is_flag=True, help="Print the cell as JSON.")
@click.pass_context
def run(
    ctx: click.Context,
    name: str,
    file: Path,
    timeout: float | None,
    wait: float | None,
    as_json: bool,
) -> None:
    """Run FILE (or - for stdin) as one cell in session NAME."""
    if str(file) == "-":
        source = sys.stdin.read()
    elif file.is_file():
        try:
            source = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise api.ConfigError(f"{str(file)!r} is not a Python file: {error}") from error
    else:
        raise api.ConfigError(
            f"no file {str(file)!r}; for code itself, type: echo 'CODE' | cave run {name} -"
        )
    session = api.open(name, wait=wait)
    ctx.exit(_finish(session.run(source, timeout=timeout), as_json=as_json))


@click.command()
@click.argument("name")
@click.option("--model", help="The model to go on with.")
@_limits("the whole turn")
@click.option("--json", "as_json", is_flag=True, help="Print the turn or cell as JSON.")
@click.pass_context
def resume(
    ctx: click.Context, name: str, model: str | None, budget: api.Budget | None, as_json: bool
) -> None:
    """Go on with what was cut or waits in session NAME: cells, as `cave recover --plan` tells,
    and a turn."""
    session = api.open(existing(name), operator=model)
    session.narration = sys.stderr
    ctx.exit(_finish(session.resume(budget=budget), as_json=as_json))


@click.command()
@click.argument("name")
@click.argument("items", nargs=-1, required=True, metavar="FILE|VAR=FILE...")
def put(name: str, items: tuple[str, ...]) -> None:
    """Put data files (csv, tsv, parquet, json, xlsx, sqlite) into session NAME.

    xlsx becomes a dict with a frame for each sheet, sqlite an open connection to a copy.
    Without VAR= the file's name is the variable's.
    """
    data.assignments(items)
    narrate(f"put {', '.join(data.load_into(api.open(name), items))}")


@click.command()
@click.argument("name")
@click.argument("variable")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it to this file.")
@click.option("--allow-pickle", is_flag=True, help="Unpickle it here: only if you trust it.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def get(name: str, variable: str, output: Path | None, allow_pickle: bool, as_json: bool) -> None:
    """Take VARIABLE out of session NAME, to stdout or to a file by its suffix."""
    value: Any = api.open(existing(name)).get(variable, allow_pickle=allow_pickle)
    if output is not None:
        data.write(value, output)
        narrate(f"wrote {output}")
    elif as_json:
        click.echo(json.dumps(jsonable(value)))
    else:
        click.echo(str(value))
