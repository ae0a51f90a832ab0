"""What every confined kernel may read: its interpreter with its packages, and the system's own.

Of `/etc` only what programs need to run: no host names, no services, no passwords.
"""

from __future__ import annotations

import functools
import json
import os
import site
import subprocess
import sys
from pathlib import Path

from cave.errors import KernelStartError

_INKERNEL = Path(__file__).resolve().parent.parent / "inkernel"
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store",
    "/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/magic", "/etc/matplotlibrc", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/pki/tls", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/timezone", "/etc/xattr.conf",
    "/proc", "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm",
    "/System", "/Library",
)  # fmt: skip
_DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm",  # noqa: S108
    "/dev/ptmx", "/dev/pts", "/dev/tty",
)  # fmt: skip
_ASK = """
import json, os, site, sys
found = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.realpath(sys.executable), *sys.path]
for finder in sys.meta_path:
    home = sys.modules.get(getattr(finder, "__module__", ""))
    mapping = getattr(home, "MAPPING", None)
    if isinstance(mapping, dict):
        found += map(str, mapping.values())
print(json.dumps(found))
"""


def of_system() -> list[str]:
    """Libraries, programs, time zones, fonts, certificates; facts of processes and machine."""
    return [path for path in _SYSTEM if os.path.exists(path)]


def devices() -> list[str]:
    """Those that ordinary programs use."""
    return [path for path in _DEVICES if os.path.exists(path)]


def of_python(python: str) -> list[str]:
    """An interpreter, its standard library and packages, also those that are installed to be
    edited. Raises `KernelStartError` when it cannot be started."""
    found = _ours() if python == sys.executable else _asked(python)
    return [*dict.fromkeys(path for path in found if os.path.isabs(path)), str(_INKERNEL)]


def _ours() -> list[str]:
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.realpath(sys.executable), *sites]
    for folder in map(Path, sites):
        found += [*_pointed(folder), *_linked(folder)]
    for finder in sys.meta_path:
        home = sys.modules.get(getattr(finder, "__module__", ""))
        mapping = getattr(home, "MAPPING", None)
        if isinstance(mapping, dict):  # an editable install of setuptools
            found += map(str, mapping.values())
    return found


def _pointed(folder: Path) -> list[str]:
    """Folders that `.pth` files add to the path."""
    found = []
    for file in folder.glob("*.pth"):
        try:
            lines = file.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        found += [str(folder / line.strip()) for line in lines if not line.startswith("import")]
    return [path for path in found if os.path.isdir(path) and path != str(folder)]


def _linked(folder: Path) -> list[str]:
    """What links among packages lead to: some installers keep the packages elsewhere."""
    if folder.name not in {"site-packages", "dist-packages"}:
        return []
    try:
        with os.scandir(folder) as entries:
            return [os.path.realpath(entry) for entry in entries if entry.is_symlink()]
    except OSError:
        return []


@functools.lru_cache(maxsize=16)
def _asked(python: str) -> list[str]:
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, cwd="/", check=False, timeout=60
        )
    except OSError as exc:
        raise KernelStartError(f"cannot start {python!r}: {exc}") from exc
    if done.returncode != 0:
        raise KernelStartError(f"{python!r} does not run: {done.stderr.strip()[-1000:]}")
    told = [str(path) for path in json.loads(done.stdout)]
    return [*told, *(link for path in told for link in _linked(Path(path)))]
