"""Attributes of libraries' modules and classes that cells have assigned to, or deleted.

The code of a cell says which: `textwrap.shorten = own`, `Path.shout = ...`, `setattr(json, "x",
1)`, also in functions that it defines. Before a statement runs, what there was is noted; what
differs from that when an image is taken is a part of it. What a library's own code assigns, and
what a function assigns to what only it has by name, is not seen.
"""

from __future__ import annotations

import dis
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from .. import kinds
from .definitions import MAIN, findable, importable, replaced
from .frozen import frozen
from .hidden_kind import Kind
from .lost import Lost

Chain = tuple[str, ...]
"""A name, and attributes from there; the last one is what is assigned to."""

_NAMES = {dis.opmap["LOAD_NAME"]: 0, dis.opmap["LOAD_GLOBAL"]: 1}
"""Operations that begin a chain, and by how many bits their argument is shifted."""
_ATTR = dis.opmap["LOAD_ATTR"]
_ATTR_BITS = int(sys.version_info >= (3, 12))
_STORES = frozenset({dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]})
_CONST, _EXTENDED, _CACHE = dis.opmap["LOAD_CONST"], dis.EXTENDED_ARG, dis.opmap["CACHE"]
_SETTERS = ("setattr", "delattr")
_KNOWN = 4096
_WAITING = 500
_ELSEWHERE = frozenset({MAIN, "builtins", "IPython", "ipykernel", "_cave_kernel", "cave"})
"""Libraries whose state is another kind's affair, or the kernel's own."""
_OF_STREAMS = frozenset({"stdout", "stderr", "stdin", "path", "displayhook", "argv"})
_ABSENT = object()
_UNKNOWN = object()
_chains: dict[types.CodeType, frozenset[Chain]] = {}


def chains(code: types.CodeType) -> frozenset[Chain]:
    """What code assigns to by names that can be followed, its inner functions included."""
    found = _chains.get(code)
    if found is None:
        if len(_chains) > _KNOWN:
            _chains.clear()
        found = _chains[code] = frozenset(_look(code))
    return found


def _look(code: types.CodeType) -> Iterator[Chain]:
    names, raw, extended = code.co_names, code.co_code, 0
    sets = any(name in names for name in _SETTERS)
    loaded: set[Chain] = set()
    chain: Chain = ()
    for at in range(0, len(raw), 2):
        op, arg = raw[at], raw[at + 1] | extended
        extended = arg << 8 if op == _EXTENDED else 0
        if op in (_CACHE, _EXTENDED):
            continue
        if op in _NAMES:
            chain = (names[arg >> _NAMES[op]],)
        elif op == _ATTR and chain:
            chain = (*chain, names[arg >> _ATTR_BITS])
            loaded.add(chain)
        elif op in _STORES:
            name = names[arg]
            if chain:
                yield (*chain, name)
            else:  # `a.b += 1` has loaded it before
                yield from (one for one in loaded if one[-1] == name)
            chain = ()
        else:
            if sets and op == _CONST and chain and type(code.co_consts[arg]) is str:
                yield (*chain, code.co_consts[arg])
            chain = ()
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from chains(const)


