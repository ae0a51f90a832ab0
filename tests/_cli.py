"""`cave VERB ...` for the tests: in this process as in a new one, and in a new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from typing import Any

import pexpect.fdpexpect
from click.testing import CliRunner, Result

from cave import cli, facade
from cave.portal import portal

from ._hosts import Host

PROGRAM = [sys.executable, "-c", "from cave.cli import main; main()"]


class _Main:
    """The entry point of the command, as click's runner wants it."""

    name = "cave"

    def main(self, args: Any = (), **_: Any) -> None:
        cli.main(list(args))


def cave(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    """Run `cave ARGUMENTS` here: whoever ran before has let go of everything, as a process that
    ended. Fails when the exit code is another."""
    portal().call(facade.leave_all())
    handler = signal.getsignal(signal.SIGINT)
    try:
        done = CliRunner().invoke(_Main(), arguments, input=stdin, catch_exceptions=False)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGINT, handler)
        portal().call(facade.leave_all())
    assert done.exit_code == code, f"{arguments}: {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done


def program(*arguments: str) -> str:
    """What a forked process runs to be `cave ARGUMENTS`."""
    return f"from cave.cli import main; main({[*arguments]!r})"


@contextlib.contextmanager
def at_terminal(
    forks: ForkServerContext, script: str, *, size: tuple[int, int] = (24, 80), **environment: str
) -> Iterator[tuple[Host, Any]]:
    """A process that runs `script` at a terminal of its own, and pexpect's view of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    at = f"from tests import _forked; _forked.at_terminal({os.ttyname(theirs)!r})\n"
    process = Host(forks, at + script, **environment)
    terminal = pexpect.fdpexpect.fdspawn(ours, encoding="utf-8", timeout=100)
    try:
        process.wait_for("at a terminal")
        os.close(theirs)
        yield process, terminal
    finally:
        if not process.ended:
            process.send(signal.SIGKILL)
        process.end()
        terminal.close()


def apart(
    *arguments: str, code: int = 0, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `cave ARGUMENTS` in a process of its own. Fails when the exit code is another."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
