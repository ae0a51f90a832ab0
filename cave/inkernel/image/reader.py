"""Reads a group back. What cannot be read becomes a Lost object, as near as possible to it.

First as fast as pickle can. When that fails, once more by pickle's own code in Python, in
which every call, every state and every name is tried by itself: what fails is Lost where it
stands, and the rest of the group lives.
"""

from __future__ import annotations

import io
import pickle
import struct
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import kinds
from ..codec import Uncollected
from . import deep, nans, paths, ready
from .definitions import Definitions
from .frozen import MODULE
from .lost import Lost
from .makers import preset
from .pickler import PRESET_MAGIC, Note, why
from .reading import Reading, current, reading

_REMEMBER = struct.Struct("<ci3s")
"""BININT, a number, BINPERSID, MEMOIZE, POP."""
_abandoned: list[Any] = []
"""What a first attempt had made: it must not be finalised, for it has never lived."""


@dataclass(slots=True)
class Loaded:
    """What a stream gave."""

    roots: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def read(stream: Any, buffers: Sequence[memoryview], definitions: Definitions) -> Loaded:
    """Read what `pickler.write` wrote; buffers become the memory of arrays.

    Never raises for an object. Runs code: only for bytes that a trusted process wrote.
    """
    ready.load()
    if bytes(stream[: len(deep.MAGIC)]) == deep.MAGIC:
        return _deeply(stream, buffers, definitions)
    unpickler = _Quick(_opened(stream), buffers=iter(buffers))
    with Uncollected():
        try:
            with reading(Reading(definitions)):
                return _stubs(Loaded(unpickler.load()))
        except KeyboardInterrupt:
            raise
        except BaseException:
            _abandoned.append(unpickler)
            with reading(Reading(definitions)):
                return _stubs(_carefully(stream, buffers))


class _Quick(pickle.Unpickler):
    """Pickle's own, as fast as it can."""

    def persistent_load(self, pid: Any) -> Any:
        return _referred(pid)


def _referred(number: int) -> Any:
    """What is there already, by a negative number, or a NaN."""
    return preset()[-1 - number] if number < 0 else nans.nan(number)


def _opened(stream: Any) -> io.BytesIO:
    """A stream; what it remembers from the start, if it refers to that, is put in front of it.

    (Assigning a dict to the memo of the C unpickler leaves it empty.)"""
    if bytes(stream[: len(PRESET_MAGIC)]) != PRESET_MAGIC:
        return io.BytesIO(stream)
    first = [_REMEMBER.pack(b"J", -1 - place, b"Q\x940") for place in range(len(preset()))]
    return io.BytesIO(b"".join((*first, memoryview(stream)[len(PRESET_MAGIC) :])))


def _deeply(stream: Any, buffers: Sequence[memoryview], definitions: Definitions) -> Loaded:
    with Uncollected():
        try:
            with reading(Reading(definitions)):
                return _stubs(Loaded(deep.load(stream, iter(buffers))))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            _abandoned.append(error)
            with reading(Reading(definitions)):
                return _stubs(_deeply_and_carefully(stream, buffers))


def _deeply_and_carefully(stream: Any, buffers: Sequence[memoryview]) -> Loaded:
    unpickler = CarefulDeep(deep.opened(stream), buffers=iter(buffers))
    try:
        roots = deep.complete(unpickler.load(), unpickler.not_filled)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _nothing(error)
    paths.locate(unpickler.losses, unpickler.notes, roots)
    return Loaded(roots, unpickler.notes)


def _stubs(loaded: Loaded) -> Loaded:
    """Say which functions stayed stubs."""
    if not current().stubs:
        return loaded
    losses: dict[int, tuple[Any, Note]] = {}
    for obj in (*current().made.values(), *loaded.roots.values()):
        code = obj.__code__ if type(obj) is types.FunctionType else obj
        code = code if type(code) is types.CodeType else None
        reason = None if code is None else current().stubs.get(code)
        if reason is not None and not _replaced(obj):
            losses[id(obj)] = obj, Note("lost", "", type(obj).__name__, reason)
    paths.locate(list(losses.values()), loaded.notes, loaded.roots)
    for obj, note in losses.values():
        if not note.name or note.name.startswith("def:"):
            note.name, _, note.path = getattr(obj, "__qualname__", "").partition(".")
        loaded.notes.append(note)
    return loaded


def _replaced(obj: Any) -> bool:
    """Whether the class that it was a method of has another one in its place."""
    qualname: str = getattr(obj, "__qualname__", "")
    if qualname.startswith("__create_fn__"):  # dataclasses generate it again
        return True
    owner, _, name = qualname.rpartition(".")
    found = [made for made in current().made.values()
             if isinstance(made, type) and made.__qualname__ == owner]  # fmt: skip
    return bool(found) and all(_plain(vars(made).get(name)) is not obj for made in found)


def _plain(method: Any) -> Any:
    method = getattr(method, "__func__", method)
    return getattr(method, "__wrapped__", method)


def _nothing(error: BaseException) -> Loaded:
    return Loaded({}, [Note("lost", "", "stream", f"the stream cannot be read: {why(error)}")])


def _carefully(data: Any, buffers: Sequence[memoryview]) -> Loaded:
    unpickler = Careful(_opened(data), buffers=iter(buffers))
    try:
        roots = unpickler.load()
        unpickler.settle()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _nothing(error)
    paths.locate(unpickler.losses, unpickler.notes, roots)
    return Loaded(roots, unpickler.notes)


class Careful(pickle._Unpickler):
    """Pickle's unpickler, each step of which may fail by itself."""

    memo: dict[int, Any]
    stack: list[Any]

    def __init__(self, file: io.BytesIO, *, buffers: Iterator[memoryview]) -> None:
        super().__init__(file, buffers=buffers)
        self.notes: list[Note] = []
        self.losses: list[tuple[Any, Note]] = []
        self.waiting: list[tuple[Any, list[Any]]] = []
        """Sets and dicts, and what they did not take: keys may want attributes first."""

    def persistent_load(self, pid: Any) -> Any:
        """What is there already, or a NaN."""
        return _referred(pid)

    def settle(self) -> None:
        """Put in what containers did not take before; what is refused again is Lost."""
        for made, items in self.waiting:
            pairs = (
                items if isinstance(made, set) else list(zip(items[::2], items[1::2], strict=True))
            )
            for item in pairs:
                try:
                    made.add(item) if isinstance(made, set) else made.__setitem__(*item)
                except Exception as error:
                    self.notes.append(Note("lost", "", _kind(made), f"an entry: {why(error)}"))
                    self.losses.append((made, self.notes[-1]))

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A name that is not there any more is Lost."""
        try:
            return super().find_class(module_name, global_name)
        except Exception as error:
            return self._lose(f"{module_name}.{global_name}", error)

    def not_filled(self, made: Any, error: BaseException) -> None:
        """An object does not take its state: it is Lost; a class stays, without what it lacks."""
        if type(made) is Lost:
            return
        if kinds.derives(type(made), type):
            self.notes.append(Note("lost", "", _kind(made), f"its content: {why(error)}"))
            self.losses.append((made, self.notes[-1]))
        else:
            self.replace(made, self._lose(_kind(made), error))

    def replace(self, made: Any, lost: Lost) -> None:
        """Let a placeholder be what was made, which is the last on the stack."""
        self.stack[-1] = lost
        for key, value in self.memo.items():
            if value is made:
                self.memo[key] = lost

    def _lose(self, kind: str, error: BaseException) -> Lost:
        reason = f"it cannot be read: {why(error)}"
        if (found := getattr(error, "lost", None)) is not None:
            return found  # type: ignore[no-any-return]
        note, lost = Note("lost", "", kind, reason), Lost("", kind, reason)
        self.notes.append(note)
        self.losses.append((lost, note))
        return lost


class CarefulDeep(deep.Making, Careful):
    """The same for groups that nest deeply."""

    def __init__(self, file: io.BytesIO, *, buffers: Iterator[memoryview]) -> None:
        super().__init__(file, buffers=buffers)
        self._makers = {}

    def make(self, maker: Any, args: list[Any]) -> Any:
        """One object; Lost if that fails."""
        try:
            return maker(*args)
        except Exception as error:
            return self._lose(_kind(args[0] if args else maker), error)

    def not_filled(self, made: Any, error: BaseException) -> None:
        """An object does not take its state, and stays empty: too many may refer to it."""
        if type(made) is not Lost:
            self.notes.append(Note("lost", "", _kind(made), f"its content: {why(error)}"))
            self.losses.append((made, self.notes[-1]))


def _kind(made: Any) -> str:
    """The name of a class or function, or of the class of anything else; it is not asked."""
    kind = type(made)
    if kind is types.FunctionType or kind is types.BuiltinFunctionType:
        return str(made.__qualname__)
    return kinds.qualname(made if kinds.derives(kind, type) else kind)


def _step(name: str, takes: int) -> Callable[[Any], None]:
    """A step that takes some entries from the stack and leaves one object there."""
    ordinary = getattr(pickle._Unpickler, name)

    def step(self: Any) -> None:
        given = self.stack[-takes:]
        size = len(self.stack)
        try:
            if type(given[0]) is Lost and name != "load_build":
                raise LostWith(given[0])
            ordinary(self)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            del self.stack[size - takes :]
            if _fills(self, given):
                self.not_filled(given[1][0], error)
                self.stack.append(None)
                return
            lost = next((entry for entry in given if type(entry) is Lost), None)
            if isinstance(error, LostWith) and lost is not None:
                self.stack.append(lost)
            else:
                self.stack.append(self._lose(_kind(given[0]), error))

    return step


def _fills(self: Any, given: list[Any]) -> bool:
    """Whether a call was to give an object its state, which is on the stack below the call."""
    args = given[1]
    if not self.stack or type(args) is not tuple or not args or args[0] is not self.stack[-1]:
        return False
    return type(given[0]) is types.FunctionType and given[0].__module__ == MODULE


class LostWith(Exception):
    """A class or function is needed that is Lost."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(repr(lost))
        self.lost = lost


