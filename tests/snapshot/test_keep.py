"""What is kept and what goes: retiring, holes, few files, forks, the rule, key and reserve."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cave.errors import SnapshotCorrupt, SnapshotNotFound, StoreError
from cave.snapshot import (
    Manifest,
    Reserve,
    Retention,
    Retired,
    Snapshots,
    home_key,
    sweep,
)
from cave.snapshot.gather import MOST
from tests.snapshot._images import CHUNK, KEY, World, content, image, opened, read_back, same, write

pytestmark = pytest.mark.usefixtures("unsynced")

MB = 1 << 20


def series(
    store: Snapshots, count: int, *, size: int = CHUNK * 300
) -> list[tuple[Manifest, World]]:
    """Snapshots in each of which one chunk of a frame, and a variable of its own, is new."""
    frame = bytearray(os.urandom(size))
    world: World = {}
    made: list[tuple[Manifest, World]] = []
    for n in range(1, count + 1):
        frame[n * CHUNK % size] ^= 1
        world = {**world, "df": content("df", bytes(frame)), f"v{n}": content(f"v{n}")}
        made.append((write(store, f"{n:06d}-00000001", world, made[-1] if made else None), world))
    return made


def test_what_is_kept_needs_nothing_that_went(store: Snapshots, folder: Path) -> None:
    """After retiring, the kept snapshots are whole and the others are not there."""
    made = series(store, 10)
    keep = {made[2][0].id, made[9][0].id}
    done = store.retire(keep)
    assert set(store.ids()) == keep
    for manifest, world in made:
        if manifest.id in keep:
            assert same(world, read_back(opened(folder), manifest.id))
        else:
            with pytest.raises(SnapshotNotFound):
                opened(folder).read(manifest.id)
    needed = set(made[2][0].packs) | set(made[9][0].packs)
    assert {path.stem for path in folder.glob("*.*")} == needed
    assert set(done.held) == needed - keep
    assert set(done.removed) == {m.id for m, _ in made} - needed


def test_a_dry_run_changes_nothing(store: Snapshots, folder: Path) -> None:
    """`dry_run` says what would go, and nothing goes."""
    made = series(store, 6)
    before = sorted(path.name for path in folder.iterdir())
    told = store.retire({made[0][0].id}, dry_run=True)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert store.retire({made[0][0].id}) == told
    assert len(told.removed) == 5
    assert told.freed > 5 * CHUNK


def test_nothing_goes_when_one_to_keep_cannot_be_read(store: Snapshots, folder: Path) -> None:
    """A damaged snapshot to keep stops the retiring: nobody knows what it needs."""
    made = series(store, 4)
    path = folder / f"{made[3][0].id}.pack"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    with pytest.raises(SnapshotCorrupt):
        opened(folder).retire({made[3][0].id})
    assert len(list(folder.glob("*.pack"))) == 4
    assert Snapshots(folder, session="q3", key=KEY).retire({made[2][0].id}).removed


def test_dead_parts_of_packs_go(store: Snapshots, folder: Path) -> None:
    """A pack that is mostly dead gives its pages back, and what is needed of it stays."""
    world: World = {"dead": content("d", os.urandom(8 * MB)), "live": content("l", os.urandom(MB))}
    one = write(store, "000001-00000001", world)
    rest = {"live": world["live"]}
    two = write(store, "000002-00000002", rest, (one, world))
    blocks = (folder / f"{one.id}.pack").stat().st_blocks
    done = store.retire({two.id})
    assert done.held == (one.id,)
    assert (folder / f"{one.id}.data").stat().st_blocks * 512 < 2 * MB < blocks * 512
    assert done.freed > 7 * MB
    assert same(rest, read_back(opened(folder), two.id))
    assert store.retire({two.id}).freed == 0
    again = {"dead": world["dead"], **rest}
    three = write(store, "000003-00000003", again, (two, rest))
    assert same(again, read_back(opened(folder), three.id))


def test_a_fork_is_independent(store: Snapshots, folder: Path, tmp_path: Path) -> None:
    """A fork has everything by itself: the other session may change and go, and its files are
    not punched under it."""
    dead, live = content("d", os.urandom(8 * MB)), content("l", os.urandom(MB))
    one = write(store, "000001-00000001", {"dead": dead, "live": live})
    fork = opened(tmp_path / "fork", "q4")
    made = fork.link_from(store, one.id)
    assert made.session == "q4"
    assert made.cell == one.cell
    assert list(fork.ids()) == [made.id]
    assert made.written < 2000
    assert os.stat(folder / f"{one.id}.pack").st_nlink == 2  # noqa: PTH116 - its links
    two = write(store, "000002-00000002", {"live": live}, (one, {"dead": dead, "live": live}))
    store.retire({two.id})
    world = {"dead": dead, "live": live}
    assert same(world, read_back(opened(tmp_path / "fork", "q4"), made.id))
    store.retire(set())
    more = {**world, "x": content("x")}
    three = write(fork, "000005-00000001", more, (made, world))
    fork.retire({three.id})
    assert same(more, read_back(opened(tmp_path / "fork", "q4"), three.id))
    assert fork.verify(deep=True) == []
    grandchild = opened(tmp_path / "again", "q5").link_from(fork, three.id)
    assert same(more, read_back(opened(tmp_path / "again", "q5"), grandchild.id))


def test_a_fork_without_links_copies(
    store: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no hard links the files are copied."""
    world = {"df": content("df", os.urandom(MB))}
    one = write(store, "000001-00000001", world)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    fork = opened(tmp_path / "fork", "q4")
    made = fork.link_from(store, one.id)
    store.retire(set())
    assert same(world, read_back(fork, made.id))


