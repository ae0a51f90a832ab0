"""What all tests share: a home of their own, and the rule that nothing outlives it."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psutil
import pytest

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
OF_THE_SCRIPTS = ("CAVE_CRASH_", "CAVE_LIVE_")
WARM = os.environ.get("CAVE_TEST_TEMPLATES")
"""Folder of templates for all tests, to run them with kernels that those fork."""
GRACE = 2.0
"""Seconds in which processes that were told to end may still do so."""


def pytest_sessionstart() -> None:
    """Collecting tests makes objects that all stay: nobody looks for garbage among them."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may take long come first, so that no worker begins one when others are done."""
    items.sort(key=_seconds_allowed, reverse=True)


def _seconds_allowed(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


def pytest_collection_finish() -> None:
    """From here on as ever, without those that stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty CAVE_HOME, no key and no setting; a process left under it fails the test."""
    with home_of_its_own(monkeypatch) as path:
        yield path


@pytest.fixture
def unconfined(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells may do what the user may, for tests whose cells do what confinement forbids."""
    monkeypatch.setenv("CAVE_PROFILE", "open")


_tried: list[bytes] = []
"""How the layers of confinement did here, once a home has tried them."""


@contextlib.contextmanager
def home_of_its_own(patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty CAVE_HOME while it lasts; a process left under it is an error.

    What another home knows of the layers of confinement is known there: each would try them
    for itself, which costs a tenth of a second.
    """
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="cv")))
    known = path / "confinement.json"
    for tried in _tried:
        known.write_bytes(tried)
    clear_settings(patch)
    patch.setenv("CAVE_HOME", str(path))
    if WARM:  # under one seed, so that one template serves all homes
        for name, value in (
            ("CAVE_WARM", "1"),
            ("CAVE_RUNTIME_DIR", WARM),
            ("PYTHONHASHSEED", "7"),
        ):
            patch.setenv(name, value)
    before = frozenset(psutil.pids())
    yield path
    left = end_processes_of(path, before)
    if not _tried and known.exists():
        _tried.append(known.read_bytes())
    shutil.rmtree(path, ignore_errors=True)
    assert not left, "processes outlived the test: " + "; ".join(left)


def clear_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*KEYS, *(n for n in os.environ if n.startswith("CAVE_"))]:
        if not name.startswith(OF_THE_SCRIPTS):
            monkeypatch.delenv(name, raising=False)


def end_processes_of(home: Path, before: frozenset[int]) -> list[str]:
    """Ends every process that belongs to `home` and says which those were."""
    _, alive = psutil.wait_procs(processes_of(home, before), timeout=GRACE)
    left = []
    for process in alive:
        try:
            left.append(f"{process.pid} {' '.join(process.cmdline())}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=GRACE)
    return left


def processes_of(home: Path, before: frozenset[int]) -> list[psutil.Process]:
    """Those that were not there before the test and belong to its home."""
    found = []
    for pid in {*psutil.pids()} - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return [process for process in found if belongs(process, home)]


def belongs(process: psutil.Process, home: Path) -> bool:
    """Whether its environment, command line or folder names `home`."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return (
            any(str(home) in word for word in process.cmdline())
            or process.environ().get("CAVE_HOME") == str(home)
            or Path(process.cwd()).is_relative_to(home)
        )
    except (psutil.Error, OSError):
        return False


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Forks hosts off one process that has imported cave."""
    from tests import _hosts

    return _hosts.forking()


@pytest.fixture
def sessions(home: Path) -> Iterator[None]:
    """Every session of the test's home is deleted at its end, and the store is let go."""
    with sessions_deleted():
        yield


@contextlib.contextmanager
def sessions_deleted() -> Iterator[None]:
    """Delete every session of the home at the end, also after a failure."""
    try:
        yield
    finally:
        delete_sessions()


def delete_sessions() -> None:
    import cave
    from cave import facade
    from cave.portal import portal

    try:
        for row in cave.sessions():
            cave.delete(row.name)
    finally:
        portal().call(facade.leave_all())
