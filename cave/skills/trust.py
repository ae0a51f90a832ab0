"""Which projects are trusted: folders that the user has said yes to, in a file of the home.

Skills are code and instructions. A project that was cloned a minute ago must not run any
before its user has looked at it, so its skills are named, and not loaded. What is in a
trusted project can be read by confined cells.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from cave import config
from cave.errors import ConfigError

ROOTS = (".cave", ".agents", "cave.toml", "pyproject.toml", ".git")
"""What marks the folder of a project."""
PLACES = (Path(".cave/skills"), Path(".agents/skills"))
"""Where a project keeps skills."""


def project(start: Path | None = None) -> Path:
    """The project that a folder is in: the nearest one above with a mark of one, or itself."""
    folder = (start or Path.cwd()).resolve()
    own = config.home().resolve()
    for candidate in (folder, *folder.parents):
        if candidate != Path.home() and any(
            (candidate / mark).exists() and (candidate / mark).resolve() != own for mark in ROOTS
        ):
            return candidate
    return folder


def trusted(folder: Path) -> bool:
    """Whether the user trusts the project in `folder`. Raises `ConfigError`."""
    return str(folder.resolve()) in config.trusted_folders()


def trust(folder: str | Path) -> Path:
    """Let the project in `folder` bring skills, and cells read it; gives its whole path.
    Raises `ConfigError`."""
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(f"there is no folder {str(path)!r} to trust; look at the path")
    _write(sorted({*config.trusted_folders(), str(path)}))
    return path


def openable(start: Path | None = None) -> Path | None:
    """The project that a folder is in, when cells may read it whole once it is trusted: not one
    that holds the user's home folder, or what cave keeps."""
    folder = project(start)
    private = (Path.home().resolve(), config.home().resolve())
    return None if any(path.is_relative_to(folder) for path in private) else folder


def readable(start: Path | None = None) -> Path | None:
    """The trusted project that a folder is in, when cells may read it. Raises `ConfigError`."""
    folder = openable(start)
    return folder if folder is not None and trusted(folder) else None


def distrust(folder: str | Path) -> Path:
    """Take it back. Raises `ConfigError`."""
    path = Path(folder).expanduser().resolve()
    _write([known for known in config.trusted_folders() if known != str(path)])
    return path


def _write(folders: list[str]) -> None:
    file = config.home() / config.TRUSTED
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
            json.dump({"format": 1, "folders": folders}, new, indent=1)
            new.flush()
            os.fsync(new.fileno())
        Path(new.name).replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error