def test_a_fork_of_what_is_not_there_leaves_nothing(
    store: Snapshots, folder: Path, tmp_path: Path
) -> None:
    """An unknown snapshot, or one that lacks a file, is an error, and no file is left."""
    made = series(store, 3)
    fork = opened(tmp_path / "fork", "q4")
    with pytest.raises(SnapshotNotFound):
        fork.link_from(store, "000009-00000009")
    (folder / f"{made[0][0].id}.pack").unlink()
    with pytest.raises(SnapshotCorrupt, match="lacks"):
        fork.link_from(store, made[2][0].id)
    assert list(fork.ids()) == []
    assert list((tmp_path / "fork").glob("*.*")) == []


def test_long_sessions_keep_few_files(store: Snapshots, folder: Path) -> None:
    """However many cells there were, a snapshot needs a bounded number of packs, and what is
    kept a bounded number of files; everything is as it was."""
    made = series(store, 330, size=CHUNK * 90)
    assert max(len(manifest.used) for manifest, _ in made) <= MOST + 8
    assert same(made[-1][1], read_back(opened(folder), made[-1][0].id))
    assert same(made[150][1], read_back(opened(folder), made[150][0].id))
    store.retire({manifest.id for manifest, _ in made[-5:]})
    assert len(list(folder.iterdir())) <= MOST + 10
    size = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    assert size < 8 * CHUNK * 90
    for manifest, world in made[-5:]:
        assert same(world, read_back(opened(folder), manifest.id))


def test_snapshots_that_stay_need_no_packs_of_those_that_go(store: Snapshots, folder: Path) -> None:
    """Of a long session one file in ten is left: the others hold nothing that is needed."""
    made = series(store, 120, size=CHUNK * 90)
    stay = [(manifest, world) for manifest, world in made if manifest.cell % 10 == 0]
    store.retire({manifest.id for manifest, _ in stay})
    first = sum(manifest.cell < 10 for manifest, _ in made)
    assert len(list(folder.glob("*.*"))) <= len(stay) + first
    for manifest, world in stay:
        assert same(world, read_back(opened(folder), manifest.id))


