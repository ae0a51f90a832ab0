"""Settings, and how a session acts in this process.

A setting comes from, in this order: the call, the `CAVE_*` environment, `[tool.cave]` of
the nearest pyproject.toml or a `cave.toml` beside it, the user's `config.toml`, the default.
`CAVE_HOME` moves everything that cave keeps.
"""

from __future__ import annotations

import builtins
import json
import keyword
import math
import os
import re
import tempfile
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from cave.errors import ConfigError, PutError

if TYPE_CHECKING:
    from cave.policy import Budget, Policy

Persistence = Literal["live", "snapshot", "hybrid"]
Profile = Literal["open", "confined"]
Tracking = Literal["auto", "hashes"]

TRUSTED = "trusted.json"
"""File of the home that names the projects that the user trusts."""

TABLES = frozenset({"policy"})
"""Tables that stand among the settings and are read by who needs them."""

MEMORY = 3_000_000_000
"""Bytes that a process of a confined kernel may write to, unless a setting says otherwise."""
FILE_SIZE = 256 << 20
"""Bytes of the longest file that its cells may write."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def checked_name(name: object) -> str:
    """`name` when a session may be called so. Raises `ConfigError`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"a session cannot be called {name!r}: use up to 100 letters, digits, '.', '_' "
            f"and '-', not beginning with '.' or '-'"
        )
    return name


KERNELS_OWN = frozenset({"In", "Out", "exit", "quit", "get_ipython"})
"""Names that every kernel has and needs."""


def bindable(name: object) -> bool:
    """Whether a cell can use that name for a variable of its own."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name not in KERNELS_OWN
    )


def shadows(name: str) -> bool:
    """Whether a variable of that name would hide a builtin (`list`, `print`)."""
    return hasattr(builtins, name)


def normal(name: Any) -> Any:
    """A name as Python's compiler writes it (NFKC): what a cell calls it by."""
    return unicodedata.normalize("NFKC", name) if isinstance(name, str) else name


def portable_name(name: str) -> str:
    """The variable that `put` binds for `name`. Raises `PutError`."""
    if name.startswith("_"):
        raise PutError(f"{name!r} cannot be put: names with a leading '_' are the kernel's")
    if name in KERNELS_OWN:
        raise PutError(f"{name!r} cannot be put: the kernel needs that name; choose another")
    if not bindable(normal(name)):
        raise PutError(f"{name!r} cannot be put: a cell could not use it as a name")
    return str(normal(name))


def check_seconds(what: str, seconds: object) -> None:
    """Raises `ConfigError` unless it is None or a number of seconds above 0."""
    if seconds is None:
        return
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < float(str(seconds)) < math.inf:
        raise ConfigError(f"{what} is {seconds!r}, not a number of seconds above 0")


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B?|B)?\s*", re.IGNORECASE)


def size(what: str, value: object) -> int:
    """Bytes of a number or of a text: "8 GB", "512 MiB"; 0 is no limit. Raises `ConfigError`."""
    found = None if isinstance(value, bool) else _SIZE.fullmatch(str(value))
    if found is None:
        raise ConfigError(f"{what} is {value!r}, not a size: write '8 GB', or 0 for no limit")
    step = 1024 if found[3] else 1000
    return int(float(found[1]) * step ** (" KMGT".index(found[2].upper()) if found[2] else 0))


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all sessions of a home folder."""

    model: str | None = None
    """Operator to use where a call names none, as `operator=` spells it."""
    max_retries: int = 2
    """How often the provider's SDK tries again."""
    persistence: Persistence = "hybrid"
    runtime_dir: str | None = None
    """Folder for sockets; must be short and the user's own."""
    idle_timeout: float = 12 * 3600.0
    """Seconds without work after which a kernel ends by itself; 0 means never."""
    profile: Profile = "confined"
    """What cells may do where no policy says it."""
    memory: int = MEMORY
    """Bytes that a process of a confined kernel may write to; 0: no limit."""
    file_size: int = FILE_SIZE
    """Bytes of the longest file that confined cells may write; 0: no limit."""
    snapshot_every: int = 1
    """Cells from one automatic snapshot to the next."""
    retention: int = 100
    """Automatic snapshots that are kept whole; of older ones ever fewer are."""
    tracking: Tracking = "auto"
    """How kernels know which memory changed: `auto` takes pages where the system tells them."""
    warm: bool = False
    """Whether kernels are forked off a process that has imported what they need."""

    @classmethod
    def load(cls, **call: Any) -> Self:
        """Settings of every source. Raises `ConfigError` naming the file and the key."""
        settings = cls()
        for source, values in _sources():
            settings = settings.updated(source, values)
            check_trust(source, [k for k, v in values.items() if k in _OPENING and v != "confined"])
        return settings.updated("the call", {k: v for k, v in call.items() if v is not None})

    def updated(self, source: str, values: Mapping[str, Any]) -> Self:
        """These settings with `values` of `source` over them. Raises `ConfigError`."""
        known = {f.name: f for f in fields(self)}
        checked = {}
        for key, value in values.items():
            if key not in known:
                raise ConfigError(
                    f"{source}: there is no setting {key!r}; settings are {', '.join(known)}"
                )
            checked[key] = _checked(source, key, value)
        return replace(self, **checked)


_OPENING = {"profile", "memory", "file_size"}
"""Settings that a project may not make looser before it is trusted."""

_TRUTHS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}

_CHOICES = {"persistence": Persistence, "profile": Profile, "tracking": Tracking}


