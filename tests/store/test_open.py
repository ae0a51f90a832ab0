from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cave import failpoints
from cave.errors import StoreError
from cave.ports import Lease
from cave.store import SQLStore, migrate, sqlite, this_process
from cave.testing.store import cells, journal

NEWER = {
    "schema": "UPDATE alembic_version SET version_num = '9999'",
    "format": "UPDATE meta SET value = '99' WHERE key = 'format'",
}


def run(database: Path | str, scenario: Callable[[SQLStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SQLStore(database, busy_timeout=1.0)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


async def create(store: SQLStore) -> None:
    await store.create("q3")


def change(database: Path, statement: str) -> None:
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("what", sorted(NEWER))
def test_a_database_of_a_newer_version_is_refused(database: Path, what: str) -> None:
    """A newer schema or record format: StoreError naming the versions; nothing is written."""
    run(database, create)
    change(database, NEWER[what])
    before = database.read_bytes()

    async def scenario(store: SQLStore) -> None:
        for call in (store.create("q4"), store.sessions(), journal(store, "q3")):
            with pytest.raises(StoreError, match=r"newer cave.*(9999|99).*pip install -U"):
                await call

    run(database, scenario)
    assert database.read_bytes() == before


def test_a_database_of_an_older_format_is_led_on(database: Path) -> None:
    """An older record format is noted as this version's when the database is opened."""
    run(database, create)
    change(database, "UPDATE meta SET value = '0' WHERE key = 'format'")
    run(database, create)
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == ("1",)
    connection.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"not a database at all, but long enough" * 40, "not a database")],
)
def test_a_file_that_is_no_database_is_told(database: Path, content: bytes, message: str) -> None:
    """What is no database is left as it is."""
    database.parent.mkdir()
    database.write_bytes(content)

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError, match=message):
            await store.create("q3")

    run(database, scenario)
    assert database.read_bytes() == content


def test_another_programs_database_is_left_alone(database: Path) -> None:
    """A database with other tables is refused, and gets none of ours."""
    database.parent.mkdir()
    change(database, "CREATE TABLE theirs (x)")

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError, match=r"another program \(tables: theirs\)"):
            await store.create("q3")

    run(database, scenario)
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.close()


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    """A path that is a folder is a StoreError."""

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError, match="is a folder"):
            await store.create("q3")

    run(tmp_path, scenario)


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    """A home that cannot be made is a StoreError."""
    (tmp_path / "file").write_text("")

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError, match="file"):
            await store.create("q3")

    run(tmp_path / "file" / "cave.db", scenario)


@pytest.mark.parametrize("url", ["postgresql://host/db", "sqlite://relative.db", "sqlite:///"])
def test_urls_of_other_databases_are_refused(url: str) -> None:
    """What this store does not serve is a StoreError at once."""
    with pytest.raises(StoreError, match="no store for"):
        SQLStore(url)


def test_an_sqlite_url_is_a_path(database: Path) -> None:
    """`sqlite:///` and an absolute path name the same file."""
    assert SQLStore(f"sqlite:///{database}").path == database == SQLStore(str(database)).path


def test_network_file_systems_are_refused(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home on a network file system is refused with its type; the nearest mount decides."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\n"
        f"server:/x {tmp_path}/with\\040space nfs4 rw 0 0\n"
        f"/dev/vdb {tmp_path}/with\\040space/local ext4 rw 0 0\n"
        f"srv {database.parent} fuse.sshfs rw 0 0\n"
    )
    kind = sqlite.network_filesystem
    assert kind(tmp_path, mounts) is None
    assert kind(tmp_path / "with space" / "a", mounts) == "nfs4"
    assert kind(tmp_path / "with space" / "local", mounts) is None
    assert kind(tmp_path, tmp_path / "no such list") is None
    monkeypatch.setattr(sqlite, "network_filesystem", lambda folder: kind(folder, mounts))

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError, match=r"network file system \(fuse\.sshfs\)"):
            await store.create("q3")

    run(database, scenario)
    assert not database.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB; only root can make one."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the space that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return ballast


