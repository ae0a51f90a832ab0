"""IPython magics: `%cave NAME` binds a session, `%%ask [-o VAR]` asks its operator."""

from __future__ import annotations

import shlex
from typing import Any

from cave import facade
from cave.errors import ConfigError
from cave.facade import Session
from cave.turn import Turn

_bound: dict[str, Session] = {}


def register(shell: Any) -> None:
    """Define the magics in an IPython shell."""

    def cave(line: str) -> Session:
        """%cave NAME [--model SPEC] [--as VAR]: open a session and bind it (to `s`)."""
        words = shlex.split(line)
        model, words = _option(words, "--model")
        variable, words = _option(words, "--as")
        if len(words) != 1:
            raise ConfigError("type: %cave NAME [--model SPEC] [--as VAR]")
        session = facade.open(words[0], operator=model)
        _bound["session"] = session
        shell.push({variable or "s": session})
        return session

    def ask(line: str, cell: str) -> Turn:
        """%%ask [-o VAR]: ask the bound session; with -o bring VAR back into the notebook."""
        session = _bound.get("session")
        if session is None:
            raise ConfigError("no session is bound here; type: %cave NAME")
        returns, rest = _option(shlex.split(line), "-o")
        if rest:
            raise ConfigError("type: %%ask [-o VAR], and the request below it")
        turn = session.ask(cell.strip(), returns=returns)
        if returns is not None and turn.ok and not turn.reason:
            shell.push({returns: turn.value})
        return turn

    shell.register_magic_function(cave, "line", "cave")
    shell.register_magic_function(ask, "cell", "ask")


def _option(words: list[str], flag: str) -> tuple[str | None, list[str]]:
    if flag not in words:
        return None, words
    at = words.index(flag)
    if at + 1 >= len(words):
        raise ConfigError(f"{flag} needs a value")
    return words[at + 1], words[:at] + words[at + 2 :]
