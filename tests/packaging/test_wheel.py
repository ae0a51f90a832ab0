"""The wheel: what is in it, and that it works in an environment that knows nothing of the repo."""

from __future__ import annotations

import email
import json
import os
import shlex
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pexpect
import pytest
from packaging.requirements import Requirement

import cave

ROOT = Path(__file__).parents[2]
DATA = "cave_runtime-0.1.0.data"
EXTRAS = {"all", "charts", "excel", "local", "openai", "pdf"}
INFO = "cave_runtime-0.1.0.dist-info"
KERNELSPEC = f"{DATA}/data/share/jupyter/kernels/cave-python"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """The files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def test_cave_is_the_only_name(names: set[str]) -> None:
    """The wheel puts one importable name into site-packages."""
    assert {name.split("/")[0] for name in names} == {"cave", INFO, DATA}


def test_every_file_of_the_package_ships(names: set[str]) -> None:
    """Data files and migrations come along: what is in the folder is in the wheel."""
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "cave").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here - names == set()
    assert {"cave/py.typed", "cave/demo/data/flights.csv"} <= names


def test_skills_ship_where_tools_look_for_them(names: set[str]) -> None:
    """The folder `skills` is `cave/.agents/skills` in the wheel."""
    here = {
        f"cave/.agents/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "skills").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here
    assert here <= names


def test_kernelspec_ships_with_its_logos(wheel: Path, names: set[str]) -> None:
    """Jupyter finds a kernelspec that it can start by itself in any environment."""
    files = ("kernel.json", "logo-svg.svg", "logo-32x32.png", "logo-64x64.png")
    assert {f"{KERNELSPEC}/{file}" for file in files} <= names
    spec = json.loads(read(wheel, f"{KERNELSPEC}/kernel.json"))
    assert spec["argv"] == ["python", "-m", "cave.inkernel", "-f", "{connection_file}"]
    assert spec["language"] == "python"
    assert spec["metadata"]["cave"]["profile"] == "open"


def test_metadata_names_what_is_needed(wheel: Path) -> None:
    """Extras are exactly those that exist, and what an extra brings is no base dependency."""
    metadata = email.message_from_string(read(wheel, f"{INFO}/METADATA"))
    assert metadata["Name"] == "cave-runtime"
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    base = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    of_extras = ("altair", "matplotlib", "openai", "openpyxl", "pypdf", "xllamacpp", "pytest")
    assert not [r for r in base if r.startswith(of_extras)]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment outside the repo with the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    link_what_it_needs(wheel, site_packages(folder))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    done = subprocess.run(
        [*pip, "--quiet", "--no-index", "--no-deps", str(wheel)],
        cwd=folder,
        env=clean_environment(folder),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return folder / "bin"


def site_packages(environment: Path) -> Path:
    [folder] = environment.glob("lib/python*/site-packages")
    return folder


def link_what_it_needs(wheel: Path, folder: Path) -> None:
    """Link there, out of this environment, what the wheel's metadata name and what that needs."""
    metadata = email.message_from_string(read(wheel, f"{INFO}/METADATA"))
    for needed in needed_by(metadata.get_all("Requires-Dist", [])):
        here = Path(str(needed.locate_file("")))
        for name in {file.parts[0] for file in needed.files or []} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(here / name)


def needed_by(requirements: Sequence[str]) -> list[Distribution]:
    """The distributions that these ask for, directly or not, in the versions that are here."""
    found: dict[tuple[str, str], Distribution] = {}
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        one = distribution(wanted.name)
        assert wanted.specifier.contains(one.version, prereleases=True), wanted
        for part in ("", *wanted.extras):
            if (wanted.name, part) not in found:
                found[wanted.name, part] = one
                waiting += [(Requirement(text), part) for text in one.requires or []]
    return list(found.values())


def clean_environment(home: Path) -> dict[str, str]:
    """Nothing of this environment or of the repo; every home folder is `home`."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "LANG", "LC_", "TMP"))}
    return kept | {"PATH": os.defpath, "HOME": str(home), "CAVE_HOME": str(home)}


def run(bin_folder: Path, home: Path, program: str, *args: str) -> str:
    """Runs an installed program in `home`; its output, or a failure that shows it all."""
    env = clean_environment(home)
    env["PATH"] = f"{bin_folder}{os.pathsep}{env['PATH']}"
    command = [str(bin_folder / program), *args]
    done = subprocess.run(
        command, cwd=home, env=env, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_doctor_runs_outside_the_repo(installed: Path, home: Path) -> None:
    """`cave doctor` has something to say in an environment that has only the wheel."""
    assert run(installed, home, "cave", "doctor").strip()


def test_bundled_skills_are_found_outside_the_repo(installed: Path, home: Path) -> None:
    """`cave skills list` finds those in the wheel, and `show` reads one."""
    rows = json.loads(run(installed, home, "cave", "skills", "list", "--json"))
    assert {row["name"] for row in rows if row["source"] == "bundled"} == {
        "charts",
        "dataframes",
        "files",
        "reconcile",
        "sql",
    }
    assert "match_tables" in run(installed, home, "cave", "skills", "show", "reconcile")


def test_demo_runs_outside_the_repo(installed: Path, home: Path, sessions: None) -> None:
    """`cave demo` works on the data in the wheel, with no key and no model: it says that it is
    scripted, repairs an error, and leaves no session behind. At a terminal, which stdout and
    stderr are alike, each cell stands there once; NO_COLOR is heard."""
    env = clean_environment(home) | {"TERM": "xterm", "NO_COLOR": "1"}
    told, code = pexpect.run(
        shlex.join([str(installed / "cave"), "demo"]),
        cwd=str(home), env=env, encoding="utf-8", timeout=240, withexitstatus=True,
    )  # fmt: skip
    assert code == 0, told
    assert "\x1b" not in told
    assert "scripted operator" in told
    assert "KeyError" in told
    assert "late = session['late']" in told
    assert told.count("late = late.merge(") == 1
    assert "flights (" in told
    assert cave.sessions() == []


def test_jupyter_lists_our_kernel(installed: Path, home: Path) -> None:
    """The list of `jupyter kernelspec` shows the kernelspec of this very environment."""
    lists = ("-m", "jupyter_client.kernelspecapp", "list", "--json")
    listed = json.loads(run(installed, home, "python", *lists))
    folder = Path(listed["kernelspecs"]["cave-python"]["resource_dir"])
    assert folder == installed.parent / "share" / "jupyter" / "kernels" / "cave-python"


AS_JUPYTER_DOES = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=60, kernel_name="cave-python")
try:
    client.execute_interactive("print(6 * 7)", timeout=60)
finally:
    client.stop_channels()
    manager.shutdown_kernel()
"""


def test_jupyter_starts_our_kernel_by_itself(installed: Path, home: Path) -> None:
    """Started from the kernelspec by Jupyter, without a session, it is an ordinary kernel."""
    assert run(installed, home, "python", "-c", AS_JUPYTER_DOES).split() == ["42"]
