from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cave import failpoints
from cave.snapshot import Snapshots
from tests.snapshot._images import opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "q3" / "snapshots"


@pytest.fixture
def store(folder: Path) -> Snapshots:
    return opened(folder)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many snapshots in little time: what is tested is not whether the disk has them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _nothing_armed() -> Iterator[None]:
    yield
    failpoints.disarm()
