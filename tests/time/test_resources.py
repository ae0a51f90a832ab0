"""Objects that come back by a recipe of the user's: `@cave.resource`, `@cave.persistent`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import cave

from ._kill import kill

pytestmark = pytest.mark.usefixtures("sessions")

CELL = """
import cave, os, sqlite3

@cave.resource(name="warehouse", env=["WAREHOUSE"])
def warehouse():
    return sqlite3.connect(os.environ["WAREHOUSE"])

@cave.persistent(save=lambda m: m.path, load=lambda path: Model(path))
class Model:
    def __init__(self, path):
        self.path, self.handle = path, open(path)

db = warehouse()
model = Model(os.environ["WAREHOUSE"])
pair = [db, model]
"""


def test_resources_and_persistent_objects_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill the resource's function was called again, the instance was loaded from what
    it saved, both are shared as before and named as rebuilt."""
    path = tmp_path / "house.db"
    sqlite3.connect(path).execute("create table t(a)")
    monkeypatch.setenv("WAREHOUSE", str(path))
    s = cave.open("house", policy=cave.Policy(read=[tmp_path], env=["WAREHOUSE"]))
    s.run(CELL).raise_for_error()
    kill(s)
    told = s.run(
        "print(db.execute('select count(*) from t').fetchone(), pair[0] is db, pair[1] is model,\n"
        "      type(model) is Model, model.handle.readable())"
    )
    assert told.text.strip() == "(0,) True True True True"
    report = s.last_restore
    assert report is not None
    assert "db" in {e.name for e in report.rebuilt}


def test_a_resource_of_the_host_is_made_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`put` of a resource binds what its function makes in the kernel; without its variable of
    the environment it is lost after a restore, and the report names that variable."""
    path = tmp_path / "house.db"
    sqlite3.connect(path).close()
    monkeypatch.setenv("WAREHOUSE", str(path))

    @cave.resource(name="warehouse", env=["WAREHOUSE"])
    def warehouse():  # type: ignore[no-untyped-def]
        import os
        import sqlite3

        return sqlite3.connect(os.environ["WAREHOUSE"])

    s = cave.open("given", policy=cave.Policy(read=[path], env=["WAREHOUSE"]))
    s.put(db=warehouse)
    assert s.run("print(type(db).__name__, db.execute('select 1').fetchone())").text == (
        "Connection (1,)"
    )
    monkeypatch.delenv("WAREHOUSE")
    kill(s)
    cell = s.run("db.execute('select 1')")
    assert "WAREHOUSE" in str(cell.error)
    with pytest.raises(cave.ConfigError, match="env="):
        cave.resource(name="x", env="WAREHOUSE")
