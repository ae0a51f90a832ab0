"""Files that cells wrote, taken out of a session's workdir without following links.

What lies in the workdir was made by code that is not trusted: a link may point anywhere, a
pipe may block. Every component is opened from its folder with O_NOFOLLOW, and only regular
files are read.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path, PurePosixPath

from cave.errors import ConfigError, StoreError


def files(workdir: Path) -> tuple[str, ...]:
    """Regular files below `workdir` as relative paths with '/', sorted."""
    found: list[str] = []
    for folder, folders, names in os.walk(workdir, followlinks=False):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and stat.S_ISREG(path.lstat().st_mode):
                found.append(path.relative_to(workdir).as_posix())
    return tuple(sorted(found))


def save(workdir: Path, name: str, to: str | Path) -> Path:
    """Copy one file to a path, or into a folder (made if `to` ends with '/').

    Raises `ConfigError` for a name that is no regular file of the workdir, `StoreError` when
    it cannot be written.
    """
    source = PurePosixPath(name)
    if source.is_absolute() or ".." in source.parts or not source.parts:
        raise ConfigError(f"{name!r} is not a path inside the session's workdir")
    into_folder = Path(to).is_dir() or str(to).endswith("/")
    target = Path(to) / source.name if into_folder else Path(to)
    with os.fdopen(_open(workdir, source), "rb") as read:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as write:
                shutil.copyfileobj(read, write, 1 << 20)
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    return target


def _open(workdir: Path, source: PurePosixPath) -> int:
    """A descriptor of a regular file, reached without following a link."""
    opened: list[int] = []
    try:
        opened.append(os.open(workdir, os.O_RDONLY | os.O_DIRECTORY))
        for part in source.parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            opened.append(os.open(part, flags, dir_fd=opened[-1]))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        opened.append(os.open(source.name, flags, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            raise ConfigError(f"{str(source)!r} is not a regular file; it is not copied")
        return opened.pop()
    except OSError as error:
        raise _refusal(workdir, source, error) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _refusal(workdir: Path, source: PurePosixPath, error: OSError) -> ConfigError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return ConfigError(f"{str(source)!r} is or lies behind a link; links are not followed")
    there = ", ".join(files(workdir)[:10]) or "none"
    return ConfigError(
        f"no file {str(source)!r} in the session ({error.strerror}); there are: {there}"
    )
