"""Vetting: what a cell may not say under the profile `vetted`, and what to write instead.

RestrictedPython's rules over a cell's text before it runs: names and attributes that lead out
of data work, imports that are not on a list, shell commands and magics. Its constructs that a
notebook cannot do without (`df["c"] *= 2`, annotations, `match`, `async`, `_`) are allowed
here, and nothing is rewritten, so that a cell that passes runs as fast as ever.

It is a check that explains itself, no boundary: pandas and numpy alone reach files and code by
many roads that no text shows. The confinement of the kernel is the boundary.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from RestrictedPython.transformer import (
    INSPECT_ATTRIBUTES,
    RestrictingNodeTransformer,
)

USUAL = (
    "altair", "array", "base64", "bisect", "calendar", "cave", "collections", "colorsys", "copy",
    "csv", "dataclasses", "datetime", "decimal", "difflib", "duckdb", "enum", "fractions",
    "functools", "hashlib", "heapq", "html", "itertools", "json", "math", "matplotlib", "numbers",
    "numpy", "operator", "pandas", "plotly", "polars", "pprint", "pyarrow", "random", "re",
    "scipy", "seaborn", "sklearn", "statistics", "statsmodels", "string", "textwrap", "time",
    "typing", "unicodedata", "uuid", "warnings", "zoneinfo",
)  # fmt: skip
"""What cells may import where the policy does not say."""

MOST = 5
"""Findings of one cell that are told."""

_MODULES = frozenset({
    "builtins", "code", "codeop", "ctypes", "gc", "importlib", "inspect", "marshal",
    "multiprocessing", "os", "pathlib", "pdb", "pickle", "pkgutil", "posix", "pty", "runpy",
    "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "urllib",
})  # fmt: skip
_NAMES = {
    "eval": "write the expression itself; ast.literal_eval reads literals",
    "exec": "write the statements themselves, or a function",
    "compile": "write a function",
    "open": "read tables with pandas.read_csv and the like; write them with a skill",
    "__import__": "write `import NAME`",
    "globals": "name the variable",
    "locals": "name the variable",
    "vars": "name the attributes that you need",
    "input": "ask in your answer; nobody types into a cell",
    "breakpoint": "print what you want to see",
    "exit": "let the cell end; nothing has to be closed",
    "quit": "let the cell end; nothing has to be closed",
    "help": "print(f.__doc__) is not needed: say in your answer what you want to know",
    "memoryview": "use numpy.frombuffer",
}
_EVALUATING = frozenset({"query", "eval"})
_AS_COLUMNS = "write the condition with columns: df[df['a'] > 1]"
_READS_CODE = "pickles run code when they are read; use parquet, CSV or JSON"
_ATTRIBUTES = {
    "read_pickle": _READS_CODE, "to_pickle": _READS_CODE, "loads_pickle": _READS_CODE,
    "system": "use a skill for what is outside of Python",
    "popen": "use a skill for what is outside of Python",
    "ctypeslib": "use numpy's own functions", "f2py": "use numpy's own functions",
    "distutils": "use numpy's own functions",
    "tofile": "save a table with a skill", "fromfile": "read tables with pandas.read_csv",
    "memmap": "load the array whole, with numpy.load",
}  # fmt: skip
_REFLECTING = frozenset({"getattr", "setattr", "delattr", "hasattr"})
_DUNDER = re.compile(r"__\w+__")
_USUAL_METHODS = frozenset({
    "__init__", "__repr__", "__str__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
    "__hash__", "__len__", "__iter__", "__next__", "__contains__", "__getitem__", "__setitem__",
    "__add__", "__sub__", "__mul__", "__truediv__", "__neg__", "__bool__", "__call__", "__enter__",
    "__exit__", "__post_init__", "__name__", "__doc__",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a cell may not say."""

    line: int
    what: str
    instead: str
    """What to write in its place."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}; {self.instead}"


def vet(source: str, modules: Sequence[str] | None = None) -> tuple[Finding, ...]:
    """What in a cell is not allowed, by line. `modules` are those that it may import, each
    with all below it; None means `USUAL`.

    A cell that cannot be parsed is not for this: it fails in the kernel. Raises `ValueError`,
    `RecursionError`, `MemoryError` as `ast` does.
    """
    allowed = USUAL if modules is None else tuple(modules)
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return _unread(source)
    known = (
        "pandas, numpy and what else is usual in data work"
        if modules is None
        else (", ".join(sorted(modules)) or "what is there already")
    )
    vetting = _Vetting(allowed, known)
    vetting.visit(tree)
    return tuple(sorted(set(vetting.found), key=lambda finding: (finding.line, finding.what)))


def refusal(source: str, modules: Sequence[str] | None = None) -> str:
    """The answer to whoever wrote a cell that is not allowed; empty for one that is."""
    try:
        found = vet(source, modules)
    except (ValueError, RecursionError, MemoryError) as fault:
        return f"it cannot be read ({type(fault).__name__}); write it in smaller pieces"
    if not found:
        return ""
    more = f"; and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(map(str, found[:MOST])) + more


def _unread(source: str) -> tuple[Finding, ...]:
    """IPython's own syntax; what is no Python at all may go on to its SyntaxError."""
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()  # type: ignore[no-untyped-call]
    try:
        ast.parse(manager.transform_cell(source))
    except SyntaxError:
        return ()
    lines = source.splitlines()
    special = [n for n, line in enumerate(lines, 1) if line.lstrip()[:1] in {"!", "%", "?"}] or [1]
    return (Finding(special[0], "a shell command or a magic", "write it in Python"),)


