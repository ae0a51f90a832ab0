"""Random kills while snapshots are written: the previous namespace or the new one, never a mix.

The seed is printed; `CAVE_CRASH_SEED` sets it, `CAVE_CRASH_ROUNDS` the number of kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cave
from cave import facade
from cave.portal import portal

from .conftest import Host
from .test_sweep import SEED, kill

ROUNDS = int(os.environ.get("CAVE_CRASH_ROUNDS") or 20)

WORK = """
acks = open({acks!r}, 'a', buffering=1)
s = cave.open('saved')
if 'n' not in s:
    s.run('import numpy as np\\nn = 0\\nitems = []\\nview = items\\n'
          'big = np.zeros(300_000)\\ntail = big[-1000:]')
print('go')
while True:
    cell = s.run('n += 1\\nview.append(n)\\nbig[n % 300_000] = n\\ntail[n % 1000] = n\\nprint(n)')
    if cell.ok and cell.durable:
        acks.write(cell.text.strip() + '\\n')
"""

CHECK = """
want = np.zeros(300_000)
for i in range(1, n + 1):
    want[i % 300_000] = i
    want[-1000:][i % 1000] = i
print(items == list(range(1, n + 1)), view is items, (big == want).all(),
      np.shares_memory(big, tail), n)
del want, i
"""


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_a_kill_at_any_moment_leaves_one_whole_namespace(
    host: Callable[..., Host], tmp_path: Path
) -> None:
    """Host, kernel or both killed at random while snapshots are written: what comes back is
    the namespace after one cell, no older than the last one called durable, with its sharing;
    nothing is lost or changed."""
    print(f"seed {SEED}, {ROUNDS} kills")
    chance = random.Random(SEED)
    acks = tmp_path / "acks"
    for _ in range(ROUNDS):
        worker = host(WORK.format(acks=str(acks)))
        worker.wait_for("go")
        time.sleep(chance.uniform(0.02, 0.6))
        kill("saved", chance.choice(["host", "kernel", "both"]), worker, chance)
        check(acks)


def check(acks: Path) -> None:
    acked = [int(line) for line in acks.read_text().split("\n")[:-1]]
    s = cave.open("saved", wait=60)
    told = s.run(CHECK)
    *true, n = told.text.split()
    assert true == ["True"] * 4, told.text
    assert int(n) >= max(acked, default=0)
    report = s.last_restore
    assert report is None or not (report.lost or report.changed or report.rebuilt)
    portal().call(facade.leave_all())