async def append_until_refused(store: SQLStore, lease: Lease) -> int:
    """How many events fitted into the file's own free pages."""
    for count in range(0, 10_000, 20):
        try:
            await store.append(lease, cells(*range(20)), sync=True)
        except StoreError as fault:
            assert re.search("full.*make room", str(fault))  # noqa: PT017  the count is wanted
            return count
    raise AssertionError("the disk was never full")


def test_a_full_disk_loses_nothing_and_heals(small_disk: Path) -> None:
    """On a full disk an append is refused whole; with space again the same store goes on."""

    async def scenario(store: SQLStore) -> None:
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        await store.append(lease, cells(1), sync=True)
        ballast = fill(small_disk)
        count = 1 + await append_until_refused(store, lease)
        assert len(await journal(store, "q3")) == count
        ballast.unlink()
        assert (await store.append(lease, cells(2)))[0].seq == count + 1
        assert await store.verify("q3") == []

    run(small_disk / "cave.db", scenario)


def test_a_read_only_folder_is_told(small_disk: Path) -> None:
    """A home that cannot be written is a StoreError that says so."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError, match=r"read-only|cannot be"):
            await store.create("q3")

    run(small_disk / "cave.db", scenario)
    run(small_disk / "home" / "cave.db", scenario)


@pytest.mark.parametrize(("action", "words"), [("enospc", "make room"), ("eio", "disk failed")])
def test_a_fault_in_the_commit_undoes_the_append(database: Path, action: str, words: str) -> None:
    """A commit that fails raises StoreError naming the file; the next append takes its place."""

    async def scenario(store: SQLStore) -> None:
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        failpoints.arm("store.before_commit", action)
        try:
            with pytest.raises(StoreError, match=words) as fault:
                await store.append(lease, cells(1))
        finally:
            failpoints.disarm()
        assert str(database) in str(fault.value)
        assert await journal(store, "q3") == []
        assert (await store.append(lease, cells(2)))[0].seq == 1

    run(database, scenario)


def test_a_damaged_file_is_told(database: Path) -> None:
    """Pages overwritten with noise are a StoreError on reading, never wrong events."""

    async def fill(store: SQLStore) -> None:
        await store.create("q3")
        lease = await store.acquire("q3", this_process())
        await store.append(lease, cells(*range(500)))

    async def scenario(store: SQLStore) -> None:
        with pytest.raises(StoreError):
            await journal(store, "q3")

    run(database, fill)
    with database.open("r+b") as file:
        file.seek(4096 * 12)
        file.write(b"\xde\xad\xbe\xef" * 4096)
    run(database, scenario)


def test_the_migrations_lead_to_the_schema(database: Path, tmp_path: Path) -> None:
    """An empty database that all migrations have led on has the tables of `schema`, REVISION is
    their last, and one that was made at once is the same to the letter."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from cave.store.schema import REVISION, metadata

    engine = sqlite.engine(tmp_path / "led.db", role="write", busy_timeout=1)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        migrate._migrate(connection)
        connection.commit()
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()
    assert ScriptDirectory(str(migrate.SCRIPTS)).get_heads() == [REVISION]
    run(database, create)
    assert tables(database) == tables(tmp_path / "led.db")


def tables(database: Path) -> tuple[dict[str, list[str]], list[tuple[object, ...]]]:
    """The lines that make each table, in any order, and the rows that every database has."""
    with closing(sqlite3.connect(database)) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        lines = {name: sorted(re.sub(r",?\s*$", "", row).strip() for row in sql.splitlines())
                 for name, sql in made}  # fmt: skip
        rows = connection.execute(
            "SELECT key, value FROM meta UNION SELECT '', version_num FROM alembic_version"
        )
        return lines, sorted(rows)


def test_an_open_database_costs_no_alembic(database: Path) -> None:
    """Only a database that is to be led on loads Alembic, not an open one and not a new one."""
    run(database, create)
    script = f"""
import asyncio, sys
from cave.store import SQLStore
async def main():
    for path, new in (({str(database)!r}, False), ({f"{database}.new"!r}, True)):
        store = SQLStore(path)
        assert await store.create("q3") is new
        await store.close()
asyncio.run(main())
assert "alembic" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        timeout=30,
    )