class _Vetting(RestrictingNodeTransformer):
    """Collects findings; what it makes of the tree is thrown away."""

    def __init__(self, modules: Iterable[str], known: str) -> None:
        super().__init__()
        self._modules = frozenset(modules)
        self._known = known
        self._called: set[int] = set()
        self.found: list[Finding] = []

    def find(self, node: Any, what: str, instead: str) -> None:
        """Note a finding."""
        self.found.append(Finding(getattr(node, "lineno", 1), what, instead))

    def error(self, node: ast.AST, info: str) -> None:
        """What RestrictedPython itself refuses."""
        self.find(node, info.rstrip(".").replace('"', "'"), "leave it out")

    def check_name(
        self,
        node: Any,
        name: str | None,
        allow_magic_methods: bool = False,  # noqa: FBT001, FBT002  RestrictedPython's own
    ) -> None:
        """Whether a name may be used."""
        if name is None or (allow_magic_methods and name in _USUAL_METHODS):
            return
        if name in _NAMES:
            self.find(node, f"{name!r} is not allowed", _NAMES[name])
        elif name == "get_ipython":
            self.find(node, "a shell command or a magic", "write it in Python")
        elif _DUNDER.fullmatch(name) and name != "__name__":
            self.find(node, f"{name!r} is not allowed", "use a name without underscores")

    def visit(self, node: ast.AST) -> Any:
        """Look at a node and at all in it."""
        match node:
            case ast.Name():
                self.check_name(node, node.id)
            case ast.Attribute():
                self._attribute(node, node.attr)
            case ast.Constant(value=str(text)):
                self._text(node, text)
            case ast.Call():
                self._call(node)
            case ast.Import():
                self._import(node)
            case ast.ImportFrom():
                self._import_from(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.check_name(node, node.name, allow_magic_methods=True)
                self.check_function_argument_names(node)
            case ast.Lambda():
                self.check_function_argument_names(node)
            case ast.ClassDef():
                self._class(node)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                self.check_name(node, node.name)
            case ast.MatchClass():
                for name in node.kwd_attrs:
                    self._attribute(node, name)
            case _ if not isinstance(node, _AS_THEY_ARE):
                return super().visit(node)
        return self.node_contents_visit(node)

    # -- names, attributes, texts ------------------------------------------------------------

    def _attribute(self, node: ast.AST, name: str) -> None:
        if name.startswith("_") and name not in _USUAL_METHODS:
            self.find(node, f"the attribute {name!r} is internal", "use a public one")
        elif name in INSPECT_ATTRIBUTES:
            self.find(node, f"the attribute {name!r} shows frames or code", "leave it out")
        elif name in _MODULES:
            self.find(node, f"{name!r} as an attribute is a module that is not allowed",
                      f"write x[{name!r}] if it is a column")  # fmt: skip
        elif name in _ATTRIBUTES:
            self.find(node, f"{name!r} is not allowed", _ATTRIBUTES[name])
        elif name in _EVALUATING and id(node) not in self._called:
            self.find(node, f"{name!r} that is not called with a text", _AS_COLUMNS)

    def _text(self, node: ast.AST, text: str) -> None:
        if text in _ATTRIBUTES and text != "system":
            self.find(node, f"{text!r} names what is not allowed", _ATTRIBUTES[text])
        elif (inner := _DUNDER.search(text)) and inner[0] not in {"__main__", "__name__"}:
            self.find(node, f"the text names {inner[0]!r}", "leave it out")

    def _call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Constant(value=str(attribute)), *_]):
                if name in _REFLECTING:
                    self._attribute(node, attribute)
            case ast.Call(func=ast.Name(id=name), args=[_, _, *_]) if name in _REFLECTING:
                self.find(node, f"{name}() with a name that is not written out",
                          "write the attribute, or use a dict")  # fmt: skip
            case ast.Call(
                func=ast.Attribute(attr=name) as function, args=[ast.Constant(value=str(text)), *_]
            ) if name in _EVALUATING:
                self._called.add(id(function))
                self._evaluated(node, text)

    def _evaluated(self, node: ast.Call, text: str) -> None:
        """What pandas evaluates is looked at as a cell is; `@x` is a variable there."""
        plain = re.sub(r"`[^`]*`", "column", text).replace("@", "")
        try:
            inner = ast.parse(plain.strip())
        except SyntaxError:
            self.find(node, f"{text!r} is no expression", _AS_COLUMNS)
        else:
            self.visit(inner)

    def _class(self, node: ast.ClassDef) -> None:
        self.check_name(node, node.name)
        if any(keyword.arg == "metaclass" for keyword in node.keywords):
            self.find(node, "a metaclass", "write a plain class")

    # -- imports -----------------------------------------------------------------------------

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)
            self.check_name(node, alias.asname)

    def _import_from(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            self.find(node, "a relative import", "write the name of the module in full")
            return
        self._module(node, node.module)
        for alias in node.names:
            if alias.name == "*":
                self.find(node, "'import *'", "name what you need")
            else:
                self._attribute(node, alias.name)
            self.check_name(node, alias.asname)

    def _module(self, node: ast.AST, name: str) -> None:
        parts = name.split(".")
        heads = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        inner = [part for part in parts[1:] if part in _MODULES or part.startswith("_")]
        if heads.isdisjoint(self._modules) or (inner and name not in self._modules):
            self.find(node, f"the module {name!r} is not allowed",
                      f"use {self._known}, or a skill that does it")  # fmt: skip


_AS_THEY_ARE = (
    ast.AugAssign, ast.AnnAssign, ast.Assign, ast.Subscript, ast.AsyncFor, ast.AsyncWith,
    ast.Await, ast.Nonlocal, ast.TryStar, ast.Match, ast.match_case, ast.MatchValue,
    ast.MatchSingleton, ast.MatchSequence, ast.MatchMapping, ast.MatchOr, ast.For,
    ast.comprehension, ast.With, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp,
    ast.NamedExpr, ast.Module, ast.JoinedStr, ast.FormattedValue, ast.alias, ast.arguments, ast.arg,
)  # fmt: skip
"""What RestrictedPython rewrites for its guards, or has none for: looked into, left alone."""
