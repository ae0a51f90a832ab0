"""`jupyter console --existing` joins a session's kernel and sees the same objects."""

from __future__ import annotations

import os
import re
import sys

import pexpect
import pytest

import cave

pytestmark = pytest.mark.usefixtures("sessions")


def test_jupyter_console_joins_a_session() -> None:
    """After attach, a console works on the session's objects, and its cells are journaled."""
    s = cave.open("console")
    s.run("y = 41")
    command = s.attach().split()
    assert command[:3] == ["jupyter", "console", "--existing"]
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt", *command[2:]],
        encoding="utf-8",
        timeout=60,
        env={**os.environ, "TERM": "dumb", "NO_COLOR": "1"},
    )
    try:
        console.expect(re.escape("In ["))
        console.sendline("print('joined', y + 1); y = 100")
        console.expect("joined 42")
        console.expect(re.escape("In ["))
        console.sendline("exit")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
    assert s["y"] == 100
    assert any(c.origin == "foreign" and "joined 42" in c.text for c in s.history)
    assert s.run("'still here'").ok
