"""Writes a group of names as one stream: what pickle 5 does, and what it does not.

`Pickler` is the C pickler. Every object that it does not know by itself comes to
`reducer_override`: rules by type (see `rules`), then what the object says itself, and where
it refuses a `Lost` object in its place. Classes and functions of the session are written in
streams of their own and referred to by key (see `definitions`). Large memory leaves the
stream as buffers. What nests too deeply is written by worklist instead (see `deep`).
"""

from __future__ import annotations

import copyreg
import gc
import hashlib
import pickle
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import kinds
from ..byvalue import Sink
from ..codec import Uncollected
from . import members, nans, natives, quiet, rules, singles
from .definitions import Definitions
from .frozen import MODULE
from .lost import Lost, make_lost
from .makers import (
    adopt_dict,
    adopt_itself,
    definition,
    fill_container,
    fill_past,
    preset,
)

PRESET_MAGIC = b"cave preset 1\n"
"""What streams begin with that refer to `globals()`, `sys.path` and the like themselves."""
LARGE = 64 << 10
"""Contiguous memory of at least this many bytes leaves the stream as a buffer."""
_RETRIES = 6
_newobj = copyreg.__newobj__  # type: ignore[attr-defined]
_EMPTY = ((), (None,), (None, None))
_MAKES = (_newobj, natives.make_native)
_WAYS = ("__reduce_ex__", "__reduce__", "__getstate__")
_MORE_WAYS = ("__getnewargs__", "__getnewargs_ex__", "__setstate__")
_OWN_WAYS = ("__getattr__", "__getattribute__", "__setattr__")
_UNHELD = 3
"""References to the `__dict__` of an object: its own, a reduced object's, and the asking."""


@dataclass(slots=True)
class Note:
    """Something that does not come back as it was (as `cave.image.Note`)."""

    kind: str
    name: str
    type: str
    reason: str
    path: str = ""


@dataclass(slots=True)
class Written:
    """A stream and what belongs to it."""

    stream: Any
    """Bytes-like; complete but for definitions and buffers."""
    buffers: list[pickle.PickleBuffer] = field(default_factory=list)
    """In the order in which the reader wants them; each contiguous, at least `LARGE`."""
    members: set[int] = field(default_factory=set)
    """Ids of the mutable objects inside, valid while they live."""
    uses: set[str] = field(default_factory=set)
    """Keys of definitions that it refers to."""
    provides: set[str] = field(default_factory=set)
    """Keys of definitions that it brings."""
    notes: list[Note] = field(default_factory=list)
    libraries: set[str] = field(default_factory=set)
    """Top-level modules that its objects' classes come from."""


class Refused(Exception):
    """Why an object cannot be written; it becomes a Lost object."""