def test_the_bytes_of_packs_add_up(store: Snapshots, folder: Path) -> None:
    """What a manifest says it needs of each pack is what its references sum up to."""
    for manifest, _ in series(store, 120, size=CHUNK * 90):
        fresh = opened(folder).read(manifest.id)
        summed: dict[int, int] = {}
        for group in fresh.groups:
            for ref in group.stream:
                summed[ref.pack] = summed.get(ref.pack, 0) + ref.stored
            for buffer in group.buffers:
                for pack, size in buffer.packs:
                    summed[pack] = summed.get(pack, 0) + size
        for block in fresh.blocks:
            summed[block.ref.pack] = summed.get(block.ref.pack, 0) + block.ref.stored
        assert {n: size for n, size in fresh.used.items() if size} == summed


def test_torn_files_are_swept(home: Path) -> None:
    """gc removes files that were never finished and packs that nothing kept needs, once they
    are a day old or `now`; sessions that it was not told of are left alone."""
    stores = [opened(home / "sessions" / name / "snapshots", name) for name in ("a", "b")]
    made = [series(store, 3) for store in stores]
    folder = home / "sessions" / "a" / "snapshots"
    (folder / "000009-00000009.pack").write_bytes(b"cavepack torn")
    assert list(stores[0].ids()) == [manifest.id for manifest, _ in made[0]]
    keep = {"a": {made[0][2][0].id}, "gone": set()}
    assert sweep(home, keep, key=KEY)["a"] == Retired()
    week_ago = 1e9
    os.utime(folder / "000009-00000009.pack", (week_ago, week_ago))
    told = sweep(home, keep, key=KEY, dry_run=True)
    assert told == sweep(home, keep, key=KEY)
    assert told["a"].removed == ("000009-00000009",)
    sweep(home, keep, key=KEY, now=True)
    assert list(opened(folder, "a").ids()) == [made[0][2][0].id]
    assert same(made[0][2][1], read_back(opened(folder, "a"), made[0][2][0].id))
    assert len(stores[1].ids()) == 3
    assert isinstance(sweep(home, {"b": {"000007-00000007"}}, key=KEY, now=True)["b"], StoreError)
    assert len(stores[1].ids()) == 3


# -- the rule --------------------------------------------------------------------------------


def test_the_rule_of_retention() -> None:
    """The last 100, one of ten cells of the last 1,000, all named, the ends of 100 turns."""
    taken = [(f"s{n}", n, "named" if n == 7 else "", n % 25 == 0) for n in range(1, 3001)]
    kept = Retention().keep(taken)
    assert {f"s{n}" for n in range(2901, 3001)} <= kept
    assert "s7" in kept
    assert {f"s{n}" for n in range(525, 3001, 25)} <= kept
    assert "s500" not in kept
    assert {f"s{n}" for n in range(2010, 3001, 10)} <= kept
    assert len(kept) <= 100 + 100 + 1 + 100 + 1


def test_retention_over_time_keeps_its_grid() -> None:
    """Applied after every cell, old snapshots thin out to one of ten cells, not to none."""
    rule = Retention(last=20, every=10, span=200, turns=0)
    held: list[tuple[str, int, str, bool]] = []
    for n in range(1, 501):
        held.append((f"s{n}", n, "", False))
        kept = rule.keep(held)
        held = [one for one in held if one[0] in kept]
    cells = [cell for _, cell, _, _ in held]
    assert cells[-20:] == list(range(481, 501))
    assert cells[:-20] == list(range(310, 490, 10))


def test_the_newest_two_always_stay() -> None:
    """Whatever the settings, two good snapshots are kept."""
    rule = Retention(last=0, every=1000, span=0, turns=0)
    taken = [(f"s{n}", n, "", False) for n in range(9)]
    assert rule.keep(taken) == {"s7", "s8"}
    assert rule.keep([]) == set()


# -- the key ---------------------------------------------------------------------------------


def test_the_key_is_made_once(tmp_path: Path) -> None:
    """The key of a home is random, the owner's alone, and the same ever after."""
    key = home_key(tmp_path / "home")
    assert len(key) == 32
    assert home_key(tmp_path / "home") == key
    assert (tmp_path / "home" / "key").stat().st_mode & 0o777 == 0o600
    assert home_key(tmp_path / "other") != key
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["key"]


