"""Snapshots below a URL: whole objects are put, ranges are read, all promises hold."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from cave import failpoints
from cave.errors import SnapshotCorrupt, SnapshotError, SnapshotNotFound, StoreError
from cave.snapshot import Snapshots
from cave.snapshot.folder import LocalFolder, RemoteFolder
from tests.snapshot._images import CHUNK, KEY, World, content, image, opened, read_back, same, write


class Bucket(DirFileSystem):
    """A folder behind an interface that is not that of a local one, as an object store's."""

    protocol = "cavebucket"


@pytest.fixture(params=["memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        root = f"memory://{uuid.uuid4().hex}"
        yield root
        with contextlib.suppress(FileNotFoundError):
            fsspec.filesystem("memory").rm(root, recursive=True)
    else:
        yield f"bucket:{tmp_path / 'bucket'}"


def at(url: str, session: str = "q3") -> Snapshots:
    if not url.startswith("bucket:"):
        return Snapshots(f"{url}/{session}", session=session, key=KEY)
    path = Path(url.removeprefix("bucket:"))
    path.mkdir(exist_ok=True)
    store = Snapshots(path, session=session, key=KEY)
    store._folder = RemoteFolder(
        Bucket(path=str(path), fs=fsspec.filesystem("file"), skip_instance_cache=True), session
    )
    store._known._folder = store._folder
    return store


WORLD: World = {
    "df": content("df", os.urandom(CHUNK * 120 + 3), bytes(CHUNK * 2)),
    "x": content("x"),
}


def test_a_url_is_as_good_as_a_folder(url: str) -> None:
    """Written, read by another process, changed, forked and retired through fsspec alone."""
    store = at(url)
    assert isinstance(store._folder, RemoteFolder)
    one = write(store, "000001-00000001", WORLD)
    frame = bytearray(WORLD["df"].buffers["b0"])
    frame[CHUNK * 50] ^= 1
    world = {**WORLD, "df": content("df", bytes(frame), bytes(CHUNK * 2))}
    two = write(store, "000002-00000002", world, (one, WORLD))
    assert two.written < 3 * CHUNK
    assert list(at(url).ids()) == [one.id, two.id]
    assert same(WORLD, read_back(at(url), one.id))
    assert same(world, read_back(at(url), two.id))
    fork = at(url, "q4")
    made = fork.link_from(at(url), two.id)
    assert store.retire({two.id}).held == (one.id,)
    assert list(at(url).ids()) == [two.id]
    with pytest.raises(SnapshotNotFound):
        at(url).read(one.id)
    assert same(world, read_back(at(url), two.id))
    three = write(store, "000003-00000003", {"y": content("y")}, (two, world))
    assert set(store.retire({three.id}).removed) == {one.id, two.id}
    assert same(world, read_back(at(url, "q4"), made.id))
    assert at(url, "q4").verify(deep=True) == []
    with pytest.raises(SnapshotError, match="already"):
        write(store, three.id, WORLD)


def test_equal_content_is_put_once(url: str) -> None:
    """A whole image by a new process refers to what is there, until others let go of it."""
    one = write(at(url), "000001-00000001", WORLD)
    store = at(url)
    two = store.write(image("000002-00000002", WORLD), base=one, cell=2, at=0.0, variables=())
    assert two.written < 5000
    assert same(WORLD, read_back(at(url), two.id))


def test_a_cut_put_leaves_nothing(url: str) -> None:
    """A fault before the object is put is a StoreError, and there is no snapshot."""
    store = at(url)
    write(store, "000001-00000001", WORLD)
    for point in ("mid_write", "before_manifest", "before_sync", "after_sync"):
        failpoints.arm(f"snapshot.{point}", "enospc")
        with pytest.raises(StoreError, match="full"):
            write(store, "000002-00000002", {"y": content("y")})
        failpoints.disarm()
        assert list(at(url).ids()) == ["000001-00000001"]


def test_damage_is_found_in_what_was_fetched(url: str) -> None:
    """A flipped byte in an object costs its names, a flipped manifest the snapshot."""
    store = at(url)
    one = write(store, "000001-00000001", WORLD)
    assert isinstance(store._folder, RemoteFolder)
    fs, path = store._folder.fs, store._folder.path_of(one.id)
    whole = fs.cat_file(path)
    for place in (4096 + CHUNK * 70 + 1, len(whole) - 200):
        changed = bytearray(whole)
        changed[place] ^= 1
        fs.pipe_file(path, bytes(changed))
        if place < len(whole) - 200:
            plan = at(url).plan(at(url).read(one.id), live=None)
            plan.close()
            assert [note.name for note in plan.damaged] == ["df"]
        else:
            with pytest.raises(SnapshotCorrupt):
                at(url).read(one.id)


def test_a_fork_may_move_between_places(url: str, tmp_path: Path) -> None:
    """A fork from a folder to a URL, and back, copies what it needs."""
    local = opened(tmp_path / "local")
    one = write(local, "000001-00000001", WORLD)
    there = at(url, "q4")
    two = there.link_from(local, one.id)
    assert same(WORLD, read_back(at(url, "q4"), two.id))
    back = opened(tmp_path / "back", "q5")
    three = back.link_from(there, two.id)
    assert isinstance(back._folder, LocalFolder)
    assert same(WORLD, read_back(back, three.id))


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    """`file://` is the local folder, with links, maps and holes."""
    store = Snapshots(f"file://{tmp_path}/s", session="q3", key=KEY)
    assert isinstance(store._folder, LocalFolder)
    assert same(WORLD, read_back(opened(tmp_path / "s"), write(store, "000001-00000001", WORLD).id))
