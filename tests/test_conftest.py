"""The rule that nothing outlives a test is itself kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

LEAVES_ONE_BEHIND = """
import subprocess, sys
def test_it(home):
    code = "import time; time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
"""


def test_a_process_left_behind_fails_the_test(tmp_path: Path) -> None:
    """Whoever leaves a process under its home fails by name, and the process is ended."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_left.py").write_text(LEAVES_ONE_BEHIND)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    ran = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    named = re.search(r"processes outlived the test: (\d+) .*time\.sleep", ran.stdout)
    assert named, ran.stdout
    assert not psutil.pid_exists(int(named[1]))
