"""Random kills while snapshots are written: the previous namespace or the new one, never a mix.

The seed is printed; `CAVE_CRASH_SEED` sets it, `CAVE_CRASH_ROUNDS` the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import cave
from cave import cleaning, config, facade, failpoints
from cave.doctor import verify
from cave.events import SnapshotCommitted
from cave.portal import portal

from .conftest import Host, wait_until
from .test_deaths import kernels_of
from .test_sweep import SEED, kill

ROUNDS = int(os.environ.get("CAVE_CRASH_ROUNDS") or 5)

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


def test_a_kernel_without_a_host_leaves_what_its_last_cell_made(
    host: Callable[..., Host], home: Path, marker: Path
) -> None:
    """The host is killed in a cell, the cell ends, then the kernel is killed, too: what the
    cell made is there, from the image that the kernel left of itself."""
    worker = host(
        "import cave.home\ncave.home.LEFT_ALONE = 0.2\n"
        "s = cave.open('alone')\ns.run('x = [1]; y = x')\nprint('go')\n"
        f"s.run('''import time\\nopen({str(marker)!r}, 'w').close()\\ntime.sleep(0.5)\\n"
        "y.append(2)\\nz = 3''')\n"
    )
    worker.wait_for("go")
    wait_until(marker.exists)
    worker.kill()
    left = home / "sessions" / "alone" / "kernels" / "1" / "pending" / "image"
    wait_until(left.exists)
    kernel = next(p for p in kernels_of(home))
    kernel.kill()
    s = cave.open("alone", wait=60)
    assert s.run("print(x, y is x, z)").text.strip() == "[1, 2] True 3"
    assert not left.exists()
    report = s.last_restore
    assert report is not None
    assert report.cell == 2


POINTS = [name for name in failpoints.POINTS if name.startswith("snapshot.")]
WRITING = [name for name in POINTS if name not in {"snapshot.mid_link", "snapshot.mid_retire"}]


@pytest.mark.parametrize(
    ("point", "kernel_too"), [(point, at % 2 == 1) for at, point in enumerate(WRITING)]
)
def test_a_host_that_dies_while_a_snapshot_is_taken_costs_at_most_its_cell(
    host: Callable[..., Host], home: Path, unconfined: None, point: str, *, kernel_too: bool
) -> None:
    """kill -9 of the host at each moment between image and journal: with the kernel alive
    nothing is lost; without it the namespace is as before the cell (which nothing confines, so
    that it does not run again by itself), and that is said. The next snapshot is whole."""
    worker = host(
        "from cave import failpoints\ns = cave.open('between')\ns.run('x = [1]; y = x')\n"
        f"failpoints.arm({point!r}, 'kill')\ns.run('y.append(2); z = 1')\n"
    )
    assert worker.end() == -9
    if kernel_too:
        (kernel,) = kernels_of(home)
        kernel.kill()
    s = cave.open("between", wait=60)
    assert s.history[2].ok
    assert verify("between")[0].state == "ok"
    there = s.run("y.append(3); print(x, y is x, 'z' in globals())")
    assert there.durable
    report = s.last_restore
    if kernel_too:
        assert there.text.strip() == "[1, 3] True False"
        assert report is not None
        assert (report.undone, [e.name for e in report.lost]) == ((2,), ["z"])
        assert "without what came later: cell 2" in str(report)
    else:
        assert (there.text.strip(), report) == ("[1, 2, 3] True True", None)
    s.restart()
    assert s.run("print(x, y is x, 'z' in globals())").text == there.text


def test_a_stopped_host_cannot_commit_its_snapshot_later(host: Callable[..., Host]) -> None:
    """SIGSTOP while a snapshot is written, takeover by another process, SIGCONT: the late
    snapshot is in no journal, its file does no harm and goes with the next cleaning."""
    worker = host(
        "import cave.home\nfrom cave import failpoints\ncave.home.at().store.lease_ttl = 0.5\n"
        "s = cave.open('late')\ns.run('x = [1]; y = x')\n"
        "failpoints.arm('snapshot.mid_write', 'stop')\nprint('go')\n"
        "try:\n    s.run('y.append(2)')\nexcept cave.LeaseLost:\n    print('refused')\n"
    )
    worker.wait_for("go")
    wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
    s = cave.open("late", wait=30)
    assert s.run("x.append(3); print(x)").text.strip() == "[1, 2, 3]"
    worker.send(signal.SIGCONT)
    worker.wait_for("refused")
    assert worker.end() == 0
    known = {e.snapshot for e in s.events() if isinstance(e, SnapshotCommitted)}
    there = {path.stem for path in packs()}
    assert len(there - known) == 1
    s.restart()
    assert s.run("print(x, y is x)").text.strip() == "[1, 2, 3] True"
    portal().call(cleaning.collect(s._inner.home, now=True))
    assert not {path.stem for path in packs()} - {e.id for e in s.snapshots}
    assert verify("late")[0].state == "ok"


def packs() -> list[Path]:
    return list((config.home() / "sessions" / "late" / "snapshots").glob("*.pack"))


def test_what_was_deleted_goes_out_of_the_snapshot_at_once(home: Path) -> None:
    """`del` begins the snapshot without the name itself: it is not left to an idle moment, until
    which a dead kernel would bring the name back."""
    with cave.open("deleted") as s:
        s.run("x, y = 1, 2").raise_for_error()
        s.snapshot()
        del s["x"]
        lineage = s._inner._lineage
        assert lineage.under_way or not lineage.stale
        wait_until(lambda: not lineage.under_way)
        os.kill(s.kernel.pid or 0, signal.SIGKILL)
        assert s.run("'x' in globals(), y").text == "(False, 2)"
