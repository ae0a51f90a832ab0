"""kill -9 while snapshots are written: what was told is there, what is there is whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from cave import failpoints
from cave.errors import StoreError
from cave.snapshot import Snapshots
from tests._hosts import Program
from tests.snapshot._images import CHUNK, content, image, opened, read_back, same, write
from tests.snapshot.worker import worlds

WORKER = Path(__file__).with_name("worker.py")
POINTS = [
    point
    for point in failpoints.POINTS
    if point.startswith("snapshot.")
    and point
    in {
        "snapshot.before_write",
        "snapshot.mid_write",
        "snapshot.before_manifest",
        "snapshot.before_sync",
        "snapshot.after_sync",
        "snapshot.before_return",
        "snapshot.mid_retire",
    }
]
SWEEPS = int(os.environ.get("CAVE_CRASH_ROUNDS") or 20)
SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 30))


def told(process: Program) -> list[str]:
    """The snapshots that the process said are durable, but for lines that were read before."""
    return process.communicate(60)[0].split()


def check(folder: Path, seed: int, durable: list[str]) -> None:
    """The last that was told is there, perhaps one more; each that is there is whole."""
    expected = worlds(seed)
    order = [id for id, _ in expected]
    store = opened(folder)
    found = list(store.ids())
    if durable:
        assert durable[-1] in found
        assert set(durable[-3:]) <= set(found)
    later = [id for id in found if not durable or order.index(id) > order.index(durable[-1])]
    assert len(later) <= 1
    contents = dict(expected)
    for id in found:
        assert same(contents[id], read_back(store, id))
    assert store.verify(deep=True) == []


def goes_on(folder: Path) -> None:
    """A new owner writes, whole and on what is there; what was cut short goes away."""
    store = opened(folder)
    last = store.ids()[-1:]
    world = {"new": content("new", os.urandom(CHUNK * 9))}
    base = store.read(last[0]) if last else None
    made = store.write(image("000098-00000001", world), base=base, cell=98, at=0.0, variables=())
    next_world = {**world, "x": content("x")}
    two = write(store, "000099-00000001", next_world, (made, world))
    store.retire({two.id})
    assert same(next_world, read_back(opened(folder), two.id))
    assert {path.stem for path in folder.iterdir()} == {"retired", made.id, two.id}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hit", [1, 4])
def test_killed_at_each_point(folder: Path, forks: ForkServerContext, point: str, hit: int) -> None:
    """Killed anywhere in a write: the previous snapshot or the new one, never a mix."""
    seed = 4711 + hit
    process = Program(forks, WORKER, folder, seed, CAVE_FAILPOINTS=f"{point}=kill@{hit}")
    durable = told(process)
    assert process.returncode == -9
    check(folder, seed, durable)
    goes_on(folder)


def test_killed_at_random_moments(tmp_path: Path, forks: ForkServerContext) -> None:
    """Killed at any moment: what was told is there, and all that is there is whole."""
    chance = random.Random(SEED)
    print(f"CAVE_CRASH_SEED={SEED}")
    for turn in range(SWEEPS):
        folder = tmp_path / str(turn)
        seed = chance.randrange(1 << 30)
        process = Program(forks, WORKER, folder, seed)
        first = process.stdout.readline().split()
        time.sleep(chance.random() * 0.15)  # the moment is what is drawn, nothing is waited for
        process.kill()
        check(folder, seed, first + told(process))


def test_a_fork_that_is_killed_can_be_made_again(
    store: Snapshots, folder: Path, tmp_path: Path
) -> None:
    """A fork cut short leaves no snapshot, and the next try makes it whole."""
    world = {"df": content("df", os.urandom(CHUNK * 20)), "x": content("x")}
    one = write(store, "000001-00000001", world)
    changed = {**world, "x": content("x2")}
    two = write(store, "000002-00000002", changed, (one, world))
    target = tmp_path / "fork"
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.snapshot._images import opened\n"
        f"opened(Path({str(target)!r}), 'q4').link_from(opened(Path({str(folder)!r})), {two.id!r})"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=WORKER.parents[2],
        env={**os.environ, "CAVE_FAILPOINTS": "snapshot.mid_link=kill@2"},
        check=False,
        timeout=60,
    )
    assert process.returncode == -9
    assert list(opened(target, "q4").ids()) == []
    made = opened(target, "q4").link_from(store, two.id)
    assert same(changed, read_back(opened(target, "q4"), made.id))


@pytest.mark.parametrize("fault", ["enospc", "eio"])
@pytest.mark.parametrize(
    "point",
    ["before_write", "mid_write", "before_manifest", "before_sync", "after_sync"],
)
def test_a_fault_of_the_disk_leaves_nothing(
    store: Snapshots, folder: Path, point: str, fault: str
) -> None:
    """A full or broken disk is a StoreError; the file goes, the snapshots before it stay, and
    the same image can be written again."""
    world = {"df": content("df", os.urandom(CHUNK * 400)), "x": content("x")}
    one = write(store, "000001-00000001", {"x": content("x")})
    failpoints.arm(f"snapshot.{point}", fault)
    with pytest.raises(StoreError, match="full" if fault == "enospc" else "disk failed"):
        write(store, "000002-00000002", world)
    assert {path.name for path in folder.iterdir()} == {f"{one.id}.pack"}
    made = write(store, "000002-00000002", world)
    assert same(world, read_back(opened(folder), made.id))


def test_a_file_is_durable_before_its_name_and_the_caller(
    store: Snapshots, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All data is written, then the file is synced, then its folder; then it is told."""
    steps: list[str] = []
    kinds = {True: "folder", False: "file"}

    def fsync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        size = path.stat().st_size if path.is_file() else 0
        steps.append(f"{kinds[path.is_dir()]} {size}")

    write(store, "000001-00000001", {"x": content("x")})
    monkeypatch.setattr(os, "fsync", fsync)
    made = write(store, "000002-00000002", {"x": content("y")})
    assert steps == [f"file {made.written}", "folder 0"]


def test_a_failed_sync_beside_the_writing_is_told(
    store: Snapshots, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that the system tells of once, while data is still written, is not lost."""
    monkeypatch.setattr("cave.snapshot.folder.FLUSH", 1 << 20)

    def broken(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(StoreError, match="disk failed"):
        write(store, "000001-00000001", {"df": content("df", os.urandom(4 << 20))})
    assert list(folder.iterdir()) == []