class _Name:
    """The key of a root: tells the pickler which root comes next."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _taker(buffers: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    """What collects large buffers. No method of the pickler: in a cycle it would live on."""

    def take(buffer: pickle.PickleBuffer) -> bool:
        try:
            size = buffer.raw().nbytes
        except BufferError:
            return True
        if size < LARGE:
            return True
        buffers.append(buffer)
        return False

    return take


class Pickler(pickle.Pickler):
    """Writes roots into one stream. Rules use `lose`, `rebuilt`, `root`."""

    def __init__(self, file: Any, definitions: Definitions, *, inline: bool = False) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(file, protocol=5, buffer_callback=_taker(self.buffers))
        self.definitions = definitions
        self.inline = inline
        self.root = ""
        self.uses: set[str] = set()
        self.places: set[int] = set()
        """Where small memory lies: who has another object over it shares it."""
        self.provides: set[str] = set()
        self.libraries: set[str] = set()
        self.notes: list[Note] = []
        self.losses: list[tuple[Any, Note]] = []
        self.refused: dict[int, tuple[Any, str]] = {}
        """Objects, by id, that an earlier attempt failed at, and how."""
        self.last: Any = None
        self.seen: list[Any] = []
        self.spaces: dict[int, Any] = {}
        """Globals of functions that belong to no module, by id."""
        self.spaces_used: dict[int, set[str]] = {}
        self.spaces_held: set[int] = set()
        self.joined: dict[int, list[type]] | None = None
        """Abstract classes of Python's own, by the ids of classes registered with them."""
        self.memory: Any = None
        """Regions of memory that arrays look at (see `arrays`)."""
        self._handlers: dict[int, Callable[[Pickler, Any], Any]] = {}

    def watch(self) -> None:
        """Note every object that is written, for `members`."""
        self.persistent_id = self.seen.append  # type: ignore[method-assign]

    def shared(self, stream: bytearray) -> list[float]:
        """NaN in the finished stream that no module has, which others may hold, too."""
        return nans.mark(stream, self.seen)

    magic = b""
    """What the stream begins with, if it is no plain pickle."""
    known: tuple[Any, ...] = ()
    """Objects that are there already, the namespace first, where an attempt has met one."""

    def know(self, known: tuple[Any, ...]) -> None:
        """They are what the reader has as the first of what it remembers."""
        if known:
            self.known = known
            self.magic = PRESET_MAGIC
            self.memo = {id(obj): (index, obj) for index, obj in enumerate(known)}

    def begin(self, roots: dict[Any, Any]) -> Any:
        """What to dump."""
        return roots

    # -- one object ------------------------------------------------------------------------

    def reducer_override(self, obj: Any) -> Any:
        """What the object is reduced to; called for all that the C pickler does not know."""
        kind = type(obj)
        if kind is _Name:
            self.root = obj.name
            return str, (obj.name,)
        if obj is str:
            return NotImplemented
        self.last = obj
        if self.refused and id(obj) in self.refused:
            return self.lose(obj, self.refused[id(obj)][1])
        try:
            handler = self._handlers.get(id(kind))
            if handler is None:
                handler = self._handlers[id(kind)] = self._handler(kind)
            return handler(self, obj)
        except Refused as error:
            return self.lose(obj, str(error))
        except (RecursionError, KeyboardInterrupt):
            raise
        except BaseException as error:
            return self.lose(obj, why(error))

    def _handler(self, kind: type) -> Callable[[Pickler, Any], Any]:
        _load_rules()
        if kind is Lost:
            return _lost_before
        library = kinds.library(kind)
        if library not in ("builtins", "__main__"):
            self.libraries.add(library)
        found = rules.find(kind)
        ordinary = _way(kind)
        if found is None and (named := singles.of(kind)):
            return singles.handler(named, ordinary)
        if found is None:
            return ordinary
        ruled = found

        def handler(pickler: Pickler, obj: Any) -> Any:
            reduced = ruled(pickler, obj)
            return ordinary(pickler, obj) if reduced is NotImplemented else reduced

        return handler

    def plain(self, kind: type) -> bool:
        """Whether all that there is to an object of the type is its `__dict__`."""
        return (
            self._handlers.get(id(kind)) is _ordinary
            and _registered(kind) is None
            and all(kinds.find(kind, name) is kinds.space(object)[name] for name in _WAYS)
            and all(kinds.find(kind, name) is None for name in _MORE_WAYS)
            and not any(kinds.derives(kind, base) for base in (list, dict))
            and not any("__slots__" in vars(base) for base in kinds.mro(kind))
        )

    # -- for rules -------------------------------------------------------------------------

    def lose(self, obj: Any, reason: str) -> Any:
        """A placeholder for the object, and a note of it."""
        name = rules.full_name(type(obj)).removeprefix("builtins.")
        note = Note("lost", self.root, name, reason)
        self.notes.append(note)
        self.losses.append((obj, note))
        return make_lost, (self.root, name, reason)

    def rebuilt(self, obj: Any, how: str) -> None:
        """Note that the object comes back by a recipe, not as the same bits."""
        name = rules.full_name(type(obj)).removeprefix("builtins.")
        note = Note("rebuilt", self.root, name, how)
        self.notes.append(note)
        self.losses.append((obj, note))

    def reference(self, obj: Any) -> Any:
        """A definition, from a stream that does not bring it."""
        key = self.definitions.refer(obj)
        self.uses.add(key)
        return definition, (key,)

    def from_library(self, name: str) -> None:
        """Note that something comes from that module."""
        self.libraries.add(name.partition(".")[0])


