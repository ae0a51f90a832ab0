"""`cave demo`: a session on real data, told on stdout as it happens."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import textwrap
from typing import Any

import click

import cave
from cave import demo
from cave.cli import columns
from cave.demo.script import REQUESTS, Request, operator
from cave.display.safe import visible
from cave.display.tables import fitted
from cave.turn import Turn

WIDTH = 88
"""Characters of a line of prose, where the terminal has so many."""
HALF_WAY = 3
"""Turns before the kernel is killed; the last one needs what they left."""
STEPS = 10
"""Most steps of a turn: a small model that repeats itself ends, and the story goes on."""


def tell(*, model: str | None = None, keep: bool = False) -> int:
    """Tell the story with a model, or without one with the scripted operator; the exit code."""
    name = f"demo-{secrets.token_hex(2)}"
    _introduce(name, model)
    session = cave.open(name, operator=model or operator())
    session.narration = sys.stdout  # the cells are told as they run: a model may take minutes
    failed = 0
    try:
        _say(f"A kernel is up (pid {session.kernel.pid}). Three frames go in:")
        session.put(**{t: demo.load(t) for t in ("flights", "airlines", "planes")})
        _table(repr(session.vars))
        for at, request in enumerate(REQUESTS):
            if at == HALF_WAY:
                _kill_the_kernel(session)
            turn = _tell_turn(session, request)
            if turn.status == "interrupted":
                raise KeyboardInterrupt
            failed += not _kept(session, request, turn)
        _take_back(session)
    finally:
        if not keep:
            cave.delete(name)
    click.echo()
    _say(f'Kept: go on with `cave ask {name} "..."`.' if keep else f"Session {name} is deleted.")
    return 1 if failed else 0


def _introduce(name: str, model: str | None) -> None:
    _title(f"cave demo: session {name}")
    if model:
        _say(f"{model} is the operator: it decides every cell below.")
        return
    _say(
        "No model is named, so a scripted operator plays cells that were written beforehand; "
        "the kernel, the data and the journal are real. For a real model: cave demo --model "
        "llama:/path/to/model.gguf, or anthropic, or openai:MODEL@http://localhost:11434/v1."
    )
    if os.environ.get("ANTHROPIC_API_KEY"):
        _say("A key is set; `cave demo --model anthropic` would use it, and cost money.")


def _say(text: str) -> None:
    click.echo(textwrap.fill(text, min(WIDTH, columns() or WIDTH)))


def _table(text: str) -> None:
    click.echo(fitted(textwrap.indent(text, "    "), columns()))


def _title(text: str) -> None:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    click.secho(text, bold=True, color=False if plain else None)


def _tell_turn(session: cave.Session, request: Request) -> Turn:
    click.echo()
    width = min(WIDTH, columns() or WIDTH)
    _title(textwrap.fill(f"> {request.prompt}", width, subsequent_indent="  "))
    turn = session.ask(request.prompt, budget=cave.Budget(steps=STEPS))
    if turn.status == "done":
        click.echo(textwrap.indent(visible(turn.answer.strip()), "  "))
    return turn


def _kill_the_kernel(session: cave.Session) -> None:
    """SIGKILL, as a machine short of memory would; the next call goes on with the objects."""
    click.echo()
    pid = session.kernel.pid
    if pid is None:
        return
    _title(f"Now kernel {pid} is killed (SIGKILL). The session goes on:")
    os.kill(pid, signal.SIGKILL)
    count = len(session.vars)
    _say(f"Kernel {session.kernel.pid} serves the session now, with {count} variables.")


def _kept(session: cave.Session, request: Request, turn: Turn) -> bool:
    """Whether the turn did what was asked."""
    if turn.status != "done":
        return False
    if request.returns is not None and request.returns not in session:
        _say(f"  The operator made no variable {request.returns!r}.")
        return False
    return True


def _take_back(session: cave.Session) -> None:
    click.echo()
    _title("What is in the session now, and what comes back to this process:")
    _table(repr(session.vars))
    try:
        late: Any = session.get("late", None)
    except cave.CaveError as error:  # a model may have made anything of that name
        late = None
        _say(f"  {error}")
    if late is not None:
        click.echo(f"\n    late = session['late']   # a {type(late).__name__} here")
        _table(str(late.head(5) if hasattr(late, "head") else late))
    usage = session.usage
    estimate = ", estimated" if usage.estimated else ""
    click.echo()
    _say(
        f"{len(session.turns)} turns, {len(session.history)} cells, {usage.model_calls} operator "
        f"calls, {usage.input_tokens + usage.cache_read_tokens:,} prompt tokens{estimate}; "
        f"{len(session.events())} events in the journal."
    )
