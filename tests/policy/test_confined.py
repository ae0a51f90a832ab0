"""What a user meets under the profile `confined`: cells that work, and say how to open doors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import cave
from cave import config
from cave.skills import trust
from tests.conftest import home_of_its_own, sessions_deleted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these layers")


@dataclass
class Desk:
    """A project with a table, a file beside it, and the session that was opened there."""

    project: Path
    session: cave.Session

    @property
    def table(self) -> Path:
        return self.project / "sales.csv"

    def refused(self, source: str) -> str:
        """The hint of a cell that is refused something."""
        cell = self.session.run(source)
        assert cell.error is not None, source
        notes: list[str] = getattr(cell.error, "__notes__", [])
        assert notes == ([cell.error.hint] if cell.error.hint else [])
        return cell.error.hint


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One session for all: opened in a project that nobody has trusted."""
    project = tmp_path_factory.mktemp("project")
    (project / "pyproject.toml").touch()
    (project / "sales.csv").write_text("region,amount\nnorth,1\n")
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch):
        patch.chdir(project)
        patch.setenv("WAREHOUSE_URL", "sqlite:///warehouse.db")
        with sessions_deleted():
            yield Desk(project, cave.open("desk"))


def test_confined_is_the_default(desk: Desk) -> None:
    """Nobody has to ask for it."""
    assert desk.session.kernel.profile == "confined" == config.Settings().profile


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import pandas as pd; pd.read_csv('{table}')", "does not let cells read '{table}'"),
        ("import polars as pl; pl.read_csv('{table}')", "cave.Policy(read=['{project}'])"),
        ("import pyarrow.csv as pc; pc.read_csv('{table}')", "cave skills trust {project}"),
        ("import duckdb; duckdb.sql(\"select * from '{table}'\")", "read=['{project}']"),
        ("open('{table}', 'a')", "cave.Policy(write=['{project}'])"),
        (
            "import pandas as pd; pd.Series().to_csv('{project}/new')",
            "cells change '{project}/new'",
        ),
        ("open('sales.csv')", "there is '{table}', and the profile 'confined' does not let"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "cave.Policy(network=['*'])"),
        ("import requests; requests.get('http://no.invalid')", "cave.Policy(network=['*'])"),
        ("import urllib.request as u; u.urlopen('http://127.0.0.1:9')", "reach the network"),
        ("import os; os.environ['WAREHOUSE_URL']", "cave.Policy(env=['WAREHOUSE_URL'])"),
        (
            "import cave; cave.resource(name='wh', env=['WAREHOUSE_URL'])(lambda: 1)()",
            "cave.Policy(env=['WAREHOUSE_URL'])",
        ),
        ("import numpy as np; np.ones(10**9)", "a process of cells has 3 GB"),
        ("import multiprocessing; multiprocessing.Manager()", "has no Manager"),
    ],
)
def test_a_refusal_names_the_setting_that_allows_it(desk: Desk, source: str, told: str) -> None:
    """Whatever library was refused: files to read and to change, hosts, variables, memory."""
    names = {"{table}": str(desk.table), "{project}": str(desk.project)}
    for name, value in names.items():
        source, told = source.replace(name, value), told.replace(name, value)
    assert told in desk.refused(source)


def test_what_no_setting_allows_has_no_such_hint(desk: Desk) -> None:
    """A signal to the host, a missing key, a cell's own error of that kind."""
    for source in (
        f"import os; os.kill({os.getpid()}, 0)",
        "{}['WAREHOUSE_URL']",
        "raise PermissionError('not today')",
        "open('nowhere.csv')",
    ):
        assert "Policy" not in desk.refused(source), source


def test_ordinary_data_work_is_untouched(desk: Desk) -> None:
    """Tables, databases, charts, processes and downloads into the session's own folder."""
    done = desk.session.run("""
        import sqlite3, subprocess, sys, tempfile, concurrent.futures as cf
        import pandas as pd
        df = pd.DataFrame({"n": range(1000)}); df.to_parquet("n.parquet")
        read = pd.read_parquet("n.parquet").n.sum()
        with sqlite3.connect("n.db") as db: df.to_sql("n", db)
        with tempfile.NamedTemporaryFile("w") as file: file.write("x")
        subprocess.run([sys.executable, "-c", "print(6 * 7)"], check=True)
        with cf.ProcessPoolExecutor(2) as pool: squares = list(pool.map(abs, [-1, 2]))
    """)
    done.raise_for_error()
    assert (desk.session["read"], desk.session["squares"]) == (499_500, [1, 2])


def test_a_trusted_project_is_read_and_settings_open_the_rest(desk: Desk) -> None:
    """Once it is trusted, its files can be read, and its own settings count."""
    rules = desk.project / "cave.toml"
    rules.write_text('file_size = "30 MB"\n[policy]\nenv = ["WAREHOUSE_URL"]\nmemory = "4 GB"\n')
    try:
        with pytest.raises(cave.ConfigError, match="cave skills trust"):
            cave.open("trusted")
        trust.trust(desk.project)
        s = cave.open("trusted")
        s.run("import numpy as np; big = np.arange(10_000_000)").raise_for_error()
        s.run(f"import pandas as pd, os; sales = pd.read_csv('{desk.table}')").raise_for_error()
        s.run("seen = os.environ['WAREHOUSE_URL']").raise_for_error()
        fault = s.run(f"open('{desk.table}', 'w')").error
        assert fault is not None
        assert "cave.Policy(write=" in fault.hint
        fault = s.run("open('long', 'wb').write(bytes(31_000_000))").error
        assert fault is not None
        assert "a file of cells may have 30 MB; allow more with cave.Policy(file_size" in fault.hint
        assert s["seen"] == "sqlite:///warehouse.db"
        s.restart()
        assert s["big"].sum() == sum(range(10_000_000)), "what is longer than a file may be"
        assert "data 4,000,000,000, file 30,000,000" in " ".join(s.kernel.layers)
    finally:
        rules.unlink()
        trust.distrust(desk.project)