def why(error: BaseException) -> str:
    """An error in a line, without what it refers to."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _load_rules() -> None:
    from . import ready  # rules need this module

    ready.load()


def _lost_before(pickler: Pickler, obj: Lost) -> Any:
    """What did not come back an earlier time does not become exact by being written again."""
    reduced = obj.__reduce__()
    _, name, reason, _ = reduced[1]
    note = Note("lost", pickler.root, name, reason)
    pickler.notes.append(note)
    pickler.losses.append((obj, note))
    return reduced


def _way(kind: type) -> Callable[[Pickler, Any], Any]:
    """How objects of a type are written that has no rule."""
    if kinds.derives(kind, type):
        return _class
    if _registered(kind) is None and quiet.wanted(kind):
        return _quiet
    if natives.has_own_ways(kind):
        return _native
    return _past if _answers(kind) else _ordinary


def _class(pickler: Pickler, obj: type) -> Any:
    return pickler_classes().reduce_class(pickler, obj)


def pickler_classes() -> Any:
    """The module of classes and functions, which needs this one."""
    from . import made

    return made


def _registered(kind: type) -> Any:
    if kinds.find(type(kind), "__hash__") is not kinds.space(object)["__hash__"]:
        return None  # the hash of its metaclass is not to be asked
    return copyreg.dispatch_table.get(kind)


def _ordinary(pickler: Pickler, obj: Any) -> Any:
    """As pickle would do it; what pickle would fail at later is seen here."""
    kind = type(obj)
    reducer = _registered(kind)
    if reducer is None:
        reduced = kinds.find(kind, "__reduce_ex__").__get__(obj, kind)(5)
    else:
        reduced = reducer(obj)
    if isinstance(reduced, str):
        if not _named(obj, reduced):
            raise Refused(f"it is to be found as {reduced!r}, and is not there")
        return reduced
    if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
        raise Refused("its __reduce__ gives no such thing as pickle takes")
    if not callable(reduced[0]) or not isinstance(reduced[1], tuple):
        raise Refused("its __reduce__ gives no callable with a tuple of arguments")
    if len(reduced) > 2 and reduced[2] is not None:
        state = reduced[2]
        if state is obj and kinds.derives(kind, dict):
            pairs = list(reduced[4]) if len(reduced) > 4 and reduced[4] else []
            return (*reduced[:2], pairs, None, None, adopt_itself)
        if type(state) is dict and sys.getrefcount(state) > _UNHELD + 1:
            return _held(pickler, obj, reduced)
        del state
    if reduced[0] is _newobj and reduced[3:5] not in _EMPTY and quiet.watches(kind):
        state, items, pairs = (*reduced[2:], None)[:3]
        content = (state, None if items is None else list(items), pairs and list(pairs))
        return (*reduced[:2], content, None, None, fill_container)
    return reduced


def _held(pickler: Pickler, obj: Any, reduced: Any) -> Any:
    """An object whose `__dict__` somebody else holds as well: it is the same one afterwards."""
    state = reduced[2]
    ours = (obj, reduced, pickler.seen)
    if state is not kinds.attributes(obj) or not any(
        type(holder) is not types.FrameType and all(holder is not one for one in ours)
        for holder in gc.get_referrers(state)
    ):
        return reduced
    content = (*reduced[3:5], None, None)[:2]
    plain = reduced[0] in _MAKES and (content in _EMPTY or not quiet.watches(type(obj)))
    if plain and kinds.find(type(obj), "__setstate__") is None:
        return (*reduced[:3], *content, adopt_dict)
    kind = rules.full_name(type(obj))
    pickler.rebuilt(
        obj, f"the attributes of a {kind} were held as a dict as well, now apart from it"
    )
    return reduced


def _quiet(pickler: Pickler, obj: Any) -> Any:
    reduced = quiet.reduced(obj)
    if len(reduced) > 2 and type(reduced[2]) is dict and sys.getrefcount(reduced[2]) > _UNHELD:
        return _held(pickler, obj, reduced)
    return reduced


def _answers(kind: type) -> bool:
    """Whether a class answers for attributes by code of its own: filling it must not ask it."""
    ways = any(
        type(kinds.space(base).get(name)) is types.FunctionType
        for base in kinds.mro(kind)
        for name in _OWN_WAYS
    )
    return ways and not any("__setstate__" in kinds.space(base) for base in kinds.mro(kind))


def _native(pickler: Pickler, obj: Any) -> Any:
    ordinary = _past if _answers(type(obj)) else _ordinary
    return natives.reduced(obj, ordinary(pickler, obj))


def _past(pickler: Pickler, obj: Any) -> Any:
    reduced = _ordinary(pickler, obj)
    plain = isinstance(reduced, tuple) and reduced[0] is _newobj and len(reduced) < 6
    if not plain or len(reduced) < 3 or reduced[2] is None or reduced[3:5] not in _EMPTY:
        return reduced
    return (*reduced[:3], None, None, fill_past)


def _named(obj: Any, path: str) -> bool:
    module = getattr(obj, "__module__", None)
    if type(module) is not str:
        module = pickle.whichmodule(obj, path)  # type: ignore[attr-defined]
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is obj


# -- a group -----------------------------------------------------------------------------


def write(
    roots: Mapping[str, Any], definitions: Definitions, *, inline: bool = False,
    named: Mapping[int, type] | None = None,
) -> Written:  # fmt: skip
    """Write roots that may share something as one stream.

    With `inline` the definitions that it meets are written, not referred to; `named` are ids
    of objects that count as members though they cannot change (see `members`). Never raises
    for an object: what cannot go becomes Lost, with a note.
    """
    definitions.settle()
    attempt = _Attempt(dict(roots), named or {})
    while True:
        try:
            written = attempt.write(definitions, inline=inline)
        except _Hopeless:
            return attempt.placeholders()
        if written is not None:
            return written


class _Hopeless(Exception):
    """Not even placeholders can be written: a fault of ours."""


@dataclass(slots=True)
class _Attempt:
    """Writing a group until it succeeds; each failure leaves something out, so it ends."""

    roots: dict[str, Any]
    named: Mapping[int, type]
    number: int = 0
    kind: type[Pickler] = Pickler
    refused: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """Objects that an earlier attempt failed at; reducing them gives a placeholder."""
    memory: Any = None
    known: tuple[Any, ...] = ()
    used: dict[int, set[str]] = field(default_factory=dict)
    """Names in globals that belong to no module, by id, that functions were seen to use."""
    held: set[int] = field(default_factory=set)
    """Such globals that somebody has as a dict as well."""
    lost: list[tuple[Any, Note]] = field(default_factory=list)
    """Roots that a placeholder has replaced."""

    def write(self, definitions: Definitions, *, inline: bool) -> Written | None:
        """One more attempt; None when there must be another."""
        return self._write(self.kind(file := Sink(), definitions, inline=inline), file)

    def _write(self, pickler: Pickler, file: Any) -> Written | None:
        pickler.refused, pickler.memory = self.refused, self.memory
        pickler.watch()
        pickler.know(self.known)
        pickler.spaces_used, pickler.spaces_held = self.used, self.held
        self.number += 1
        try:
            with Uncollected():
                file.extend(pickler.magic)
                pickler.dump(pickler.begin({_Name(n): obj for n, obj in self.roots.items()}))
            if self._met(pickler):
                return None
            again = None if pickler.memory is None else pickler.memory.again()
            if again is None or self.number > _RETRIES:
                pickler.losses += self.lost
                pickler.notes += [note for _, note in self.lost]
                return _finish(pickler, file, self.roots, self.named)
            self.memory = again
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self._met(pickler):
                return None
            if isinstance(error, RecursionError) and self.kind is Pickler:
                self.kind = _deep()
            else:
                self._blame(pickler, error)
        return None

    def placeholders(self) -> Written:
        """Nothing but what says that it is lost."""
        return Written(pickle.dumps(self.roots, 5), notes=[note for _, note in self.lost])

    def _met(self, pickler: Pickler) -> bool:
        """Whether it met what has to be known before: the namespace, globals of functions."""
        if self.number > _RETRIES:
            return False
        found = False
        if not self.known:
            known = preset()
            if members.of(pickler.seen, {id(obj): type(obj) for obj in known}):
                self.known = known
                found = True
        spaces = {
            number: own
            for number, own in pickler.spaces.items()
            if type(own) is not types.ModuleType and number not in self.held
        }
        counts = Counter(map(id, members.of(pickler.seen, dict.fromkeys(spaces, dict))))
        for number, own in spaces.items():
            if counts[number] > own.met:
                self.held.add(number)
                found = True
            elif own.used - self.used.get(number, set()) and own.written != own.used:
                self.used[number] = own.used
                found = True
        return found

    def _blame(self, pickler: Pickler, error: BaseException) -> None:
        """Leave out the object that was the last; if that was no help, whole roots."""
        last = pickler.last
        ours = last is None or (type(last) is types.FunctionType and last.__module__ == MODULE)
        if self.number <= _RETRIES and not ours and id(last) not in self.refused:
            self.refused = {**self.refused, id(last): (last, why(error))}
            return
        gone = {id(obj) for obj, _ in self.lost}
        left = [name for name, obj in self.roots.items() if id(obj) not in gone]
        if not left:
            raise _Hopeless from error
        for name in [pickler.root] if pickler.root in left else left:
            kind = rules.full_name(type(self.roots[name])).removeprefix("builtins.")
            self.roots[name] = Lost(name, kind, why(error))
            self.lost.append((self.roots[name], Note("lost", name, kind, why(error))))


def _deep() -> type[Pickler]:
    from . import deep  # needs this module

    return deep.DeepPickler


def _said(notes: list[Note]) -> bytes:
    """What follows the pickle, where nobody reads it: that what is written alike and yet comes
    back otherwise (a lock that is held, and a free one) makes another stream."""
    said = [(n.name, n.path, n.type, n.reason) for n in notes if n.kind != "lost"]
    return hashlib.sha256(repr(sorted(said)).encode()).digest()[:8] if said else b""


def _finish(
    pickler: Pickler, file: Any, roots: Mapping[str, Any], named: Mapping[int, type]
) -> Written:
    from . import ids, paths

    ids.say(pickler, roots)
    if pickler.losses:
        paths.locate(pickler.losses, pickler.notes, roots)
        for note in pickler.notes:
            note.name = note.name or pickler.root
    file.extend(_said(pickler.notes))
    pickler.clear_memo()
    pickler.last = None
    shared = pickler.shared(file) + members.of(pickler.seen, named)
    shared += members.large(pickler.seen, file)
    found = members.mutable(pickler.seen, shared) | pickler.places
    return Written(
        file, pickler.buffers, found, pickler.uses, pickler.provides, pickler.notes,
        pickler.libraries,
    )  # fmt: skip
