"""`load`: skills from what a person names: an object, a module, a folder, a package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

from cave.errors import SkillError
from cave.skills.declared import Skill, skill
from cave.skills.folder import FolderSkill
from cave.skills.frontmatter import FILE

Entry = Skill | FolderSkill


def load(*things: Any) -> list[Entry]:
    """The skills that `things` are or hold, in their order.

    A thing is a Skill, a plain function (it becomes a skill), a FolderSkill, a module, the path
    of a skill's folder, of a folder of such folders or of a Python file, the name of an
    importable module or package, or a list of these. Raises `SkillError` naming what cannot be
    loaded, and why.
    """
    return [entry for thing in things for entry in _of(thing)]


def _of(thing: Any) -> list[Entry]:
    match thing:
        case Skill() | FolderSkill():
            return [thing]
        case types.FunctionType():
            return [skill(thing)]
        case types.ModuleType():
            return _of_module(thing)
        case Path():
            return _of_path(thing.expanduser())
        case str():
            return _of_text(thing)
        case list() | tuple() | set() | frozenset():
            return load(*thing)
        case _ if hasattr(thing, "__iter__"):
            return load(*thing)
        case _:
            raise SkillError(
                f"{thing!r} is not a skill; give a function, a module, a folder with a {FILE}, or "
                f"the name of a package"
            )


def _of_text(text: str) -> list[Entry]:
    """A path where it looks like one or is there; else the name of a module."""
    path = Path(text).expanduser()
    named = text.isidentifier() or all(part.isidentifier() for part in text.split("."))
    if not named or (path.is_dir() and (path / FILE).is_file()):
        return _of_path(path)
    try:
        module = importlib.import_module(text)
    except ModuleNotFoundError as error:
        if error.name is not None and not text.startswith(error.name):
            raise _unimportable(text, error) from error
        if path.exists():
            return _of_path(path)
        raise SkillError(
            f"there is no module and no folder {text!r}; give the path of a folder with a {FILE}, "
            f"or install the package"
        ) from error
    except Exception as error:
        raise _unimportable(text, error) from error
    return _of_module(module)


def _unimportable(name: str, error: Exception) -> SkillError:
    if isinstance(error, SkillError):
        return error
    return SkillError(
        f"module {name!r} cannot be imported: {type(error).__name__}: {error}; mend it first"
    )


def _of_module(module: types.ModuleType) -> list[Entry]:
    """The skills that a module holds, and the folders of skills that its package ships."""
    found: list[Entry] = []
    for value in vars(module).values():
        if isinstance(value, Skill) and value not in found:
            found.append(value)
    for place in getattr(module, "__path__", ()):
        found += folders_in(Path(place) / ".agents" / "skills")
    if not found:
        raise SkillError(
            f"module {module.__name__!r} has no skills; decorate a function with @cave.skill"
        )
    return found


def _of_path(path: Path) -> list[Entry]:
    if (path / FILE).is_file():
        return [FolderSkill.at(path)]
    if path.suffix == ".py" and path.is_file():
        return _of_file(path.absolute())
    if not path.is_dir():
        raise SkillError(f"there is no folder {str(path)!r}; look at the path")
    found = folders_in(path)
    if not found:
        raise SkillError(
            f"folder {str(path)!r} has no {FILE}, nor has one below it; every skill has one"
        )
    return found


def _of_file(path: Path) -> list[Entry]:
    """The skills of a Python file that is on no import path."""
    name = f"cave_skills_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SkillError(f"{str(path)!r} cannot be imported; give a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        found = _of_module(module)
        for entry in found:
            if isinstance(entry, Skill):
                entry.check()
    except Exception as error:
        raise _unimportable(str(path), error) from error
    finally:
        del sys.modules[name]
    return found


def folders_in(folder: Path) -> list[Entry]:
    """The skills of the folders in `folder`, by name. Raises `SkillError`."""
    return [FolderSkill.at(found) for found in paths_in(folder)]


def paths_in(folder: Path) -> list[Path]:
    """The folders in `folder` that have a SKILL.md."""
    if not folder.is_dir():
        return []
    return [found for found in sorted(folder.iterdir()) if (found / FILE).is_file()]
