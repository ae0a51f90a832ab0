"""The command line: `cave VERB ...`. Every verb is a thin line to the Python API.

Data goes to stdout, narration to stderr; reading verbs take `--json`. Exit codes: 0 done,
1 failed, 2 usage, 3 waiting for approval, 4 over budget, 5 a decision is needed,
130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from typing import Any, ClassVar

import click

from cave.errors import CaveError, ConfigError, SessionNotFound

EXIT_CODES = {
    "done": 0,
    "failed": 1,
    "needs_attention": 5,
    "needs_approval": 3,
    "over_budget": 4,
    "needs_decision": 5,
    "interrupted": 130,
}
"""Exit code by the status of a turn."""


class _Verbs(click.Group):
    """Imports a verb's module when it is used, so that `cave --help` is quick."""

    modules: ClassVar[dict[str, str]] = {
        "ask": "work",
        "run": "work",
        "resume": "work",
        "recover": "decide",
        "approvals": "approve",
        "approve": "approve",
        "deny": "approve",
        "settle": "decide",
        "undo": "decide",
        "put": "work",
        "get": "work",
        "ls": "look",
        "show": "look",
        "log": "look",
        "vars": "look",
        "files": "look",
        "save": "look",
        "export": "look",
        "snapshot": "travel",
        "snapshots": "travel",
        "restore": "travel",
        "diff": "travel",
        "fork": "travel",
        "gc": "travel",
        "interrupt": "care",
        "close": "care",
        "rm": "care",
        "doctor": "care",
        "models": "care",
        "skills": "skills",
        "demo": "care",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = self.modules.get(name)
        if module is None:
            return None
        import importlib

        command: click.Command = getattr(importlib.import_module(f"cave.cli.{module}"), name)
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cave-runtime", prog_name="cave")
def cave() -> None:
    """A durable Python session that a language model operates."""


def narrate(text: str) -> None:
    """Tell the person at the terminal; stdout is for data."""
    click.echo(text, err=True)


def columns() -> int | None:
    """The width of the terminal that stdout is; None where it is none, and lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def counted(number: int, what: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def main(arguments: list[str] | None = None) -> Any:
    """The entry point of the `cave` command."""
    try:
        code = cave.main(args=arguments, prog_name="cave", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        narrate("interrupted")
        code = 130
    except (ConfigError, SessionNotFound) as error:
        narrate(f"cave: {error}")
        code = 2
    except CaveError as error:
        narrate(f"cave: {error}")
        code = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    with contextlib.suppress(ValueError):  # only the main thread may; from now on Ctrl-C just ends
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code if isinstance(code, int) else 0)
