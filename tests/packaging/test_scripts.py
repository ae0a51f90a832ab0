"""The scripts' search for a Python that works, on machines that are made up here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "cksum", "dirname", "id")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs that is all of PATH, with no Python in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    return folder


def add(machine: Path, name: str, body: str) -> Path:
    program = machine / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def add_python(machine: Path, name: str) -> Path:
    """This interpreter; the environments that it makes have no pip, which takes seconds."""
    bare = f'case "$*" in "-m venv"*) exec "{sys.executable}" -m venv --without-pip .venv;; esac'
    return add(machine, name, f'{bare}; exec "{sys.executable}" "$@"')


def add_python_without_venv(machine: Path, name: str) -> Path:
    """As Debian's, when its package of venv is not installed."""
    return add(
        machine, name, f'case "$*" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"'
    )


def shell(machine: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"source '{ROOT}/scripts/_env.sh'; cd '{machine}'; {code}"],
        env={"PATH": str(machine), "HOME": str(machine)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_newest_python_comes_first(machine: Path) -> None:
    """3.13 is taken before 3.12, 3.12 before 3.11, 3.11 before plain python3."""
    found = []
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        add_python(machine, name)
        found.append(Path(shell(machine, "find_python has_venv").stdout.strip()).name)
    assert found == ["python3", "python3.11", "python3.12", "python3.13"]


def test_a_shim_that_does_not_run_is_passed_over(machine: Path) -> None:
    """A name on PATH counts only when the program behind it runs."""
    add(machine, "python3.13", "echo 'command not found' >&2; exit 127")
    good = add_python(machine, "python3.11")
    assert shell(machine, "find_python has_venv").stdout.strip() == str(good)


def test_a_python_that_is_too_old_is_passed_over(machine: Path) -> None:
    """`python3` counts only when it is one of the versions that cave runs on."""
    add(machine, "python3", "exit 1")
    assert shell(machine, "find_python has_venv").returncode == 1


def test_without_venv_it_says_what_to_type(machine: Path) -> None:
    """An ordinary user whose Python has no venv is given the name of the package."""
    add_python_without_venv(machine, "python3")
    (machine / "id").unlink()
    add(machine, "id", "echo 1000")
    add(machine, "apt-get", "exit 1")
    said = shell(machine, "make_venv")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    assert said.returncode == 1
    assert f"sudo apt-get install {version}" in said.stderr


def test_root_gets_the_missing_package(machine: Path) -> None:
    """As root on Debian the package is installed and the environment is made."""
    python = add_python_without_venv(machine, "python3")
    (machine / "id").unlink()
    add(machine, "id", "echo 0")
    whole = add_python(machine, "whole").rename(machine / "whole.txt")
    (machine / "cp").symlink_to(shutil.which("cp") or "cp")
    add(machine, "apt-get", f'case "$*" in *-venv) cp "{whole}" "{python}";; esac')
    said = shell(machine, "make_venv")
    assert said.returncode == 0, said.stderr
    assert os.access(machine / ".venv" / "bin" / "python", os.X_OK)


def test_uv_is_the_last_resort(machine: Path) -> None:
    """Without a Python that fits, uv is asked for one."""
    add(machine, "uv", 'echo "uv $*"')
    made = shell(machine, "make_venv")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("uv venv ")
