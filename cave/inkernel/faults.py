"""Where a fault came from: the expression of the cell, and the objects that it names.

The expression is found by the positions that the compiler noted for the failing instruction.
Names in it are looked up in the frame, attributes and elements only where that runs no code:
in modules, in dicts of instances, in plain lists and dicts.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

from . import kinds

NONE: Any = object()
"""Stands for what cannot be looked up."""
_LINES = 40
"""Lines of one expression that are read."""


class Place:
    """The innermost frame of the session's own code, and the expression that failed there."""

    def __init__(self, fault: BaseException, space: dict[str, Any]) -> None:
        self._space = space
        frame, at = _innermost(fault)
        self.names: dict[str, Any] = space
        self.node: ast.expr | None = None
        if frame is None:
            return
        local = frame.f_locals
        if local is not space:
            self.names = {**space, **dict(islice(dict(local).items(), 1000))}
        self.node = _expression(frame.f_code, at)

    def find(self, node: Any) -> Any:
        """The object of an expression, or `NONE`."""
        match node:
            case ast.Name(id=name):
                return self.names.get(name, builtins.__dict__.get(name, NONE))
            case ast.Attribute(value=inner, attr=name):
                return attribute(self.find(inner), name)
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                return _element(self.find(inner), key)
            case _:
                return NONE

    def objects(self) -> Iterator[tuple[str, Any]]:
        """Expressions of the failing one that lead to objects, with these; the outer ones first."""
        seen: set[str] = set()
        for node in ast.walk(self.node) if self.node is not None else ():
            if isinstance(node, (ast.Name, ast.Attribute)):
                obj = self.find(node)
                text = ast.unparse(node)
                if obj is not NONE and text not in seen:
                    seen.add(text)
                    yield text, obj


def attribute(obj: Any, name: str) -> Any:
    """What is under a name in a module or an instance; of methods the function."""
    if obj is NONE:
        return NONE
    if type(obj) is types.ModuleType:
        return obj.__dict__.get(name, NONE)
    if kinds.derives(type(obj), type):
        found = kinds.find(obj, name)
    else:
        space = kinds.attributes(obj) or {}
        found = space.get(name) if name in space else kinds.find(type(obj), name)
    if type(found) in (classmethod, staticmethod):
        found = found.__func__
    return NONE if found is None or type(found) is property else found


def _element(obj: Any, key: Any) -> Any:
    try:
        if type(obj) is dict and type(key) in (str, int):
            return obj.get(key, NONE)
        if type(obj) in (list, tuple) and type(key) is int:
            return obj[key]
    except IndexError:
        pass
    return NONE


def _innermost(fault: BaseException) -> tuple[types.FrameType | None, int]:
    trace: Any = BaseException.__dict__["__traceback__"].__get__(fault)
    found, at = None, -1
    for _ in range(5000):
        if trace is None:
            break
        if trace.tb_frame.f_globals.get("__name__") == "__main__":
            found, at = trace.tb_frame, trace.tb_lasti
        trace = trace.tb_next
    return found, at


def _expression(code: types.CodeType, at: int) -> ast.expr | None:
    place = next(islice(code.co_positions(), at // 2, None), None)
    if place is None or None in place:
        return None
    first, last, start, end = place
    assert first is not None and last is not None  # noqa: PT018
    if last - first > _LINES:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    if not lines[0]:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    text = b"".join(lines).decode("utf-8", "replace")
    try:
        return ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
