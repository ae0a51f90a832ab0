"""What runs in a process that is forked off one which has imported cave already."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import sys
import threading
import traceback
from multiprocessing.connection import Connection

IMPORTED = (
    "cave.broker", "cave.cli.work", "cave.facade", "cave.records", "cave.operators.scripted",
    "cave.store.journal",
    "fsspec", "pydantic.dataclasses", "sqlalchemy.dialects.sqlite", "sqlite3",
)  # fmt: skip
"""What the process that hosts are forked off imports: nothing that starts a thread."""


def run(
    script: str,
    environment: dict[str, str],
    folder: str,
    out: Connection,
    given: Connection | None = None,
) -> None:
    """Run a script as a program of its own would: its output to `out`, its end the process's."""
    if given is not None:
        os.dup2(given.fileno(), 0)
        given.close()
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for fd in (1, 2):
        os.dup2(out.fileno(), fd)
    out.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    random.seed()
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    try:
        exec(compile(script, "<host>", "exec"), {"__name__": "__main__"})
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def at_terminal(path: str) -> None:
    """From now on this process is alone at a terminal, which is its input and its output."""
    os.setsid()
    terminal = os.open(path, os.O_RDWR)
    print("at a terminal")
    for fd in (0, 1, 2):
        os.dup2(terminal, fd)
    os.close(terminal)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)


def _end_with_the_tests() -> None:
    """Nobody is left who would kill this host: it ends."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os._exit(1)
