"""What a cell's code can reach: names in its compiled code, and in that of what it calls.

A group that no code has reached since the last image is taken to be as it was. The analysis
errs on the side of more: a name that is only read counts, an attribute that could lead
anywhere makes everything count. What it cannot see (callbacks that a library calls, the
state of extension modules) is found by the images that look at all.
"""

from __future__ import annotations

import asyncio
import dis
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .. import kinds, threads
from .patched import PATCHED

OPAQUE = frozenset({
    "exec", "eval", "globals", "locals", "vars", "get_ipython", "setattr", "delattr",
    "__import__", "breakpoint",
})  # fmt: skip
"""Names by which code reaches what it does not name."""
_OPAQUE_ATTRIBUTES = frozenset({
    "__globals__", "f_globals", "f_locals", "_getframe", "currentframe", "get_objects",
    "get_referrers", "user_ns", "run_line_magic", "run_cell_magic", "run_cell", "run_path",
    "run_module", "ex",
})  # fmt: skip
_OPAQUE_MODULES = frozenset({"__main__"})
_DEEP = 500
"""Names that are followed from one cell."""
_MEMBERS = 200
_KNOWN = 4096
_OURS = ("IPython", "ipykernel", "matplotlib_inline", "_cave_kernel", "tornado", "zmq",
         "jupyter_client")  # fmt: skip

_NAME_OPS = frozenset(
    dis.opmap[op]
    for op in (
        "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_GLOBAL", "STORE_GLOBAL",
        "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS",
    )
    if op in dis.opmap
)  # fmt: skip
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_EXTENDED_ARG = dis.EXTENDED_ARG
_names_of: dict[types.CodeType, frozenset[str]] = {}


def names(code: types.CodeType) -> frozenset[str]:
    """Globals that code names, its inner functions included; `OPAQUE` ones among them when
    it may reach anything."""
    found = _names_of.get(code)
    if found is None:
        if len(_names_of) > _KNOWN:
            _names_of.clear()
        found = _names_of[code] = frozenset(_look(code))
    return found


def _look(code: types.CodeType) -> Iterator[str]:
    table, extended = code.co_names, 0
    if not _OPAQUE_ATTRIBUTES.isdisjoint(table):
        yield "exec"
    raw = code.co_code
    for at in range(0, len(raw), 2):
        op, arg = raw[at], raw[at + 1] | extended
        extended = arg << 8 if op == _EXTENDED_ARG else 0
        if op in _NAME_OPS:
            yield table[arg >> 1 if op == _LOAD_GLOBAL else arg]
        elif op == _IMPORT_NAME and table[arg] in _OPAQUE_MODULES:
            yield "exec"
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from names(const)


def of_source(source: str) -> frozenset[str]:
    """Names in a cell's source. One that is not plain Python (magics) may reach anything."""
    try:
        flags = 0x2000  # PyCF_ALLOW_TOP_LEVEL_AWAIT
        return names(compile(source, "<cell>", "exec", flags, dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return OPAQUE


def of_object(obj: Any) -> Iterator[str]:
    """Globals that a function, or the methods of a class or an instance of the session, name."""
    kind = type(obj)
    if kind is types.FunctionType:
        yield from names(obj.__code__)
        return
    if kinds.derives(kind, type):
        kind = obj
    for base in kinds.mro(kind):
        if kinds.module(base) == "__main__":
            for member in islice(kinds.space(base).values(), _MEMBERS):
                yield from _of_member(member)


def _of_member(member: Any) -> Iterator[str]:
    kind = type(member)
    if kind is types.FunctionType:
        yield from names(member.__code__)
    elif kind is staticmethod or kind is classmethod:
        yield from _of_member(member.__func__)
    elif kind is property:
        for part in (member.fget, member.fset, member.fdel):
            yield from _of_member(part)


def closure(start: Iterable[str], further: Callable[[str], Iterable[str]]) -> set[str] | None:
    """Names, and those that they lead to; None when that is anything."""
    seen = set(start)
    todo = list(seen)
    while todo:
        if not OPAQUE.isdisjoint(seen) or len(seen) > _DEEP:
            return None
        new = set(further(todo.pop())) - seen
        seen |= new
        todo.extend(new)
    return None if not OPAQUE.isdisjoint(seen) else seen


class Touch:
    """Names that cells have named since the last image."""

    def __init__(self) -> None:
        self._codes: list[types.CodeType] = []
        self._names: set[str] = set()
        self._all = True
        self.version = 0
        """Goes up with all that may change the namespace."""

    def ran(self, code: types.CodeType) -> None:
        """A statement is about to run."""
        self._codes.append(code)
        self.version += 1
        PATCHED.about(code)

    def everything(self) -> None:
        """Anything may change, or have changed."""
        self._all = True
        self.version += 1

    def add(self, some: Iterable[str]) -> None:
        """These names were bound or unbound from outside."""
        self._names.update(some)
        self.version += 1

    def cell(self, shell: Any) -> set[str]:
        """A cell has ended; the names in its code."""
        codes, self._codes = self._codes, []
        found: set[str] = set()
        for code in codes:
            found |= names(code)
        self._names |= found
        if not OPAQUE.isdisjoint(found) or active(shell):
            self._all = True
        return found

    def take(self, shell: Any) -> set[str] | None:
        """All names since the last time, None for everything; from here on they count anew."""
        found = None if self._all or active(shell) else self._names
        self._names, self._all = set(), False
        return found

    def again(self, found: set[str] | None) -> None:
        """What was taken still counts: no image came of it."""
        if found is None:
            self._all = True
        else:
            self._names |= found

    def beside(self, shell: Any) -> None:
        """After an image: what runs beside the cells touches everything until the next."""
        if active(shell):
            self._all = True


def active(shell: Any) -> bool:
    """Whether code of the user may run without a cell: threads, tasks, hooks."""
    return bool(threads.of_user()) or _tasks(shell) or _hooks(shell)


def _tasks(shell: Any) -> bool:
    loop = getattr(getattr(getattr(shell, "kernel", None), "io_loop", None), "asyncio_loop", None)
    if loop is None:
        return False
    return any(not _is_ours(_module_of(task.get_coro())) for task in asyncio.all_tasks(loop))


def _module_of(coro: Any) -> str:
    frame = getattr(coro, "cr_frame", None)
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def _hooks(shell: Any) -> bool:
    callbacks = getattr(getattr(shell, "events", None), "callbacks", {})
    return any(
        not _is_ours(str(getattr(call, "__module__", None) or ""))
        for calls in callbacks.values()
        for call in calls
    )


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS
