"""The safe codecs: Python values as JSON plus raw buffers, without pickle.

One implementation serves both sides: the kernel loads this file as `_cave_kernel.codec`,
the host as `cave.inkernel.codec`; so it needs nothing but the standard library. The kinds
of the standard library are in `codec_plain`; those of other libraries in `codec_numpy`,
`codec_pandas`, `codec_arrow` and `codec_polars`, which are imported when one of their
objects or tags is met.

A value is a tree. None, bool, int, float and str stand for themselves; everything else is
an array `[tag, ...]`. Only exact types are carried: a subclass means something that a codec
cannot know, so it is refused. Bytes lie in the buffers, as `[buffer, offset, length]`;
small ones share buffer 0. Containers are numbered in the order in which they begin, and
one that comes again is `["ref", number]`: shared before, shared after.

`Encoder` raises `Unportable`, which says what is in the way and where it is. `Decoder`
reads bytes from a process that is not trusted: whatever it is given, it makes values of the
types named here or raises; it imports nothing by name and calls nothing by name.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import kinds

FORMAT = 1
DEPTH = 100
"""How deep containers may be nested: each level costs Python frames on both sides."""
HEADER = 1 << 20
"""Trees of more bytes than this travel in a buffer of their own."""
SMALL = 4096
"""Buffers up to this many bytes are gathered in one."""

Node = Any
Write = Callable[["Encoder", Any], list[Node]]
Read = Callable[["Decoder", list[Node]], Any]
Place = Callable[[int], str]
"""Names the place of an element, given its number."""

_WRITERS: dict[type, tuple[str, Write]] = {}
_READERS: dict[str, Read] = {}
_NATIVE = frozenset({type(None), bool, int, float, str})
_UNNUMBERED = frozenset({"str", "int"})
"""Tags of scalars that JSON cannot hold; like all scalars they are never referred to."""
_LIBRARIES = {
    "numpy": ("np", "codec_numpy"),
    "pandas": ("pd", "codec_pandas"),
    "pyarrow": ("pa", "codec_arrow"),
    "polars": ("pl", "codec_polars"),
}
_MODULES = dict(_LIBRARIES.values())


class Unportable(TypeError):
    """The safe codecs do not carry an object; `reason` says which part and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Malformed(ValueError):
    """Bytes that the encoder does not make."""


class Native(Exception):
    """A decoder that is to use the standard library alone met a kind of another one."""


def writes(tag: str, *types: type) -> Callable[[Write], Write]:
    """Register how objects of exactly these types are written, under `tag`."""

    def register(write: Write) -> Write:
        _WRITERS.update(dict.fromkeys(types, (tag, write)))
        return write

    return register


def reads(tag: str) -> Callable[[Read], Read]:
    """Register how nodes of `tag` are read."""

    def register(read: Read) -> Read:
        _READERS[tag] = read
        return read

    return register


def typename(obj: object) -> str:
    """Name of an object's type as a user would write it."""
    module, name = kinds.module(type(obj)), kinds.qualname(type(obj))
    return name if module in {"builtins", "__main__"} else f"{module}.{name}"


_write = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode  # made once: the functions of the module make one for every call
_read = json.JSONDecoder().decode


class Uncollected:
    """No garbage collection meanwhile: trees have no cycles, and many parts to walk through."""

    __slots__ = ("_on",)

    def __enter__(self) -> None:
        self._on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._on:
            gc.enable()


