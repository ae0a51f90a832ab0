"""Data files of people: read on the host into objects that can be put into a session."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cave import config
from cave.errors import ConfigError

SQLITE = (".sqlite", ".sqlite3", ".db")


def variable_name(path: Path) -> str:
    """A Python name for a file: `Sales 2026.csv` becomes `sales_2026`.

    One that Python needs for itself gets a prefix: `class.csv` and `list.csv` become
    `data_class` and `data_list`.
    """
    name = re.sub(r"\W+", "_", config.normal(path.stem).lower()).strip("_")
    usable = config.bindable(name) and not config.shadows(name)
    return name if usable else f"data_{name}".rstrip("_")


def assignment(text: str) -> tuple[str, Path]:
    """`VAR=FILE` or `FILE` as a name and a path. Raises `ConfigError`."""
    name, separator, file = text.partition("=")
    if not separator:
        path = Path(text).expanduser()
        return variable_name(path), _existing(path)
    name = config.normal(name)
    if not config.bindable(name) or name.startswith("_"):
        raise ConfigError(f"{text!r}: {name!r} cannot be the name of a variable")
    return name, _existing(Path(file).expanduser())


def assignments(items: Sequence[str]) -> list[tuple[str, Path]]:
    """Each of `items` as a name and a path. Raises `ConfigError`, also for a name used twice."""
    found: dict[str, Path] = {}
    for item in items:
        name, path = assignment(item)
        if name in found:
            raise ConfigError(
                f"{str(found[name])!r} and {str(path)!r} would both be {name!r}; "
                f"name one of them: VAR={path}"
            )
        found[name] = path
    return list(found.items())


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"no file {str(path)!r}; look at the path or give the whole one")
    return path


def read(path: Path) -> Any:
    """The object in a csv, tsv, parquet, json or xlsx file; xlsx gives a frame for each sheet.

    Raises `ConfigError` naming the file for one that is missing or is not what it is called.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join([*_READERS, *SQLITE])
        raise ConfigError(f"{path.name!r}: cave reads files that end with {known}")
    try:
        return reader(_existing(path))
    except ImportError as error:
        raise _unequipped(path, error) from error
    except (ValueError, OSError, ArithmeticError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path.name!r} cannot be read as {path.suffix[1:]}: {reason}") from error


def _unequipped(path: Path, error: ImportError) -> ConfigError:
    needs = error.name or "openpyxl"  # pandas does not name the package it misses
    return ConfigError(f"{path.name!r} needs {needs}; type: pip install 'cave-runtime[excel]'")


def _csv(path: Path) -> Any:
    import pandas as pd

    head = path.read_bytes()[:65536] if path.stat().st_size < 65536 else _head(path)
    if b"\0" in head:
        raise ValueError("it holds binary data, not text")
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    return pd.read_csv(path, sep=separator)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(65536)


def _parquet(path: Path) -> Any:
    import pandas as pd

    return pd.read_parquet(path)


def _json(path: Path) -> Any:
    import pandas as pd

    value = json.loads(path.read_text(encoding="utf-8"))
    rows = isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
    return pd.DataFrame(value) if rows else value


def _excel(path: Path) -> Any:
    import zipfile

    import pandas as pd

    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an Excel workbook")
    return pd.read_excel(path, sheet_name=None)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".json": _json,
    ".xlsx": _excel,
}


def copy_sqlite(path: Path, workdir: Path) -> str:
    """A consistent copy of a SQLite file in `workdir`; gives its name there."""
    with path.open("rb") as file:
        if file.read(16) not in (b"SQLite format 3\0", b""):
            raise ConfigError(f"{path.name!r} is not a SQLite database")
    workdir.mkdir(parents=True, exist_ok=True)
    target = workdir / path.name
    try:
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        shutil.copyfile(path, target)
        return target.name
    copy = sqlite3.connect(target)
    try:
        source.backup(copy)
    except sqlite3.Error as error:
        raise ConfigError(f"{path.name!r} cannot be copied: {error}") from error
    finally:
        source.close()
        copy.close()
    return target.name


def load_into(session: Any, items: tuple[str, ...]) -> list[str]:
    """Put `FILE` or `VAR=FILE` items into a session; gives the names that they made."""
    values: dict[str, Any] = {}
    databases: list[tuple[str, Path]] = []
    for name, path in assignments(items):
        if path.suffix.lower() in SQLITE:
            databases.append((name, path))
        else:
            values[name] = read(path)
    if values:
        session.put(**values)
    for name, path in databases:
        file = copy_sqlite(path, session.workdir)
        cell = session.run(f"import sqlite3\n{name} = sqlite3.connect({file!r})")
        cell.raise_for_error()
    return [*values, *(name for name, _ in databases)]


def write(value: Any, path: Path) -> None:
    """An object to a file by its suffix: csv, tsv, parquet, json, xlsx, npy, txt.

    Raises `ConfigError` when the object does not fit the format.
    """
    suffix = path.suffix.lower()
    frame = getattr(value, "to_frame", None)
    table = value if hasattr(value, "to_csv") and hasattr(value, "to_parquet") else None
    if table is None and frame is not None:
        table = frame()
    try:
        match suffix:
            case ".csv" | ".tsv" if table is not None:
                separator = "\t" if suffix == ".tsv" else ","
                table.to_csv(path, sep=separator, index=_has_index(table))
            case ".parquet" if table is not None:
                table.to_parquet(path)
            case ".xlsx" if table is not None:
                table.to_excel(path, index=_has_index(table))
            case ".json" if table is not None:
                table.to_json(path, orient="records", date_format="iso", indent=1)
            case ".json":
                path.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
            case ".npy" if hasattr(value, "dtype"):
                import numpy as np

                np.save(path, value, allow_pickle=False)
            case ".txt":
                path.write_text(f"{value}\n", encoding="utf-8")
            case _:
                raise ConfigError(
                    f"a {type(value).__name__} cannot be written to {path.name!r}; "
                    f"tables: .csv .tsv .parquet .xlsx .json, arrays: .npy, others: .json .txt"
                )
    except ImportError as error:
        raise _unequipped(path, error) from error
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{str(path)!r} cannot be written: {error}") from error


def _has_index(table: Any) -> bool:
    return type(table.index).__name__ != "RangeIndex"