def _checked(source: str, key: str, value: Any) -> Any:
    def wrong(expected: str) -> ConfigError:
        return ConfigError(f"{source}: setting {key!r} is {value!r}, not {expected}")

    match key:
        case "memory" | "file_size":
            return size(f"{source}: setting {key!r}", value)
        case "model" | "runtime_dir":
            if value is not None and not isinstance(value, str):
                raise wrong("a text")
            return value or None
        case "warm":
            found = _TRUTHS.get(str(value).lower())
            if found is None:
                raise wrong("true or false")
            return found
        case "max_retries" | "idle_timeout" | "snapshot_every" | "retention":
            try:
                number = float(value) if key == "idle_timeout" else int(value)
            except (TypeError, ValueError):
                raise wrong("a number") from None
            least = 1 if key in {"snapshot_every", "retention"} else 0
            if number < least:
                raise wrong(f"{least} or more")
            return number
        case _:
            allowed = get_args(_CHOICES[key])
            if value not in allowed:
                raise wrong(f"one of {', '.join(map(repr, allowed))}")
            return value


def _sources() -> list[tuple[str, Mapping[str, Any]]]:
    """Every source of settings, the weakest first."""
    sources = [
        (source, {key: value for key, value in values.items() if key not in TABLES})
        for source, values in _files()
    ]
    environment = {
        f.name: os.environ[key]
        for f in fields(Settings)
        if os.environ.get(key := f"CAVE_{f.name.upper()}")
    }
    return [*sources, ("the environment (CAVE_...)", environment)]


def _files(*, project: bool = True) -> list[tuple[str, Mapping[str, Any]]]:
    """The files of settings, the weakest first: the user's, and the nearest project's."""
    files = [_toml(home() / "config.toml", ())]
    for folder in [Path.cwd(), *Path.cwd().parents] if project else ():
        own, shared = folder / "cave.toml", folder / "pyproject.toml"
        if own.is_file() or shared.is_file():
            return [*files, _toml(shared, ("tool", "cave")), _toml(own, ())]
    return files


def tables(name: str, *, project: bool = True) -> list[tuple[str, Mapping[str, Any]]]:
    """That table of every file that has it, the weakest first. Raises `ConfigError`.

    Without `project` only the user's own file is read.
    """
    found = []
    for source, values in _files(project=project):
        table = values.get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"{source}: [{name}] is not a table")
        if table:
            found.append((f"{source} [{name}]", table))
    return found


def trusted_folders() -> list[str]:
    """The folders of projects that the user has trusted. Raises `ConfigError`."""
    file = home() / TRUSTED
    try:
        folders = json.loads(file.read_text(encoding="utf-8"))["folders"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); mend it or move it away") from error
    if not isinstance(folders, list) or not all(isinstance(path, str) for path in folders):
        raise ConfigError(f"{file}: 'folders' is not a list of paths; mend it or move it away")
    return folders


def check_trust(source: str, opening: Sequence[str]) -> None:
    """Raises `ConfigError` where the file of a project that nobody has trusted opens doors."""
    file = Path(source)
    if not opening or not file.is_absolute():
        return
    folder = file.resolve().parent
    own = {home().resolve(), Path.home().resolve()}
    if folder not in own and not any(folder.is_relative_to(path) for path in trusted_folders()):
        raise ConfigError(
            f"{source} says what cells may do ({', '.join(opening)}), and this project is not "
            f"trusted: look at it, then type: cave skills trust {folder}"
        )


def _toml(path: Path, table: tuple[str, ...]) -> tuple[str, Mapping[str, Any]]:
    try:
        values: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return str(path), {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; mend it or move it away") from error
    for key in table:
        values = values.get(key, {})
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}: [{'.'.join(table)}] is not a table")
    return str(path), values


def home() -> Path:
    """Where cave keeps journals, blobs and sessions: `CAVE_HOME`, else the user's data folder."""
    if named := os.environ.get("CAVE_HOME"):
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("cave"))


def runtime_dir(settings: Settings) -> Path:
    """A short folder for sockets, the user's own: unix socket paths end at 108 bytes."""
    if settings.runtime_dir:
        return Path(settings.runtime_dir).expanduser().absolute()
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and len(base) <= 40 and os.access(base, os.W_OK):
        return Path(base) / "cave"
    return Path(tempfile.gettempdir()) / f"cave-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Options:
    """How a session acts in this process; `open` of an open session applies new ones."""

    operator: Any = None
    policy: Policy | None = None
    budget: Budget | None = None
    kernel: str | None = None
    python: str | None = None
    persistence: str | None = None
    wait: float | None = None
    snapshot_every: int | None = None
    seed: str | Path | None = None
    allow_pickle: bool | None = None
    skills: Sequence[Any] | None = None
    resume: str | None = None
    approver: Any = None
    done_when: Any = None

    def __post_init__(self) -> None:
        if self.resume not in {None, "auto", "ask", "never"}:
            raise ConfigError(f"resume is {self.resume!r}, not 'auto', 'ask' or 'never'")
        if self.approver is not None and not callable(self.approver):
            raise ConfigError(
                f"approver is {self.approver!r:.80}, not a function of an approval that gives "
                f"True, False, or None to ask people"
            )
        every: object = self.snapshot_every
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ConfigError(f"snapshot_every is {every!r}, not a number of cells, 1 or more")
        if self.seed is not None and not self.allow_pickle:
            raise ConfigError(
                f"seed={str(self.seed)!r} is a pickle, which runs code when it is read; if you "
                f"trust the file, type allow_pickle=True"
            )

    def over(self, older: Options) -> Options:
        """These options, with `older` where these say nothing."""
        given = {k: v for k in self.__slots__ if (v := getattr(self, k)) is not None}
        return replace(older, **given)