def _build(self: Any) -> None:
    """State that an object does not take: the object in its place is Lost."""
    made, state = self.stack[-2:]
    try:
        if type(made) is Lost:
            self.stack.pop()
            return
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        while self.stack[-1] is not made:
            self.stack.pop()
        self.replace(made, self._lose(_kind(made), error))
    del state


def _filling(name: str) -> Callable[[Any], None]:
    """Elements that a container does not take: it is Lost, if it is not so already."""
    ordinary = getattr(pickle._Unpickler, name)

    def step(self: Any) -> None:
        items = list(self.stack)
        marked = name in ("load_appends", "load_setitems", "load_additems")
        made = (
            self.metastack[-1][-1] if marked else self.stack[-3 if name == "load_setitem" else -2]
        )
        try:
            ordinary(self)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            while not (self.stack and self.stack[-1] is made):
                if not self.stack and self.metastack:
                    self.stack = self.metastack.pop()
                    self.append = self.stack.append
                else:
                    self.stack.pop()
            if type(made) in (dict, set) and marked:
                self.waiting.append((made, items))
            elif type(made) is not Lost:
                self.stack[-1] = self._lose(_kind(made), error)

    return step


_dispatch = dict(pickle._Unpickler.dispatch)
for _name, _code, _takes in (
    ("load_reduce", pickle.REDUCE, 2),
    ("load_newobj", pickle.NEWOBJ, 2),
    ("load_newobj_ex", pickle.NEWOBJ_EX, 3),
):
    _dispatch[_code[0]] = _step(_name, _takes)
for _name, _code in (
    ("load_appends", pickle.APPENDS), ("load_append", pickle.APPEND),
    ("load_setitem", pickle.SETITEM), ("load_setitems", pickle.SETITEMS),
    ("load_additems", pickle.ADDITEMS),
):  # fmt: skip
    _dispatch[_code[0]] = _filling(_name)
_dispatch[pickle.BUILD[0]] = _build
Careful.dispatch = _dispatch
