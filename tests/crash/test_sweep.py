"""Random kills: whatever dies and whenever, what was acknowledged is there and is true.

The seed is printed; `CAVE_CRASH_SEED` sets it, `CAVE_CRASH_ROUNDS` the number of rounds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import cave
from cave.doctor import verify
from cave.events import KernelEnded, KernelStarted

from .conftest import Host
from .test_deaths import kernels_of

ROUNDS = int(os.environ.get("CAVE_CRASH_ROUNDS") or 4)
SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))

WORK = """
import json
acks = open({acks!r}, 'a', buffering=1)
s = cave.open('sweep', persistence='live')
if 'n' not in s:
    s.put(n=0)
print('go')
while True:
    cell = s.run('n += 1\\nprint(n)\\nimport time\\ntime.sleep(0.01)')
    acks.write(json.dumps([cell.n, cell.status, cell.text]) + '\\n')
"""


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_random_kills_lose_nothing_acknowledged(
    host: Callable[..., Host], home: Path, tmp_path: Path
) -> None:
    """Host, kernel or both killed at random: every acknowledged cell is in the history as it
    was told, the counter in a surviving kernel is the number of its finished cells, no cell
    ran twice, one kernel serves, and the chain is whole."""
    print(f"seed {SEED}, {ROUNDS} rounds")
    chance = random.Random(SEED)
    acks = tmp_path / "acks"
    for _ in range(ROUNDS):
        victim = chance.choice(["host", "kernel", "both"])
        worker = host(WORK.format(acks=str(acks)))
        worker.wait_for("go")
        time.sleep(chance.uniform(0.05, 1.0))
        kill("sweep", victim, worker, chance)
        check(home, acks)


def test_hosts_that_ended_leave_no_file_open(host: Callable[..., Host]) -> None:
    """A sweep of thousands of kills does not run out of files."""
    assert host("pass").end() == 0
    before = psutil.Process().num_fds()
    assert [host("pass").end() for _ in range(3)] == [0, 0, 0]
    assert psutil.Process().num_fds() == before


def kill(name: str, victim: str, worker: Host, chance: random.Random) -> None:
    """End the host, its kernel, or both in either order."""
    from cave.cli.look import events

    pid = [e.pid for e in events(name) if isinstance(e, KernelStarted)][-1]
    if victim == "host":
        worker.kill()
        return
    if victim == "both" and chance.random() < 0.5:
        worker.kill()
    os.kill(pid, signal.SIGKILL)
    time.sleep(chance.uniform(0, 0.5))
    if not worker.ended:
        worker.kill()


def check(home: Path, acks: Path) -> None:
    """What must hold after each round."""
    s = cave.open("sweep", persistence="live")
    s.run("pass").raise_for_error()
    for line in acks.read_text().splitlines():
        n, status, text = json.loads(line)
        assert (s.history[n].status, s.history[n].text) == (status, text)
    assert verify("sweep")[0].state == "ok"
    assert len(kernels_of(home)) == 1
    finished = count_since_kernel(s)
    assert s.get("n", 0) == finished
    from cave import facade
    from cave.portal import portal

    portal().call(facade.leave_all())


def count_since_kernel(s: cave.Session) -> int:
    """Counting cells that ended well since the counter was last put."""
    from cave.events import CellFinished, CellStarted, ValuesPut

    sources: dict[int, str] = {}
    count = 0
    for event in s.events():
        match event:
            case CellStarted():
                sources[event.cell] = event.source
            case CellFinished() if event.status == "ok" and "n += 1" in sources[event.cell]:
                count += 1
            case ValuesPut() | KernelEnded():
                count = 0
    return count
