"""Functions on their way into a kernel, which has neither their module nor their folder.

What a skill needs of `__main__` or of a module in a file of the user's own goes with it by
value: helpers, classes, constants. Installed packages are imported there. Annotations go as
types, so that the kernel can check arguments without the names that the file imports.
"""

from __future__ import annotations

import dis
import functools
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cave.errors import SkillError

MARK = "__cave_by_value__"
"""In the globals of a module: what it defines goes into kernels by value."""
_GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


def carried(
    function: types.FunctionType, hints: Mapping[str, Any], skill: str
) -> types.FunctionType:
    """A copy of `function` that needs nothing of this process. Raises `SkillError`.

    A function of `__main__` that uses a name which `__main__` does not have here keeps the
    kernel's `__main__` as its globals: it means a variable of the session.
    """
    for module in _modules(function, skill):
        setattr(module, MARK, True)
    main = getattr(sys.modules.get("__main__"), "__dict__", None)
    made = _copy(function, function.__globals__)
    if function.__globals__ is main and _complete(function):
        made = _apart(function, {"__name__": "__main__"}, {})
    made.__annotations__ = dict(hints)
    return made


def _copy(function: types.FunctionType, space: dict[str, Any]) -> types.FunctionType:
    made = types.FunctionType(
        function.__code__, space, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = dict(function.__kwdefaults__ or {}) or None
    made.__doc__, made.__module__ = function.__doc__, function.__module__
    made.__qualname__ = function.__qualname__
    return made


def _apart(
    function: types.FunctionType,
    space: dict[str, Any],
    known: dict[types.FunctionType, types.FunctionType],
) -> types.FunctionType:
    """A copy whose globals are `space`, which gets what it uses; its helpers the same."""
    made = known[function] = _copy(function, space)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, types.FunctionType) and value.__globals__ is function.__globals__:
            space[name] = known.get(value) or _apart(value, space, known)
        elif name in function.__globals__:
            space[name] = value
    return made


def _complete(function: types.FunctionType) -> bool:
    """Whether this process has all that a function of `__main__` and its helpers use."""
    space, todo, seen = function.__globals__, [function], {function}
    builtin = vars(sys.modules["builtins"])
    while todo:
        for name in _names(todo.pop().__code__):
            if name not in space and name not in builtin:
                return False
            value = space.get(name)
            if isinstance(value, types.FunctionType) and value.__globals__ is space:
                todo += [value] if value not in seen else []
                seen.add(value)
    return True


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals that code uses, its inner functions included."""
    for step in dis.get_instructions(code):
        if step.opname in _GLOBAL_OPS:
            yield str(step.argval)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


def _modules(function: types.FunctionType, skill: str) -> set[types.ModuleType]:
    """Modules of the user's own that the function needs something of."""
    found: set[types.ModuleType] = set()
    todo: list[Any] = [function, *(function.__annotations__ or {}).values()]
    seen: set[int] = set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, types.ModuleType):
            if _own(thing.__name__):
                raise SkillError(
                    f"skill {skill!r} uses the module {thing.__name__!r}, a file of yours that "
                    f"the kernel cannot import; write `from {thing.__name__} import ...`, or "
                    f"install it, or let the skill run on the host: runs='host'"
                )
            continue
        if not isinstance(thing, types.FunctionType | type):
            continue
        if _own(thing.__module__):
            found.add(sys.modules[thing.__module__])
            todo += _used(thing)
        elif thing.__module__ == "__main__":
            todo += _used(thing)
    return found


def _used(thing: types.FunctionType | type) -> Iterator[Any]:
    """What a function, or the methods and bases of a class, use by name."""
    if isinstance(thing, type):
        yield from thing.__bases__
        for value in vars(thing).values():
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(inner, types.FunctionType):
                yield from _used(inner)
        return
    for name in _names(thing.__code__):
        if name in thing.__globals__:
            yield thing.__globals__[name]


@functools.cache
def _installed() -> tuple[Path, ...]:
    paths = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(Path(path) for path in [*paths, site.getusersitepackages()] if path)


def _own(name: str | None) -> bool:
    """Whether a module is a file of the user's, which only this process can import."""
    module = sys.modules.get(name or "")
    file = getattr(module, "__file__", None)
    if module is None or not file or name == "__main__" or str(name).partition(".")[0] == "cave":
        return False
    path = Path(file)
    return not any(path.is_relative_to(folder) for folder in _installed())
