"""A session that goes on and on: what its snapshots take stays bounded."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import cave

from ._kill import kill

# as in test_damage
pytestmark = [pytest.mark.usefixtures("sessions", "unconfined"), pytest.mark.timeout(1200)]

CELLS = 1000 if os.environ.get("CAVE_CRASH_ROUNDS") else 200
"""Cells that run; scripts/crash runs 1,000."""
WARM = 60
"""Cells after which everything has been used that ever is."""
MB = 1 << 20

START = """
import numpy as np, pandas as pd
f = pd.DataFrame(np.random.default_rng(1).random((25_000, 10)))
words = pd.Series([f'word {i % 50}' if i % 3 else i for i in range(5_000)], dtype=object)
grown, names = [], {}
class Point:
    def __init__(self, x): self.x = x
"""
KINDS = (
    "x = {n}",
    "v{m} = [{n}, Point({n})]",
    "f.iloc[{n} * 37 % 25_000, {n} % 10] = {n}.5",
    "grown.append(Point({n}))",
    "def g{m}(x): return x + {n}",
    "names['k{m}'] = 'text {n}' * 20",
    "f['extra'] = f[0] + {n}",
    "words[{n} % 5_000] = 'new {n}'",
    "v{m} = None; del v{m}",
    "len(grown) + {n}",
    "print(f.shape, {n})",
    "a{m} = np.arange(20_000) + {n}",
)


def cell(n: int) -> str:
    return KINDS[n % len(KINDS)].format(n=n, m=n // len(KINDS) % 12)


def resident(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sizes(s: cave.Session) -> tuple[int, int]:
    """Resident bytes of the host and of the kernel."""
    gc.collect()
    assert s.kernel.pid is not None
    return resident("self"), resident(s.kernel.pid)


def test_many_cells_leave_few_files_and_little_memory(home: Path) -> None:
    """After hundreds of cells the host, the kernel, the number of files and their bytes are
    within bounds that the number of cells has no part in, and everything still comes back."""
    s = cave.open("bounded")
    s.run(START)
    for n in range(WARM):
        assert s.run(cell(n)).error is None
    before = sizes(s)
    for n in range(WARM, CELLS):
        assert s.run(cell(n)).error is None
    after = sizes(s)
    files = list((home / "sessions" / "bounded" / "snapshots").iterdir())
    taken = sum(file.stat().st_size for file in files)
    assert after[0] - before[0] < 60 * MB
    assert after[1] - before[1] < 60 * MB
    assert len(files) < min(450, 0.9 * CELLS)
    assert taken < 20 * s.snapshots[-1].size + 64 * MB
    told = s.run(
        "print(len(grown), sum(p.x for p in grown), f[1].sum(), words.astype(str).sum()[:9])"
    )
    kill(s)
    again = s.run(
        "print(len(grown), sum(p.x for p in grown), f[1].sum(), words.astype(str).sum()[:9])"
    )
    assert again.text == told.text


def test_many_variables_are_no_reason_to_write_them_all() -> None:
    """The helper that ZMQ starts for large messages is no thread of the user's, beside which
    everything would count as touched."""
    s = cave.open("many")
    s.run("for i in range(800): globals()[f'variable_{i}'] = {'name': [i]}")
    s.run("variable_7 = {'name': ['new']}")
    told = s.run(
        "import sys, threading\n"
        "print([type(t).__name__ for t in threading.enumerate()].count('GarbageCollectorThread'),"
        " sys.modules['_cave_kernel.threads'].of_user())"
    )
    assert told.text == "1 []"