class Encoder:
    """Writes one value. `arrow=False` when the reader has no pyarrow."""

    def __init__(self, *, arrow: bool = True) -> None:
        self.arrow = arrow
        self.buffers: list[memoryview] = []
        self._small = bytearray()
        self._numbers: dict[int, int] = {}
        self._pending: set[int] = set()
        self._alive: list[object] = []
        self._path: list[str | tuple[Place, int]] = []
        """From the value to where the encoder stands; a refusal leaves it as it is."""

    def finish(self, tree: Node) -> tuple[bytes, list[memoryview]]:
        """The header and the buffers of a tree that `node` made."""
        data = _write(tree).encode()
        head = f'["cave",{FORMAT},'.encode()
        if len(data) <= HEADER:
            return head + data + b"]", [memoryview(self._small), *self.buffers]
        place = [len(self.buffers) + 1, 0, len(data)]
        made = head + json.dumps({"tree": place}).encode() + b"]"
        return made, [memoryview(self._small), *self.buffers, memoryview(data)]

    def node(self, obj: Any, where: str | tuple[Place, int] = "") -> Node:
        """The tree of an object; `where` is its place in the one that holds it."""
        kind = type(obj)
        if kind in _NATIVE:
            return _scalar(obj)
        if (number := self._numbers.get(id(obj))) is not None and number not in self._pending:
            return ["ref", number]
        self._path.append(where)
        if number is not None:
            raise self.refusal("it contains itself")
        tag, write = _WRITERS.get(kind) or self._writer(obj)
        node = [tag, *self._numbered(obj, write)]
        self._path.pop()
        return node

    def nodes(self, items: Iterable[Any], place: Place = "[{}]".format) -> Node:
        """The trees of many objects; quick when all of them are plain scalars."""
        values = list(items)
        if _plain(values):
            return values
        return [self.node(value, (place, at)) for at, value in enumerate(values)]

    def stow(self, data: Any) -> list[int]:
        """Put bytes (any flat buffer) into the buffers without copying large ones."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        if view.nbytes > SMALL:
            self.buffers.append(view)
            return [len(self.buffers), 0, view.nbytes]
        self._small.extend(bytes(-len(self._small) % 64))
        start = len(self._small)
        self._small += view
        return [0, start, view.nbytes]

    def refusal(self, why: str) -> Unportable:
        """An `Unportable` that says where in the value the encoder stands."""
        steps = (w if isinstance(w, str) else w[0](w[1]) for w in self._path[:8])
        place = "".join(steps).strip()
        return Unportable(f"{why} (at {place})" if place else why)

    @contextlib.contextmanager
    def at(self, where: str) -> Iterator[None]:
        """For the time of a `with` block, refusals name this place too."""
        self._path.append(where)
        yield
        self._path.pop()

    def _writer(self, obj: object) -> tuple[str, Write]:
        kind = type(obj)
        if kind not in _WRITERS:
            library = _LIBRARIES.get(kinds.library(kind))
            if library is None:
                raise self.refusal(_explain(obj))
            importlib.import_module(f".{library[1]}", __package__)
        if (found := _WRITERS.get(kind)) is None:
            raise self.refusal(_explain(obj))
        return found

    def _numbered(self, obj: object, write: Write) -> list[Node]:
        if len(self._pending) >= DEPTH:
            raise self.refusal(f"it is nested more than {DEPTH} levels deep")
        number = len(self._numbers)
        self._numbers[id(obj)] = number
        self._alive.append(obj)
        self._pending.add(number)
        parts = write(self, obj)
        self._pending.discard(number)
        return parts


class Decoder:
    """Reads one value from a header and its buffers.

    With `native=False` it raises `Native` before code of another library looks into what it
    was given; scalars of numpy, of a size that is checked here, are read all the same.
    """

    def __init__(self, buffers: Sequence[Any], *, native: bool = True) -> None:
        self._native = native
        self._buffers = [memoryview(buffer).cast("B") for buffer in buffers]
        self._made: list[Any] = []
        self._depth = 0

    def value(self, header: bytes) -> Any:
        """The value of a parcel. Raises `Malformed`, or what a constructor raised."""
        return self.node(self._tree(header))

    def entries(self, header: bytes) -> Iterator[tuple[str, Callable[[], Any]]]:
        """For a parcel that holds a dict: its names, each with what reads its value."""
        match self._tree(header):
            case ["dict", list(names), list(values)] if len(names) == len(values):
                self._made.append(Malformed)
                for name, value in zip(names, values, strict=True):
                    yield text(self.node(name)), functools.partial(self.node, value)
            case _:
                raise Malformed("names were expected")

    def node(self, node: Node) -> Any:
        """The object of a tree."""
        if type(node) in _NATIVE:
            return node
        if type(node) is not list or not node or type(node[0]) is not str:
            raise Malformed("a node is a scalar or [tag, ...]")
        if node[0] == "ref":
            return self._known(node)
        if not self._native and "." in node[0] and not _bare(node):
            raise Native(node[0][:40])
        read = self._reader(node[0])
        if node[0] in _UNNUMBERED:
            return read(self, node)
        number = len(self._made)
        self._made.append(Malformed)
        self._depth += 1
        if self._depth > DEPTH:
            raise Malformed("nested too deep")
        value = self._made[number] = read(self, node)
        self._depth -= 1
        return value

    def nodes(self, items: Node) -> list[Any]:
        """The objects of a list of trees."""
        if type(items) is not list:
            raise Malformed("a list of nodes was expected")
        if _NATIVE.issuperset(map(type, items)):
            return items
        return [self.node(item) for item in items]

    def raw(self, ref: Node) -> memoryview:
        """The part of a buffer that `ref` names; as writable as the buffer is."""
        buffer, start, length = integers(ref, 3)
        if buffer >= len(self._buffers):
            raise Malformed("a buffer is missing")
        view = self._buffers[buffer]
        if min(buffer, start, length) < 0 or start + length > len(view):
            raise Malformed("a buffer is too short")
        return view[start : start + length]

    def _tree(self, header: bytes) -> Node:
        match _read(str(header, "utf-8")):
            case ["cave", 1, {"tree": place}]:
                return _read(str(self.raw(place), "utf-8"))
            case ["cave", 1, tree]:
                return tree
        raise Malformed("not a value of cave, or one of a newer format")

    def _known(self, node: list[Node]) -> Any:
        _, number = fields(node, 2)
        if type(number) is not int or not 0 <= number < len(self._made):
            raise Malformed("a reference to nothing")
        if self._made[number] is Malformed:
            raise Malformed("a reference to what is not there yet")
        return self._made[number]

    def _reader(self, tag: str) -> Read:
        if tag not in _READERS:
            module = _MODULES.get(tag.partition(".")[0])
            if module is None:
                raise Malformed(f"unknown tag {tag[:40]!r}")
            importlib.import_module(f".{module}", __package__)
        if (read := _READERS.get(tag)) is None:
            raise Malformed(f"unknown tag {tag[:40]!r}")
        return read


# -- checks that readers share ---------------------------------------------------------------


def fields(node: list[Node], count: int) -> list[Node]:
    """`node` when it has `count` parts, its tag included."""
    if len(node) != count:
        raise Malformed(f"{node[0]} has {count} parts")
    return node


def integers(node: Node, count: int | None = None) -> list[int]:
    """`node` when it is a list of ints, `count` of them."""
    if type(node) is not list or any(type(n) is not int for n in node):
        raise Malformed("integers were expected")
    if count is not None and len(node) != count:
        raise Malformed(f"{count} integers were expected")
    return node


def text(node: Node) -> str:
    """`node` when it is a str."""
    if type(node) is not str:
        raise Malformed("a text was expected")
    return node


def instance(value: Any, kind: type | tuple[type, ...]) -> Any:
    """`value` when it is of that kind."""
    if not isinstance(value, kind):
        raise Malformed(f"{kind} was expected")
    return value


# -- scalars ---------------------------------------------------------------------------------


def _bare(node: list[Node]) -> bool:
    """Whether a node is a scalar of numpy whose dtype has no parts."""
    return node[0] == "np.scalar" and len(node) == 3 and type(node[1]) is str


def _scalar(obj: Any) -> Node:
    """JSON has no lone surrogates (a pair of them would come back as one character), and
    reads no int above 4,300 digits."""
    if type(obj) is str and not _clean(obj):
        return ["str", obj.encode("utf-8", "surrogatepass").hex()]
    if type(obj) is int and obj.bit_length() > 4096:
        return ["int", f"{obj:x}"]
    return obj


def _bits(values: list[Any]) -> list[int]:
    return [v.bit_length() for v in values if type(v) is int]


def _clean(string: str) -> bool:
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(values: list[Any]) -> bool:
    """Whether every one of the values stands for itself."""
    kinds = set(map(type, values))
    if not kinds <= _NATIVE:
        return False
    if int in kinds and max(_bits(values)) > 4096:
        return False
    return str not in kinds or _clean("".join([v for v in values if type(v) is str]))


def _explain(obj: object) -> str:
    return f"{typename(obj)} is not a kind that the safe codecs carry"


def label(key: object) -> str:
    """A key or column as a message names it, short; runs no code of the user."""
    if type(key) in _NATIVE:
        shown = repr(key)
        return shown if len(shown) <= 40 else shown[:37] + "..."
    if type(key) is tuple:
        return "(" + ", ".join(label(part) for part in key[:4]) + ")"
    return typename(key)


importlib.import_module(".codec_plain", __package__)