def test_two_processes_agree_on_the_key(tmp_path: Path) -> None:
    """Processes that make the key at one time get the same."""
    script = (
        "from pathlib import Path; from cave.snapshot import home_key\n"
        f"print(home_key(Path({str(tmp_path)!r})).hex())"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert len({process.communicate(timeout=60)[0] for process in started}) == 1


def test_a_broken_key_is_named(tmp_path: Path) -> None:
    """A key file that is cut short is not used and not replaced."""
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(StoreError, match="key"):
        home_key(tmp_path)
    assert (tmp_path / "key").read_bytes() == b"short"


# -- full disks ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; needs root."""
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.needs_root
def test_a_full_disk_costs_the_snapshot_alone(small_disk: Path) -> None:
    """With no space left the snapshot is a StoreError and takes none, those before stay, and
    the reserve gives room for what must be written."""
    reserve = Reserve(small_disk / "reserve")
    assert reserve.ensure()
    store = opened(small_disk / "snapshots")
    world = {"df": content("df", os.urandom(4 * MB))}
    one = write(store, "000001-00000001", world)
    free = os.statvfs(small_disk).f_bfree
    with pytest.raises(StoreError, match="full"):
        write(
            store,
            "000002-00000002",
            {**world, "big": content("big", os.urandom(30 * MB))},
            (one, world),
        )
    assert os.statvfs(small_disk).f_bfree == free
    assert same(world, read_back(opened(small_disk / "snapshots"), one.id))
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bfree * 4096))
    with pytest.raises(StoreError, match="full"):
        write(store, "000003-00000003", world, (one, world))
    assert reserve.held
    assert reserve.release()
    assert write(store, "000003-00000003", world, (one, world)).written
    assert not reserve.held
    (small_disk / "more").write_bytes(bytes(os.statvfs(small_disk).f_bfree * 4096))
    assert not reserve.ensure()
    assert not reserve.path.exists()


def test_the_reserve_is_space_on_the_disk(tmp_path: Path) -> None:
    """The reserve is allocated, found again by the next process, and let go once."""
    reserve = Reserve(tmp_path / "reserve", size=MB)
    assert not reserve.held
    assert reserve.ensure()
    assert reserve.ensure()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= MB
    assert Reserve(tmp_path / "reserve", size=MB).held
    assert reserve.release()
    assert not reserve.release()


def test_a_whole_image_on_another_base_is_whole(store: Snapshots, folder: Path) -> None:
    """A whole image may name a base that it has nothing in common with."""
    made = series(store, 2)
    world = {"other": content("o", os.urandom(MB))}
    three = store.write(
        image("000009-00000001", world), base=made[1][0], cell=9, at=0.0, variables=()
    )
    assert set(three.packs) == {three.id}
    assert same(world, read_back(opened(folder), three.id))


def test_holes_that_others_made_are_not_referred_to(store: Snapshots, folder: Path) -> None:
    """A writer that remembers chunks of a pack notices that another process punched it."""
    rest = {"live": content("l", os.urandom(MB))}
    world: World = {"dead": content("d", os.urandom(8 * MB)), **rest}
    one = write(store, "000001-00000001", world)
    two = write(store, "000002-00000002", rest, (one, world))
    assert opened(folder).retire({two.id}).freed > 7 * MB
    three = write(store, "000003-00000003", world, (two, rest))
    assert same(world, read_back(opened(folder), three.id))


def test_a_fork_of_what_is_retired_meanwhile_is_none(
    store: Snapshots, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that goes while its files are linked, perhaps with holes already, is no fork."""
    made = series(store, 3)
    fork = opened(tmp_path / "fork", "q4")
    link = fork._folder.link

    def slow(other: object, id: str) -> None:
        link(other, id)  # type: ignore[arg-type]
        opened(folder).retire({made[1][0].id})

    monkeypatch.setattr(fork._folder, "link", slow)
    with pytest.raises(StoreError):
        fork.link_from(store, made[0][0].id)
    assert list((tmp_path / "fork").glob("*.*")) == []


def test_a_key_that_another_process_made_first_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser of a race takes the winner's key."""
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_bytes(b"w" * 32)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert home_key(tmp_path) == b"w" * 32
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
