"""The layers of the package, and what `import cave` costs."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    "IPython",
    "alembic",
    "anthropic",
    "httpx2",
    "ipykernel",
    "jupyter_client",
    "numpy",
    "openai",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "sqlalchemy",
    "zmq",
}
OWNERS = {
    "anthropic": {"operators"},
    "openai": {"operators"},
    "xllamacpp": {"operators"},
    "jupyter_client": {"kernel", "inkernel"},
    "zmq": {"kernel", "inkernel"},
    "sqlalchemy": {"store"},
    "alembic": {"store"},
}
RUNS = 3


def test_imports_follow_the_layers() -> None:
    """Arrows point down, and SDKs, zmq and SQLAlchemy are imported by their owners only."""
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_what_runs_in_the_kernel_never_imports_cave() -> None:
    """`cave.inkernel` runs in environments that do not have cave, so it must not need it."""
    folder = ROOT / "cave" / "inkernel"
    files = sorted(folder.rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in files
        for line, name in imports_of(file, depth=len(file.relative_to(folder).parts))
        if name.split(".")[0] in {"cave", "<above>"}
    ]
    assert not wrong


def test_imports_by_name_follow_the_same_rule() -> None:
    """`import_module("anthropic")`, which import-linter cannot see, stays with its owner too."""
    wrong = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in sorted((ROOT / "cave").rglob("*.py"))
        for line, name in imports_by_name(file)
        if (owners := OWNERS.get(name.split(".")[0]))
        and file.relative_to(ROOT / "cave").parts[0] not in owners
    ]
    assert not wrong


def imports_by_name(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of each call of `import_module` or `__import__` with a literal name."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=[first, *_]):
                if called in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                    yield node.lineno, str(first.value)


def imports_of(file: Path, *, depth: int) -> Iterator[tuple[int, str]]:
    """Line and module of each import; `<above>` for a relative one that leaves the folder."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, level=level):
                yield node.lineno, "<above>" if level > depth else (module or ".")


def test_import_loads_nothing_heavy() -> None:
    """`import cave` loads no SDK, no pandas, no zmq, no SQLAlchemy: they load at first use."""
    code = f"import sys, cave; print(*sorted({HEAVY!r} & set(sys.modules)))"
    assert run_python(code).stdout.split() == []


@pytest.mark.timeout(240)
def test_import_is_cheap() -> None:
    """`import cave` costs less than the smallest of what it puts off, pydantic, would alone."""
    run_python("import cave")
    bare, ours, put_off = (
        min(cpu_of(code) for _ in range(RUNS))
        for code in ("pass", "import cave", "import pydantic, pydantic.main")
    )
    assert ours - bare < put_off - bare, import_times()


def test_import_is_small() -> None:
    """A process that has imported cave takes less than 60 MB."""
    code = "import cave, psutil; print(psutil.Process().memory_info().rss)"
    assert int(run_python(code).stdout) < 60e6


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def cpu_of(code: str) -> float:
    """Seconds of CPU, user and system, of a fresh interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_python(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def import_times() -> str:
    """The ten most expensive imports, as `-X importtime` has them."""
    lines = run_python("import cave", "-X", "importtime").stderr.splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in lines if "|" in line]
    timed = [(int(own), name.strip()) for own, _, name in rows if own.strip().isdigit()]
    return ", ".join(f"{name} {own / 1000:.0f} ms" for own, name in sorted(timed)[-10:])