class Patched(Kind):
    """What of libraries' modules and classes is not what the library gave it."""

    name = "patched"
    mutable = True

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, str, str], Any] = {}
        """What there was: by module, class in it (or nothing), attribute."""
        self._waiting: dict[Chain, None] = {}
        """What cannot be followed yet."""

    def about(self, code: types.CodeType) -> None:
        """A statement is about to run."""
        for chain in chains(code):
            if not self._follow(chain, _UNKNOWN if chain in self._waiting else None):
                self._waiting[chain] = None
        while len(self._waiting) > _WAITING:
            del self._waiting[next(iter(self._waiting))]

    def _follow(self, chain: Chain, before: Any) -> bool:
        """Note what is there now (or `before`) where a chain leads; False if it leads nowhere."""
        *steps, attribute = chain
        owner: Any = sys.modules[MAIN]
        for step in steps:
            owner = _of(owner, step)
            if owner is _ABSENT:
                return False
        if (place := _place(owner)) is not None and not (
            place[0] == "sys" and attribute in _OF_STREAMS
        ):
            now = _own(owner, attribute) if before is None else before
            self._places.setdefault((*place, attribute), now)
        return True

    def read(self) -> Any:
        for chain in list(self._waiting):
            if self._follow(chain, _UNKNOWN):
                del self._waiting[chain]
        found = {}
        replaced.clear()
        for (module, path, attribute), before in self._places.items():
            owner = _owner(module, path)
            now = _ABSENT if owner is None else _own(owner, attribute)
            if owner is None or now is before or (before is _UNKNOWN and not _of_session(now)):
                continue
            _note_replaced(before, (module, path, attribute))
            spelled = ".".join(filter(None, (module, path, attribute)))
            found[spelled] = (module, path, attribute, *(() if now is _ABSENT else (now,)))
        return found or None

    def apply(self, value: Any) -> None:
        wanted = {entry[:3]: entry[3:] for entry in (value or {}).values() if type(entry) is tuple}
        for place, before in self._places.items():
            if place not in wanted and before is not _UNKNOWN:
                self._put(place, before)
        for place, content in wanted.items():
            if content and isinstance(content[0], Lost):
                continue
            try:
                importlib.import_module(place[0])
                owner = _owner(*place[:2])
                self._places.setdefault(place, _own(owner, place[2]))
                self._put(place, content[0] if content else _ABSENT)
            except Exception as exc:
                where = ".".join(filter(None, place))
                self.note("lost", where, f"{where} cannot be put there again: {exc!r}")

    def before(self, place: tuple[str, str, str]) -> Any:
        """What the library has there, whatever is there now."""
        known = self._places.get(place, _UNKNOWN)
        if known is _UNKNOWN or known is _ABSENT:
            importlib.import_module(place[0])
            known = _own(_owner(*place[:2]), place[2])
        return known.__func__ if type(known) is staticmethod else known

    def _put(self, place: tuple[str, str, str], value: Any) -> None:
        owner, attribute = _owner(*place[:2]), place[2]
        if owner is None:
            raise LookupError(f"there is no {'.'.join(filter(None, place[:2]))}")
        if _own(owner, attribute) is value:
            return
        if value is _ABSENT:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, value)


def _of(owner: Any, name: str) -> Any:
    """What a module or a class has under a name; nobody's code is asked."""
    if kinds.of(owner, types.ModuleType):
        return object.__getattribute__(owner, "__dict__").get(name, _ABSENT)
    if kinds.of(owner, type):
        return next((s[name] for s in map(kinds.space, kinds.mro(owner)) if name in s), _ABSENT)
    return _ABSENT


def _own(owner: Any, name: str) -> Any:
    """What the module or class itself has under a name."""
    if kinds.of(owner, type):
        return kinds.space(owner).get(name, _ABSENT)
    return _of(owner, name)


def _place(owner: Any) -> tuple[str, str] | None:
    """Module and name of what a library has; None for all else."""
    if kinds.of(owner, types.ModuleType):
        place = str(_of(owner, "__name__")), ""
        good = importable(owner)
    elif kinds.of(owner, type):
        place = kinds.module(owner), kinds.qualname(owner)
        good = bool(kinds.flags(owner) & 1 << 9) and findable(owner)
    else:
        return None
    return place if good and place[0].partition(".")[0] not in _ELSEWHERE else None


def _owner(module: str, path: str) -> Any:
    """The module, or the class in it; None where it is not (any more)."""
    found: Any = sys.modules.get(module)
    for step in path.split(".") if path else ():
        found = None if found is None else _of(found, step)
    return None if found is _ABSENT else found


def _of_session(value: Any) -> bool:
    """Whether a session has made it: a function or a class of its own."""
    if type(value) is types.FunctionType:
        return bool(value.__module__ == MAIN)
    return bool(kinds.of(value, type) and kinds.module(value) == MAIN)


def _note_replaced(before: Any, place: tuple[str, str, str]) -> None:
    if type(before) is staticmethod:
        before = before.__func__
    if kinds.of(before, types.FunctionType, type):
        replaced[id(before)] = place


def named(obj: Any) -> Any:
    """What an object is reduced to that a library has no longer, as a cell took its place."""
    place = replaced.get(id(obj))
    return None if place is None else (library_has, place)


@frozen
def library_has(module: str, path: str, attribute: str) -> Any:
    """What a library has under a name, whatever cells have put there."""
    return PATCHED.before((module, path, attribute))


PATCHED = Patched()
