"""`FolderSkill`: an Agent Skill in a folder; its page is read first, its scripts when wanted."""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cave.errors import SkillError
from cave.skills import frontmatter
from cave.skills.declared import Skill
from cave.skills.frontmatter import Fault, Page

SCRIPTS = "scripts"
_LOADING = threading.RLock()


@dataclass
class FolderSkill:
    """A skill with instructions, files, and functions that cells may call.

    Only the front matter is read at first: the catalogue needs no more. `text` is what
    `use_skill` shows, and `functions` runs the scripts, once.
    """

    folder: Path
    page: Page
    _functions: tuple[Skill, ...] | None = field(default=None, repr=False)

    @classmethod
    def at(cls, folder: str | Path) -> FolderSkill:
        """The skill of a folder. Raises `SkillError` naming the file and the field."""
        path = Path(folder).expanduser().absolute()
        return cls(path, frontmatter.page(path))

    @property
    def name(self) -> str:
        return self.page.name

    @property
    def description(self) -> str:
        return self.page.description

    @property
    def version(self) -> str:
        return self.page.version

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def body(self) -> str:
        """The instructions."""
        return self.page.body

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the folder besides SKILL.md, by relative path."""
        return tuple(
            path.relative_to(self.folder).as_posix()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != frontmatter.FILE and not _hidden(path, self.folder)
        )

    @property
    def scripts(self) -> tuple[Path, ...]:
        """The Python files of `scripts/`."""
        return tuple(sorted((self.folder / SCRIPTS).glob("*.py")))

    @property
    def offers(self) -> tuple[str, ...]:
        """Names of the functions in the scripts that are skills, told without running them."""
        return tuple(name for script in self.scripts for name in _decorated(script))

    @property
    def functions(self) -> tuple[Skill, ...]:
        """The skills of the scripts. Raises `SkillError` naming the script that fails."""
        if self._functions is None:
            self._functions = tuple(self._run_all())
        return self._functions

    @property
    def text(self) -> str:
        """What an operator reads when it uses the skill: instructions, functions, files."""
        parts = [f"# Skill {self.name} ({self.folder})", self.body]
        if self.functions:
            parts.append("## Functions\n" + "\n".join(_line(skill) for skill in self.functions))
        if others := [file for file in self.files if not file.startswith(f"{SCRIPTS}/")]:
            parts.append("## Files\n" + "\n".join(f"- {file}" for file in others))
        return "\n\n".join(part for part in parts if part)

    def _run_all(self) -> Iterator[Skill]:
        seen: dict[str, Skill] = {}
        for script in self.scripts:
            for found in self.run(script):
                if (other := seen.setdefault(found.name, found)) is not found:
                    raise SkillError(
                        f"{found.where}: skill {self.name!r} has two functions {found.name!r}; the "
                        f"other is at {other.where}; rename one of them"
                    )
                yield found

    def run(self, script: Path) -> list[Skill]:
        """The skills of one script, run in a namespace of its own: what it defines goes by value.

        Raises `SkillError` naming the line that failed.
        """
        title = f"{self.name.replace('-', '_')}.{script.stem}"
        module = types.ModuleType(title)
        module.__file__ = str(script)
        linecache.checkcache(str(script))
        try:
            code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
            with _importable(script.parent, module):
                exec(code, module.__dict__)  # noqa: S102 -- running scripts is what skills are for
                found = [v for v in vars(module).values() if isinstance(v, Skill)]
                own = [s for s in found if s.function.__globals__ is module.__dict__]
                for skill in own:
                    skill.check()
        except SkillError:
            raise
        except Exception as error:
            raise SkillError(
                f"{_place(error, script)}: skill {self.name!r}: the script raised "
                f"{type(error).__name__}: {error}; mend it, or move it out of {SCRIPTS}/"
            ) from error
        return own


def check(folder: Path) -> list[Fault]:
    """Every fault of a skill's folder: its page, its scripts, and the files that it refers to."""
    page, faults = frontmatter.read(folder)
    if page is None and not (folder / frontmatter.FILE).is_file():
        return faults
    made = FolderSkill(folder.absolute(), page or Page(folder.name, "", ""))
    names: dict[str, Skill] = {}
    for script in made.scripts:
        try:
            for found in made.run(script):
                other = names.setdefault(found.name, found)
                if other is not found:
                    faults.append(Fault(script, found.name, f"also in {other.where}", "rename one"))
                if not found.description:
                    hint = "say in it what it does and when to use it"
                    faults.append(Fault(script, found.name, "it has no docstring", hint))
        except SkillError as error:
            faults.append(_script_fault(script, error))
    return faults


def _script_fault(script: Path, error: SkillError) -> Fault:
    problem, _, hint = str(error).rpartition("; ")
    return Fault(script, "script", problem or str(error), hint or "mend it")


@contextmanager
def _importable(folder: Path, module: types.ModuleType) -> Iterator[None]:
    """While a script runs: its neighbours can be imported, and its own names be looked up.

    Afterwards neither is left in `sys.modules`, where scripts of other skills would find them.
    """
    with _LOADING:
        before = set(sys.modules)
        sys.path.insert(0, str(folder))
        sys.modules[module.__name__] = module
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            for name in set(sys.modules) - before:
                file = getattr(sys.modules[name], "__file__", None)
                if name == module.__name__ or (file and Path(file).is_relative_to(folder)):
                    del sys.modules[name]


def _place(error: BaseException, script: Path) -> str:
    """The script, with the line that failed."""
    if isinstance(error, builtins.SyntaxError) and error.lineno:
        return f"{script}:{error.lineno}"
    line, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(script):
            line = step.tb_lineno
        step = step.tb_next
    return f"{script}:{line}" if line else str(script)


def _hidden(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return any(part.startswith(".") or part == "__pycache__" for part in parts)


def _decorated(script: Path) -> Iterator[str]:
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                call = decorator.func if isinstance(decorator, ast.Call) else decorator
                if (getattr(call, "attr", None) or getattr(call, "id", None)) == "skill":
                    yield _given_name(decorator) or node.name


def _given_name(decorator: Any) -> str | None:
    for keyword in getattr(decorator, "keywords", ()):
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None


def _line(skill: Skill) -> str:
    first = skill.description.partition("\n\n")[0].replace("\n", " ")
    return f"- `{skill.signature}`: {first}" if first else f"- `{skill.signature}`"
