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
from collections.abc import Iterator
from typing import Any

from .frozen import frozen

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
MAGIC = importlib.util.MAGIC_NUMBER
_statements: dict[str, tuple[Any, list[tuple[int, int, str]]]] = {}
_KEPT = 500


class Uncompiled(RuntimeError):
    """Code of another version of Python whose source is not known."""


def reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Code as what `make_code` takes."""
    text, line = source(code)
    place = _place(code, text, line) if text else 0
    where = (code.co_filename, line, code.co_qualname, code.co_firstlineno, place)
    version = ".".join(map(str, sys.version_info[:3]))
    return make_code, (marshal.dumps(code), MAGIC, version, text, where, code.co_flags & _FUTURE)


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
    where: tuple[str, int, str, int, int],
    flags: int,
) -> types.CodeType:
    """Code: loaded where it was made by this minor version of Python, else compiled again."""
    filename, line, qualname, first, place = where
    if text:
        remember(filename, line, text)
    if magic == MAGIC:
        code: types.CodeType = marshal.loads(data)  # noqa: S302 (bytes of this version's own)
        return code
    here = ".".join(map(str, sys.version_info[:3]))
    if not text:
        raise Uncompiled(f"its code was made by Python {version}, its source is not known, "
                         f"and this is Python {here}")  # fmt: skip
    try:
        alike = list(_alike(_compile(text, line, filename, flags), qualname, first))
    except SyntaxError as error:
        raise Uncompiled(f"it was made by Python {version} and Python {here} does not "
                         f"compile it: {error}") from error  # fmt: skip
    if place >= len(alike):
        raise Uncompiled(f"it was made by Python {version} and Python {here} does not find "
                         f"{qualname} in its source")  # fmt: skip
    return alike[place]


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
