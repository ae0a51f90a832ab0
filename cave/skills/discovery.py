"""Where skills come from besides those that are given.

The weakest first: those that come with cave; installed packages (entry points of the group
`cave.skills`, and `.agents/skills` inside of packages); the user's (`skills` in the home
folder, `~/.agents/skills`); the project's (`.cave/skills`, `.agents/skills`), if the user
trusts it. What is given to a session is the strongest. A stronger one of a name hides the
others, and says so.
"""

from __future__ import annotations

import importlib.metadata
import site
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cave import config
from cave.errors import SkillError
from cave.skills import trust
from cave.skills.folder import FolderSkill
from cave.skills.loading import load, paths_in
from cave.skills.registry import Registry

GROUP = "cave.skills"
"""Entry points of packages that bring skills: what `load` takes."""
AGENTS = Path(".agents/skills")


@dataclass
class Discovery:
    """What was found: the registry, what was left out, and what is broken."""

    registry: Registry = field(default_factory=Registry)
    untrusted: tuple[Path, ...] = ()
    """Folders of skills in a project that the user has not trusted."""
    faults: tuple[str, ...] = ()
    """What could not be loaded, and why; it does not keep the others from being used."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of it, a sentence each."""
        asked = tuple(
            f"{folder} has skills ({', '.join(p.name for p in paths_in(folder))}) that are not "
            f"loaded: look at them, then type: cave skills trust {trust.project(folder.parent)}"
            for folder in self.untrusted
        )
        return (*asked, *self.faults)


def discover(*given: Any, project: Path | None = None) -> Discovery:
    """Find skills everywhere, in the order of this module; `given` are active, the others wait.

    A broken one is among the faults; only what is given raises `SkillError`.
    """
    found = Discovery()
    faults: list[str] = []
    for source, things in _sources(found, project or trust.project()):
        for describe, thing in things:
            try:
                found.registry.add(thing(), source=source, active=False)
            except SkillError as error:
                faults.append(f"{describe}: {error}" if describe else str(error))
    found.faults = tuple(faults)
    found.registry.add(*given, source="given")
    return found


Things = Iterable[tuple[str, Callable[[], Any]]]


def _sources(found: Discovery, project: Path) -> Iterator[tuple[str, Things]]:
    yield "bundled", _folders(bundled())
    yield "installed", [*_entry_points(), *_folders(*_packaged())]
    yield "user", _folders(Path.home() / AGENTS, config.home() / "skills")
    at_home = project == Path.home()  # what is there is the user's, see above
    places = [
        project / place for place in trust.PLACES if not at_home and paths_in(project / place)
    ]
    if places and not trust.trusted(project):
        found.untrusted = tuple(places)
    else:
        yield "project", _folders(*places)


def bundled() -> Path:
    """The skills that come with cave: in the wheel, or in the source tree."""
    package = Path(__file__).parents[1]
    shipped = package / AGENTS
    return shipped if shipped.is_dir() else package.parent / "skills"


def _folders(*folders: Path) -> Things:
    return [("", partial(FolderSkill.at, path)) for folder in folders for path in paths_in(folder)]


def _entry_points() -> Iterator[tuple[str, Callable[[], Any]]]:
    for point in importlib.metadata.entry_points(group=GROUP):
        yield f"entry point {point.name!r}", partial(_loaded, point)


def _loaded(point: importlib.metadata.EntryPoint) -> Any:
    try:
        return load(point.load())
    except SkillError:
        raise
    except Exception as error:
        raise SkillError(
            f"{point.value!r} raised {type(error).__name__}: {error}; mend or uninstall the package"
        ) from error


def _packaged() -> list[Path]:
    """`.agents/skills` in the packages of this environment, except in cave itself."""
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if site.ENABLE_USER_SITE:
        places.add(site.getusersitepackages())
    return [
        package / AGENTS
        for place in sorted(Path(p) for p in places if p)
        if place.is_dir()
        for package in sorted(place.iterdir())
        if package.name != "cave" and (package / AGENTS).is_dir()
    ]
