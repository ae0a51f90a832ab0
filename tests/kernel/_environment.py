"""Makes an environment with a few packages of this one, without asking any index."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path


def make(folder: Path, *names: str, old_ipykernel: bool = False) -> Path:
    """An environment with `names` and what they need; its interpreter."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
    )
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in {path for name in closure(*names) for path in top_level(name)}:
        (site / entry.name).symlink_to(entry)
    if old_ipykernel:
        (site / "ipykernel").unlink()
        (site / "ipykernel").mkdir()
        (site / "ipykernel" / "__init__.py").write_text("__version__ = '6.29.5'\n")
    return folder / "bin" / "python"


def closure(*names: str) -> set[str]:
    """The packages and all that they require without extras."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            todo += [re.split(r"[^\w.-]", n)[0] for n in needed if "extra ==" not in n]
    return found


def top_level(name: str) -> set[Path]:
    """The entries of site-packages that a package brought."""
    files = importlib.metadata.files(name) or []
    tops = {Path(file.locate()).resolve() for file in files if ".." not in file.parts}
    site = Path(str(importlib.metadata.distribution(name).locate_file("."))).resolve()
    return {site / path.relative_to(site).parts[0] for path in tops if path.is_relative_to(site)}
