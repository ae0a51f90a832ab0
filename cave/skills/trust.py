"""Which projects may bring skills: folders that the user has said yes to, in a file of the home.

Skills are code and instructions. A project that was cloned a minute ago must not run any
before its user has looked at it, so its skills are named, and not loaded.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from cave import config
from cave.errors import ConfigError

FILE = "trusted.json"
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
    return str(folder.resolve()) in _read()


def trust(folder: str | Path) -> Path:
    """Let the project in `folder` bring skills; gives its whole path. Raises `ConfigError`."""
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(f"there is no folder {str(path)!r} to trust; look at the path")
    _write(sorted({*_read(), str(path)}))
    return path


def distrust(folder: str | Path) -> Path:
    """Take it back. Raises `ConfigError`."""
    path = Path(folder).expanduser().resolve()
    _write([known for known in _read() if known != str(path)])
    return path


def _read() -> list[str]:
    file = config.home() / FILE
    try:
        folders = json.loads(file.read_text(encoding="utf-8"))["folders"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); mend it or move it away") from error
    if not isinstance(folders, list) or not all(isinstance(path, str) for path in folders):
        raise ConfigError(f"{file}: 'folders' is not a list of paths; mend it or move it away")
    return folders


def _write(folders: list[str]) -> None:
    file = config.home() / FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
            json.dump({"format": 1, "folders": folders}, new, indent=1)
            new.flush()
            os.fsync(new.fileno())
        Path(new.name).replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error
