"""Modules of the user's own files: which source they had, and the data in their globals.

Such a module is imported again at restore. Its functions and classes come from its source;
a note says so when that is another one by then. Its data come from the snapshot, all but
what is a literal in the source and still equal to it. Modules made at run time have no file:
they are definitions (see `definitions`).
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import kinds
from .lost import Lost
from .remarks import remark

SOURCES = "hidden:modules"
"""Root with name, file and hash of each; read before others by nobody, applied with the rest."""
_PREFIX = "module:"
_OF_IMPORT = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_OF_SOURCE = ("typing", "__future__")


@dataclass(slots=True)
class Local:
    """A module from a file of the user's."""

    module: types.ModuleType
    spec: Any
    """Another one after a reload."""
    file: str
    digest: str
    literals: dict[str, Any] = field(default_factory=dict)
    """Globals that the source gives a literal, once."""
    assigned: set[str] = field(default_factory=set)
    """Globals that the source binds."""


class Modules:
    """The local modules that are imported."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._places: set[str] = set()
        self._last: Any = None
        self._locals: dict[str, Local] = {}
        self._sources: tuple[Any, ...] = ()

    def remember(self, path: list[str], cwd: str) -> None:
        """Modules that are there before the first cell are the kernel's."""
        self._known = set(sys.modules)
        self._places = {os.path.realpath(entry) for entry in path if entry} - {
            os.path.realpath(cwd)
        }

    def capture(self) -> dict[str, Any]:
        """Roots of all of them."""
        self._look()
        found: dict[str, Any] = {}
        for name, local in self._locals.items():
            for key, value in data_of(local):
                found[f"{_PREFIX}{name}:{key}"] = value
        if self._locals:
            sources = tuple((name, it.file, it.digest) for name, it in self._locals.items())
            if sources != self._sources:
                self._sources = sources
            found[SOURCES] = self._sources
        return found

    def _look(self) -> None:
        """Learn of modules that are new or reloaded; two comparisons when there are none."""
        newest = next(reversed(sys.modules), "")
        state = len(sys.modules), newest, id(sys.modules.get(newest))
        if state != self._last:
            self._last = state
            self._locals = {n: it for n, it in self._locals.items() if n in sys.modules}
            for name in [name for name in list(sys.modules) if name not in self._known]:
                self._known.add(name)
                if (local := self._local(name)) is not None:
                    self._locals[name] = local
        for name, local in list(self._locals.items()):
            module = sys.modules.get(name)
            if module is not local.module or _space(module).get("__spec__") is not local.spec:
                again = self._local(name)
                if again is None:
                    del self._locals[name]
                    self._known.discard(name)
                else:
                    self._locals[name] = again

    def _local(self, name: str) -> Local | None:
        module: Any = sys.modules.get(name)
        if not kinds.of(module, types.ModuleType) or name == "__main__":
            return None
        space = _space(module)
        file = space.get("__file__")
        if type(file) is not str or not file.endswith(".py") or not self._is_users(file):
            return None
        try:
            with open(file, "rb") as source:
                text = source.read()
            found = Local(module, space.get("__spec__"), file, hashlib.sha256(text).hexdigest())
            _read_source(found, ast.parse(text))
        except (OSError, SyntaxError, ValueError):
            return None
        return found

    def _is_users(self, file: str) -> bool:
        real = os.path.realpath(file)
        if "site-packages" in real or "dist-packages" in real or real.startswith(_STDLIB):
            return False
        try:
            here = [os.getcwd()]
        except OSError:
            here = []
        entries = [os.path.realpath(entry) for entry in sys.path if type(entry) is str]
        places = here + [entry for entry in entries if entry not in self._places]
        return any(real.startswith(place.rstrip(os.sep) + os.sep) for place in places)


_HERE = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
_STDLIB = (os.path.realpath(sysconfig.get_path("stdlib")) + os.sep, _HERE + os.sep)
_modules = Modules()
remember = _modules.remember
capture = _modules.capture


def _space(module: Any) -> dict[str, Any]:
    space: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return space


def _read_source(local: Local, tree: ast.Module) -> None:
    """Which globals the source binds, and which to literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            local.assigned.add(node.id)
        elif isinstance(node, ast.Global):
            local.assigned.update(node.names)
        elif isinstance(node, ast.alias):
            local.assigned.add((node.asname or node.name).partition(".")[0])
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _note_literal(local, name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                _note_literal(local, name, value)


def _note_literal(local: Local, name: str, value: ast.expr) -> None:
    try:
        local.literals[name] = ast.literal_eval(value)
    except ValueError:
        local.literals.pop(name, None)


def data_of(local: Local) -> Iterator[tuple[str, Any]]:
    """Globals of a module that its source alone does not give."""
    for key, value in list(_space(local.module).items()):
        if type(key) is not str or key[:2] == "__" or ":" in key:
            continue
        if kinds.of(value, *_OF_IMPORT) or kinds.module(type(value)) in _OF_SOURCE:
            continue
        if key in local.literals and _same(value, local.literals[key]):
            continue
        yield key, value


def _same(value: Any, literal: Any) -> bool:
    try:
        return type(value) is type(literal) and repr(value) == repr(literal)
    except Exception:
        return False


# -- the way back --------------------------------------------------------------------------------


def apply(loaded: Mapping[str, Any], stay: set[str]) -> list[Any]:
    """Import the modules and set their data; what is neither loaded nor kept is as imported."""
    if SOURCES not in stay:
        _compare(loaded.get(SOURCES))
    for root, value in loaded.items():
        if root.startswith(_PREFIX) and type(value) is not Lost:
            name, _, key = root[len(_PREFIX) :].partition(":")
            if (module := _imported(name)) is not None:
                _space(module)[key] = value
    for root in [root for root in capture() if root.startswith(_PREFIX)]:
        if root not in loaded and root not in stay:
            _reset(root)
    return []


def _compare(sources: Any) -> None:
    for name, file, digest in () if isinstance(sources, Lost) or not sources else sources:
        module = _imported(name)
        if module is None:
            continue
        here = _space(module).get("__file__")
        try:
            with open(str(here), "rb") as source:
                now = hashlib.sha256(source.read()).hexdigest()
        except OSError:
            now = ""
        if now != digest:
            where = f"the source of {name!r}, {here or file}"
            remark("changed", f"{_PREFIX}{name}", "module", f"{where}, is another one now")


def _imported(name: str) -> types.ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except BaseException as exc:  # it runs code of the user
        if isinstance(exc, KeyboardInterrupt):
            raise
        reason = f"the module {name!r} cannot be imported: {type(exc).__name__}: {exc}"
        remark("lost", f"{_PREFIX}{name}", "module", reason)
        return None


def _reset(root: str) -> None:
    """A global that the snapshot does not have: the literal of the source, or nothing."""
    name, _, key = root[len(_PREFIX) :].partition(":")
    local = _modules._locals[name]
    if key in local.literals:
        _space(local.module)[key] = local.literals[key]
    elif key not in local.assigned:
        del _space(local.module)[key]
