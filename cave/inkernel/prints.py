"""Prints: short texts that are the same for the same content, also in another process.

Two cells that made the same values give the same prints; a print that differs means that
the value does. Long buffers are sampled evenly and at both ends. Where no print can be had
(generators, files, locks, objects of C code that nobody knows) there is none at all: a part
that cannot be looked into makes the whole unprintable, it is never left out.

No code of the user runs for it: instances of his classes are read by their attributes.
`prints_libraries` knows numpy's, pandas' and other libraries' objects.
"""

from __future__ import annotations

import _io
import enum
import functools
import io
import marshal
import struct
import types
import zlib
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from itertools import islice
from typing import Any

from . import kinds

ROOM = 64 << 10
"""Bytes that one print is made of, at most (beside what a few last objects add)."""
ELEMENTS = 4_000
"""Elements of a container that are looked at."""
NODES = 500
"""Objects that are looked into for one print."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
_ROWS = frozenset({list, tuple, dict})
_CODE = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount",
         "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_exceptiontable")  # fmt: skip
_NOT_OF_CLASS = frozenset({
    "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__hash__", "__slotnames__",
})  # fmt: skip
_REDUCED = frozenset({"datetime", "decimal", "zoneinfo", "numpy", "pandas", "sklearn", "scipy",
                      "collections"})  # fmt: skip
"""Libraries whose C objects say what they are, and cheaply."""
_NAMED = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType,
          types.MethodDescriptorType, types.ClassMethodDescriptorType)  # fmt: skip


class Unprintable(Exception):
    """There is no print of an object."""


def of(obj: Any) -> str:
    """The print of an object; empty where none can be had. Never raises."""
    printer = Printer()
    try:
        printer.add(obj)
    except Exception:
        return ""
    return printer.text()


class Printer:
    """One print while it is made."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=10)
        self._room = ROOM
        self._nodes = NODES
        self._open: set[int] = set()

    def text(self) -> str:
        return self._hash.hexdigest()

    def write(self, tag: str, data: Any = b"") -> None:
        """Add bytes, under a name of what they are."""
        view = memoryview(data).cast("B")
        self._hash.update(b"%b%d:" % (tag.encode("utf-8", "surrogatepass"), view.nbytes))
        self._hash.update(view)
        self._room -= view.nbytes

    def limit(self, parts: int = 1) -> int:
        """Bytes that are left for one of so many parts; some are, always."""
        return max(self._room // max(parts, 1), 1024)

    def add(self, obj: Any) -> None:
        """Add an object with what it is made of. Raises `Unprintable`."""
        kind = type(obj)
        if kinds.among(kind, _ATOMS):
            self._atom(obj, kind)
            return
        self._nodes -= 1
        if self._nodes < 0:
            raise Unprintable  # what is left out could be what differs
        if id(obj) in self._open:
            self.write("again " + kinds.qualname(kind))
            return
        self._open.add(id(obj))
        try:
            self._part(obj, kind)
        finally:
            self._open.discard(id(obj))

    # -- atoms and buffers -------------------------------------------------------------------

    def _atom(self, obj: Any, kind: type) -> None:
        if kind is str:
            self.string(obj)
        elif kind is bytes:
            self.buffer("bytes", obj)
        elif kind is float:
            self.write("float", struct.pack("<d", obj))
        else:
            self.write(kind.__name__, marshal.dumps(obj, 2))

    def string(self, text: str) -> None:
        """A text: all of it, or samples."""
        room = self.limit()
        if len(text) > room:
            step = len(text) // (room // 2) + 1
            self.write("long", b"%d" % len(text))
            text = text[:4096] + text[::step] + text[-4096:]
        self.write("str", text.encode("utf-8", "surrogatepass"))

    def buffer(self, tag: str, data: Any) -> None:
        """Flat bytes: all of them, or samples."""
        view = memoryview(data).cast("B")
        room = self.limit()
        if view.nbytes > room:
            step = view.nbytes // (room // 2) + 1
            self.write(tag + " long", b"%d" % view.nbytes)
            self.write(tag, view[:4096])
            self.write(tag, view[-4096:])
            view = memoryview(bytes(view[::step]))
        self.write(tag, view)

    # -- containers --------------------------------------------------------------------------

    def sequence(self, tag: str, items: Collection[Any]) -> None:
        """Elements in their order: of very long plain ones an even sample."""
        count = len(items)
        self.write(tag, b"%d" % count)
        if count == 0:
            return
        most = min(max(self.limit() // 16, 128), ELEMENTS)
        chosen: Any = items if isinstance(items, (list, tuple)) else list(items)
        if count > most:
            chosen = [*chosen[:64], *chosen[:: count // most + 1], *chosen[-64:]]
        found = kinds.sorts(chosen)
        if found <= _ATOMS and self._fit(chosen, found):
            self.write("plain", marshal.dumps(list(chosen), 2))
            return
        if found <= _ROWS and self._rows(chosen):
            return
        for item in chosen:
            self.add(item)

    def _rows(self, items: Collection[Any]) -> bool:
        """Containers of numbers and short texts, such as records; False for others."""
        most = max(ELEMENTS // (max(map(len, items)) + 4), 16)
        chosen = list(items)
        chosen = chosen if len(chosen) <= most else chosen[:: len(chosen) // most + 1]
        for row in chosen:
            values = row.values() if type(row) is dict else row
            found = kinds.sorts(values)
            if len(row) > ELEMENTS or not found <= _ATOMS or not self._fit(values, found):
                return False
            if type(row) is dict and kinds.sorts(row) != {str} and row:
                return False
        self.write("rows", marshal.dumps(chosen, 2))
        return True

    def _fit(self, items: Iterable[Any], found: set[type]) -> bool:
        if found <= {str, bytes}:
            return sum(map(len, items)) <= 2 * self.limit()
        if not found & {str, bytes}:
            return True
        return sum(len(it) for it in items if type(it) in {str, bytes}) <= 2 * self.limit()

    def mapping(self, tag: str, items: dict[Any, Any]) -> None:
        """Keys and values, in their order."""
        self.sequence(tag, list(dict.keys(items)))
        self.sequence("values", list(dict.values(items)))

    def unordered(self, tag: str, items: Collection[Any]) -> None:
        """Elements whatever their order."""
        if len(items) > 5 * ELEMENTS:
            raise Unprintable
        self.write(tag, b"%d" % len(items))
        prints = []
        for item in items:
            if kinds.among(type(item), _ATOMS):
                prints.append(b"%08x" % zlib.crc32(marshal.dumps(item, 2)))
            else:
                self._nodes -= 1
                part = Printer()
                part._nodes, part._open = 50, self._open
                part.add(item)
                prints.append(part.text().encode())
        self.write("sorted", b"".join(sorted(prints)))

    # -- everything else ---------------------------------------------------------------------

    def _part(self, obj: Any, kind: type) -> None:
        for base in kinds.mro(kind):
            known = _KNOWN.get(base) if kinds.plain(base) else None
            if known is not None:
                known(self, obj)
                if base is not kind and base not in _WHOLE:
                    self._class(kind)
                    self._attributes(obj, kind)
                return
        known = _of_library(kind)
        if known is not None:
            known(self, obj)
        elif opaque(kind):
            self._reduced(obj, kind)
        else:
            self._class(kind)
            self._attributes(obj, kind)

    def _class(self, kind: type) -> None:
        self.write("of", f"{kinds.module(kind)}.{kinds.qualname(kind)}".encode())

    def _attributes(self, obj: Any, kind: type) -> None:
        space = kinds.attributes(obj)
        if space:
            self.mapping("attributes", space)
        for base in kinds.mro(kind):
            for name, slot in kinds.space(base).items():
                if type(slot) is types.MemberDescriptorType:
                    try:
                        value = slot.__get__(obj)
                    except AttributeError:
                        continue
                    self.write("slot", name.encode("utf-8", "surrogatepass"))
                    self.add(value)

    def _reduced(self, obj: Any, kind: type) -> None:
        if kinds.library(kind) not in _REDUCED:
            raise Unprintable
        made = obj.__reduce_ex__(4)
        self._class(kind)
        if isinstance(made, str):
            self.string(made)
            return
        for part in islice(made, 1, 3):
            self.add(part)
        if len(made) > 3:
            raise Unprintable

    def function(self, made: types.FunctionType) -> None:
        """Of the session's own functions the code; of others where they are from."""
        self.write("function", f"{made.__module__}.{made.__qualname__}".encode())
        if made.__module__ == "__main__":
            self.code(made.__code__)
            self.add(made.__defaults__)
            self.add(made.__kwdefaults__)
        if made.__dict__:
            self.mapping("attributes", made.__dict__)
        for cell in made.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self.write("empty")

    def code(self, code: types.CodeType) -> None:
        """Instructions and constants, but not where they stood."""
        self.write("code", marshal.dumps([getattr(code, name) for name in _CODE], 2))
        self.sequence("constants", code.co_consts)

    def made_class(self, kind: type) -> None:
        """Of the session's own classes what is in them; of others where they are from."""
        self.write("class", f"{kinds.module(kind)}.{kinds.qualname(kind)}".encode())
        if kinds.module(kind) != "__main__":
            return
        self.sequence("bases", kind.__bases__)
        space = kinds.space(kind)
        for name in sorted(space, key=str):
            if name not in _NOT_OF_CLASS:
                self.write("has", str(name).encode("utf-8", "surrogatepass"))
                self.add(space[name])

    def builtin(self, made: Any) -> None:
        """A function of C code, not bound to an object."""
        if not isinstance(made.__self__, (types.ModuleType, type, type(None))):
            raise Unprintable
        self.write("builtin", f"{made.__module__}.{made.__qualname__}".encode())

    def several(self, tag: str, *parts: Any) -> None:
        """Some parts, one after the other."""
        self.write(tag)
        for part in parts:
            self.add(part)


def opaque(kind: type) -> bool:
    """Whether C code keeps more in instances than attributes and slots."""
    words = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    for base in kinds.mro(kind):
        words += sum(type(it) is types.MemberDescriptorType for it in kinds.space(base).values())
    size: int = kind.__basicsize__
    return size > object.__basicsize__ + 8 * words or kind.__itemsize__ > 0


def _refuse(_printer: Printer, _obj: Any) -> None:
    raise Unprintable


def _file(printer: Printer, obj: Any) -> None:
    if type(obj) not in {io.StringIO, io.BytesIO}:
        raise Unprintable
    printer.several("io", obj.getvalue(), obj.tell())


def _enum(printer: Printer, obj: enum.Enum) -> None:
    kind = type(obj)
    printer.write("enum", f"{kinds.module(kind)}.{kinds.qualname(kind)}".encode())
    printer.several("member", obj._name_, obj._value_)


def _exception(printer: Printer, obj: BaseException) -> None:
    kind = type(obj)
    printer.write("raised", f"{kinds.module(kind)}.{kinds.qualname(kind)}".encode())
    printer.add(obj.args)
    if space := kinds.attributes(obj):
        printer.mapping("attributes", space)


_Known = Callable[[Printer, Any], None]
_KNOWN: dict[type, _Known] = {
    list: lambda p, o: p.sequence("list", o if type(o) is list else [*list.__iter__(o)]),
    tuple: lambda p, o: p.sequence("tuple", o if type(o) is tuple else [*tuple.__iter__(o)]),
    dict: lambda p, o: p.mapping("dict", o),
    set: lambda p, o: p.unordered("set", [*set.__iter__(o)]),
    frozenset: lambda p, o: p.unordered("frozenset", [*frozenset.__iter__(o)]),
    bytearray: lambda p, o: p.buffer("bytearray", o),
    int: lambda p, o: p.write("int", marshal.dumps(int(o), 2)),
    float: lambda p, o: p.write("float", struct.pack("<d", o)),
    str: lambda p, o: p.string(str.__str__(o)),
    bytes: lambda p, o: p.buffer("bytes", bytes(o)),
    range: lambda p, o: p.several("range", o.start, o.stop, o.step),
    slice: lambda p, o: p.several("slice", o.start, o.stop, o.step),
    type(NotImplemented): lambda p, _: p.write("NotImplemented"),
    enum.Enum: _enum,
    types.ModuleType: lambda p, o: p.write("module", o.__name__.encode()),
    types.FunctionType: Printer.function,
    types.CodeType: Printer.code,
    types.BuiltinFunctionType: Printer.builtin,
    types.MethodType: lambda p, o: p.several("method", o.__func__, o.__self__),
    types.MappingProxyType: lambda p, o: p.mapping("proxy", dict(o)),
    types.GenericAlias: lambda p, o: p.several("alias", o.__origin__, o.__args__),
    functools.partial: lambda p, o: p.several("partial", o.func, o.args, o.keywords),
    property: lambda p, o: p.several("property", o.fget, o.fset, o.fdel),
    staticmethod: lambda p, o: p.several("static", o.__func__),
    classmethod: lambda p, o: p.several("classmethod", o.__func__),
    type: Printer.made_class,
    _io._IOBase: _file,
    BaseException: _exception,
    types.GeneratorType: _refuse,
    types.CoroutineType: _refuse,
    types.AsyncGeneratorType: _refuse,
}
_KNOWN |= dict.fromkeys(_NAMED, lambda p, o: p.write("descriptor", o.__name__.encode()))
_WHOLE = frozenset(
    {type, _io._IOBase, BaseException, enum.Enum, functools.partial, types.ModuleType}
)
"""Bases whose rule says all of instances of their subclasses, too."""

_PLACES: dict[str, tuple[str, _Known]] = {
    "deque": ("collections", lambda p, o: p.several("deque", o.maxlen, list(o))),
    "array": ("array", lambda p, o: p.buffer("array " + o.typecode, o)),
    "Pattern": ("re", lambda p, o: p.several("pattern", o.pattern, o.flags)),
    "Random": ("random", lambda p, o: p.several("random", o.getstate())),
    "Logger": ("logging", lambda p, o: p.several("logger", o.name)),
    "ZoneInfo": ("zoneinfo", lambda p, o: p.several("zone", o.key)),
}
for _name in ("PurePath", "PurePosixPath", "PosixPath", "Path"):
    _PLACES[_name] = ("pathlib", lambda p, o: p.several("path", str(o)))
_LIBRARIES = frozenset({"numpy", "pandas", "pyarrow", "polars", "torch", "matplotlib"})


def _of_library(kind: type) -> _Known | None:
    """What knows instances of this class, by the names of it and of its bases."""
    for base in kinds.mro(kind):
        found = _PLACES.get(kinds.name(base))
        if found is not None and kinds.library(base) == found[0] and base is kind:
            return found[1]
        if kinds.library(base) in _LIBRARIES:
            from . import prints_libraries

            if (rule := prints_libraries.known(base)) is not None:
                return rule
    return None
