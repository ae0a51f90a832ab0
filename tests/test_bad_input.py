"""What people type wrong: a clear typed error each, nothing lost, the session usable."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import cave
from cave import data

pytestmark = pytest.mark.usefixtures("sessions")


def test_a_broken_config_file_is_named(home: Path) -> None:
    """A config file that is no TOML is a ConfigError with its path."""
    (home / "config.toml").write_text("model = [unclosed")
    with pytest.raises(cave.ConfigError, match=r"config\.toml"):
        cave.open("x")
    (home / "config.toml").unlink()
    assert cave.open("x").run("1").ok


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("modle = 'x'", "modle"),
        ("max_retries = 'many'", "max_retries"),
        ("idle_timeout = -1", "idle_timeout"),
        ("persistence = 'sometimes'", "persistence"),
        ("profile = 'vault'", "profile"),
        ("model = 3", "model"),
        ("warm = 'perhaps'", "warm"),
    ],
)
def test_a_wrong_setting_is_named(home: Path, text: str, word: str) -> None:
    """An unknown key or a value that cannot be is a ConfigError with file and key."""
    (home / "config.toml").write_text(text)
    with pytest.raises(cave.ConfigError, match=word) as caught:
        cave.open("x")
    assert "config.toml" in str(caught.value)


def test_settings_win_in_their_order(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call wins over the environment, that over the project, that over the user's file."""
    from cave.config import Settings

    monkeypatch.chdir(tmp_path)
    (home / "config.toml").write_text("max_retries = 1")
    assert Settings.load().max_retries == 1
    (tmp_path / "pyproject.toml").write_text("[tool.cave]\nmax_retries = 3")
    assert Settings.load().max_retries == 3
    (tmp_path / "cave.toml").write_text("max_retries = 4")
    assert Settings.load().max_retries == 4
    monkeypatch.setenv("CAVE_MAX_RETRIES", "5")
    assert Settings.load().max_retries == 5
    assert Settings.load(max_retries=6).max_retries == 6


def test_files_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    """A missing file, a binary CSV, a broken parquet, JSON, xlsx, sqlite: ConfigError each."""
    for suffix in ("csv", "parquet", "json", "xlsx"):
        path = tmp_path / f"bad.{suffix}"
        path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe")
        with pytest.raises(cave.ConfigError, match=f"bad.{suffix}"):
            data.read(path)
        path.write_bytes(b"")
        with pytest.raises(cave.ConfigError, match=f"bad.{suffix}"):
            data.read(path)
    with pytest.raises(cave.ConfigError, match=r"absent\.csv"):
        data.assignment(str(tmp_path / "absent.csv"))
    (tmp_path / "x.docx").write_text("x")
    with pytest.raises(cave.ConfigError, match=r"\.docx"):
        data.read(tmp_path / "x.docx")
    (tmp_path / "no.sqlite").write_text("this is no database at all")
    with pytest.raises(cave.ConfigError, match=r"no\.sqlite"):
        data.copy_sqlite(tmp_path / "no.sqlite", tmp_path / "work")


def test_a_database_of_a_newer_version_is_refused(home: Path) -> None:
    """A home written by a newer cave is a StoreError that says to upgrade; it is not touched."""
    import sqlite3

    from cave import facade
    from cave.portal import portal

    cave.open("old").run("x = 1")
    cave.delete("old")
    portal().call(facade.leave_all())
    with sqlite3.connect(home / "cave.db") as connection:
        connection.execute("update alembic_version set version_num = '9999_from_the_future'")
    connection.close()
    before = (home / "cave.db").read_bytes()
    with pytest.raises(cave.StoreError, match="newer"):
        cave.open("new")
    assert (home / "cave.db").read_bytes() == before
    portal().call(facade.leave_all())
    (home / "cave.db").unlink()
    for rest in home.glob("cave.db-*"):
        rest.unlink()


def test_a_home_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CAVE_HOME that is a file is a StoreError that says what to set."""
    file = tmp_path / "file"
    file.write_text("x")
    monkeypatch.setenv("CAVE_HOME", str(file / "home"))
    with pytest.raises(cave.StoreError, match="CAVE_HOME"):
        cave.open("x")
    monkeypatch.setenv("CAVE_HOME", str(tmp_path / "good"))


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A CAVE_HOME on a file system of 24 MB; needs root."""
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    monkeypatch.setenv("CAVE_HOME", str(path))
    from cave import facade
    from cave.portal import portal

    yield path
    (path / "filler").unlink(missing_ok=True)
    try:
        for row in cave.sessions():
            cave.delete(row.name)
    finally:
        portal().call(facade.leave_all())
        subprocess.run(["umount", "-l", str(path)], check=True)


def run_often(s: cave.Session) -> None:
    """Run until the journal needs more space than there may have been."""
    for _ in range(40):
        s.run("z = 1\nprint('x' * 20000)")


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb") as file:
        while True:
            file.write(b"x" * 65536)
            file.flush()


@pytest.mark.needs_root
def test_a_full_disk_is_named_and_the_session_goes_on(small_disk: Path) -> None:
    """With no space left a run is a StoreError, what was acknowledged stays, the objects too,
    and with space again the session works."""
    s = cave.open("full")
    assert s.run("y = 41").ok
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="space"):
        fill(filler)
    with pytest.raises(cave.StoreError, match="full"):
        run_often(s)
    filler.unlink()
    assert s.run("print(y)").text == "41"
    assert s.history[1].ok


@pytest.mark.needs_root
def test_what_was_done_when_the_disk_filled_up_is_recorded(small_disk: Path) -> None:
    """A skill fills the disk with what it does: its result goes to the reserve; the next effect is
    refused with what to do; with space again all goes on, and nothing was done twice."""
    filler, calls = small_disk / "filler", []

    @cave.skill(effect="write", runs="host")
    def post(item: str) -> str:
        """Post an item."""
        calls.append(item)
        if item == "a":
            with contextlib.suppress(OSError):
                fill(filler)
        return item * 100_000

    s = cave.open("full", skills=[post])
    cell = s.run("x = 1\nlength = len(post('a'))\nprint(length)")
    assert cell.text == "100000"
    (effect,) = cell.effects
    assert (effect.state, effect.result) == ("done", "a" * 100_000)
    with contextlib.suppress(OSError):
        fill(filler.with_name("filler2"))
    try:
        refused = str(s.run("post('b')").error)
    except cave.StoreError as error:  # not even a cell finds room
        refused = str(error)
    assert "make room" in refused
    assert calls == ["a"]
    filler.unlink()
    filler.with_name("filler2").unlink()
    s.run("after = len(post('c'))").raise_for_error()
    assert (s["x"], s["length"], s["after"], calls) == (1, 100_000, 100_000, ["a", "c"])


def test_wrong_values_are_named() -> None:
    """Arguments that cannot be are ConfigErrors that name them."""
    for wrong in (
        lambda: cave.Budget(steps=0),
        lambda: cave.Policy(cell_timeout=0),
        lambda: cave.Policy(profile="vault"),  # type: ignore[arg-type]
        lambda: cave.open("x", persistence="sometimes"),
        lambda: cave.open("x", operator="nonsense").ask("go"),
    ):
        with pytest.raises(cave.ConfigError):
            wrong()
    s = cave.open("x2")
    with pytest.raises(cave.ConfigError, match="timeout"):
        s.run("1", timeout=0)
    with pytest.raises(cave.PutError, match="_hidden"):
        s.put(_hidden=1)
    with pytest.raises(cave.UnknownName, match="'nope'"):
        del s["nope"]
    assert s.run("1").ok
