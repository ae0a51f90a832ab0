from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from cave import failpoints
from cave.errors import StoreError
from cave.store import FolderBlobs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def path_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / key[2:4] / key


def test_a_damaged_blob_is_told(folder: Path) -> None:
    """A blob whose bytes changed is a StoreError naming it, never wrong bytes."""
    blobs = FolderBlobs(folder)
    key = blobs.put([b"content"])
    path_of(folder, key).write_bytes(b"c0ntent")
    with pytest.raises(StoreError, match=rf"{key}.*damaged"):
        blobs.read(key)


def test_a_blob_cut_short_is_written_again(folder: Path) -> None:
    """Putting content whose file lost its end heals it."""
    blobs = FolderBlobs(folder)
    key = blobs.put([b"content"])
    path_of(folder, key).write_bytes(b"con")
    assert blobs.put([b"content"]) == key
    assert blobs.read(key) == b"content"


def test_a_file_url_is_a_folder(folder: Path) -> None:
    """`file://` and a path are the same, durable folder."""
    key = FolderBlobs(f"file://{folder}").put([b"x"])
    assert FolderBlobs(folder).read(key) == b"x"


def test_a_kill_before_the_rename_leaves_no_blob(folder: Path) -> None:
    """kill -9 before a blob has its name: no key is there, and the rest can be swept."""
    script = f"from cave.store import FolderBlobs; FolderBlobs({str(folder)!r}).put([b'x'])"
    killed = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "CAVE_FAILPOINTS": "blob.before_rename=kill",
        },
        check=False,
        timeout=30,
    )
    assert killed.returncode == -signal.SIGKILL
    blobs = FolderBlobs(folder)
    assert list(blobs.keys()) == []
    assert blobs.sweep() == 0
    assert blobs.sweep(older=-1) == 1
    assert blobs.read(blobs.put([b"x"])) == b"x"


def test_a_full_disk_leaves_no_blob(folder: Path) -> None:
    """When the disk is full there is neither key nor temporary file, and the error says so."""
    blobs = FolderBlobs(folder)
    failpoints.arm("blob.before_rename", "enospc")
    try:
        with pytest.raises(StoreError, match=r"full.*make room"):
            blobs.put([b"x"])
    finally:
        failpoints.disarm()
    assert list(blobs.keys()) == []
    assert list((folder / "tmp").iterdir()) == []


def test_file_and_folder_are_synced_around_the_rename(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is on disk before it has its name, and the name before the key is given."""
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        order.append("folder" if target.is_dir() else "file")
        fsync(descriptor)

    def spy_replace(self: Path, target: Path) -> Path:
        order.append("rename")
        return replace(self, target)

    blobs = FolderBlobs(folder)
    blobs.put([b"first"])
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    key = blobs.put([b"second"])
    renamed = order.index("rename")
    assert "file" in order[:renamed]
    assert order[-2:] == ["rename", "folder"]
    assert path_of(folder, key).exists()


def test_memory_stays_flat(folder: Path) -> None:
    """A blob of 64 MB in chunks of 1 MB costs a few of them in memory."""

    def chunks() -> Iterator[bytes]:
        for n in range(64):
            yield bytes([n]) * (1 << 20)

    blobs = FolderBlobs(folder)
    tracemalloc.start()
    try:
        blobs.put(chunks())
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
