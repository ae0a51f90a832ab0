"""Code and its source: what lets another minor version of Python have a function.

Marshalled code is only for the minor version that made it (another one may crash on it), so
the statement of the cell that it came from travels along, and is compiled again where the
versions differ. The statement is put back into `linecache` as well, so that tracebacks and
`inspect` show it, and the next snapshot has it again.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import linecache
import marshal
import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from .frozen import frozen
from .reading import current

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
MAGIC = importlib.util.MAGIC_NUMBER
_statements: dict[str, tuple[Any, list[tuple[int, int, str]]]] = {}
_KEPT = 500
_codes: dict[int, tuple[weakref.ref[types.CodeType], tuple[Any, ...]]] = {}


def reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Code as what `make_code` takes; the same bytes each time, which marshal does not give."""
    known = _codes.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    number = id(code)
    reduced = _reduce(code)
    _codes[number] = weakref.ref(code, lambda _: _codes.pop(number, None)), reduced
    return reduced


def _reduce(code: types.CodeType) -> tuple[Any, ...]:
    text, line = source(code)
    place = _place(code, text, line) if text else 0
    where = (code.co_filename, line, code.co_qualname, code.co_firstlineno, place, code.co_freevars)
    version = ".".join(map(str, sys.version_info[:3]))
    # as later formats depend on reference counts, they are not the same for the same code
    data = marshal.dumps(code, 2)
    return make_code, (data, MAGIC, version, text, where, code.co_flags & _FUTURE)


def source(code: types.CodeType) -> tuple[str, int]:
    """The top-level statement that code is from, and its first line; empty if unknown."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return "", 0
    known = _statements.get(code.co_filename)
    if known is None or known[0] is not lines:
        known = lines, list(_cut(lines))
        if len(_statements) > _KEPT:
            _statements.clear()
        _statements[code.co_filename] = known
    for first, last, text in known[1]:
        if first <= code.co_firstlineno <= last:
            return text, first
    return "", 0


def _cut(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    try:
        body = ast.parse("".join(lines)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(entry.lineno for entry in decorators)])
        last = node.end_lineno or node.lineno
        yield first, last, "".join(lines[first - 1 : last])


def _place(code: types.CodeType, text: str, line: int) -> int:
    """Which one it is of several with that name on that line."""
    if not code.co_qualname.endswith(">"):
        return 0
    try:
        made = _compile(text, line, code.co_filename, code.co_flags & _FUTURE)
    except (SyntaxError, ValueError):
        return 0
    alike = list(_alike(made, code.co_qualname, code.co_firstlineno))
    return alike.index(code) if code in alike else 0


def _compile(text: str, line: int, filename: str, flags: int) -> types.CodeType:
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    padded = "\n" * (line - 1) + text
    made: types.CodeType = compile(padded, filename, "exec", flags, dont_inherit=True)
    return made


def _alike(code: types.CodeType, qualname: str, line: int) -> Iterator[types.CodeType]:
    if code.co_qualname == qualname and code.co_firstlineno == line:
        yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _alike(const, qualname, line)


@frozen
def make_code(
    data: bytes,
    magic: bytes,
    version: str,
    text: str,
    where: tuple[str, int, str, int, int, tuple[str, ...]],
    flags: int,
) -> types.CodeType:
    """Code: loaded where it was made by this minor version of Python, else compiled again."""
    filename, line, qualname, first, place, free = where
    if text:
        remember(filename, line, text)
    if magic == MAGIC:
        code: types.CodeType = marshal.loads(data)  # noqa: S302 (bytes of this version's own)
        return code
    here = ".".join(map(str, sys.version_info[:3]))
    made = f"its code was made by Python {version}"
    if not text:
        return _stub(qualname, free, f"{made}, its source is not known, and this is Python {here}")
    try:
        alike = list(_alike(_compile(text, line, filename, flags), qualname, first))
    except (SyntaxError, ValueError) as error:
        return _stub(qualname, free, f"{made}, and Python {here} does not compile it: {error}")
    if place >= len(alike) or alike[place].co_freevars != free:
        return _stub(qualname, free, f"{made}, and Python {here} does not find it in its source")
    return alike[place]


def _stub(qualname: str, free: tuple[str, ...], reason: str) -> types.CodeType:
    """Code that says why it is not there; a class may still do without it."""
    name = qualname.rpartition(".")[2]
    name = name if name.isidentifier() else "function"
    said = f"{qualname} did not come back: {reason}"
    lines = [f"def outer({', '.join(free)}):", f"  def {name}(*args, **named):"]
    lines += [f"    {found}" for found in free]
    lines += [f"    raise RuntimeError({said!r})", f"  return {name}"]
    body = "\n".join(lines)
    outer = next(c for c in compile(body, "<lost>", "exec").co_consts if hasattr(c, "co_consts"))
    code: types.CodeType = next(c for c in outer.co_consts if hasattr(c, "co_consts"))
    code = code.replace(co_qualname=qualname)
    current().stubs[code] = reason
    return code


def remember(filename: str, line: int, text: str) -> None:
    """Put the source of a statement back where tracebacks and `inspect` look for it."""
    known = linecache.cache.get(filename)
    if os.path.exists(filename) or (known is not None and known[1:2] != (None,)):
        return
    lines = list(known[2]) if known is not None and len(known) > 2 else []
    added = text.splitlines(keepends=True)
    lines += ["\n"] * (line - 1 + len(added) - len(lines))
    if lines[line - 1 : line - 1 + len(added)] == added:
        return
    lines[line - 1 : line - 1 + len(added)] = added
    linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
