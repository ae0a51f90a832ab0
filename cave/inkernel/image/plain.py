"""Rules for kinds of Python's own that pickle refuses, or gives back as something else."""

from __future__ import annotations

import contextvars
import copyreg
import ctypes
import functools
import gc
import json
import re
import struct
import sys
import types
import warnings
import weakref
from typing import Any

from .. import kinds
from .definitions import findable
from .frozen import frozen
from .pickler import Pickler
from .rules import rule

_ITERTOOLS = (
    "accumulate", "chain", "combinations", "combinations_with_replacement", "compress", "count",
    "cycle", "dropwhile", "filterfalse", "groupby", "islice", "pairwise", "permutations", "product",
    "repeat", "starmap", "takewhile", "zip_longest", "_tee", "_tee_dataobject", "_grouper",
    "batched",
)  # fmt: skip
_ENDED = {
    "builtins.generator": "a generator's place in its code cannot be written",
    "builtins.coroutine": "a coroutine's place in its code cannot be written",
    "builtins.async_generator": "a generator's place in its code cannot be written",
    "builtins.frame": "a frame belongs to code that runs",
    "builtins.traceback": "a traceback holds frames, which belong to code that has run",
    "weakref.finalize": "what runs at an object's end is registered with this process",
    "builtins.PyCapsule": "it is a pointer into this process",
}


@rule(*_ENDED)
def _ended(pickler: Pickler, obj: Any) -> Any:
    name = f"{kinds.module(type(obj))}.{kinds.qualname(type(obj))}"
    return pickler.lose(obj, _ENDED[name])


# -- exceptions ------------------------------------------------------------------------------

_KEPT = ("__cause__", "__context__", "__suppress_context__")
_DICT, _SLOTS = "<dict>", "<slots>"
"""Keys of the `__dict__` itself, and of what lies in slots."""


@rule("builtins.BaseException", derived=True)
def _exception(_: Pickler, obj: BaseException) -> Any:
    """Made without the constructor of its class, which wants other arguments than `args`."""
    kind = type(obj)
    for name in ("__reduce__", "__reduce_ex__"):
        where = next(base for base in kind.__mro__ if name in vars(base))
        if not _native(where):
            return NotImplemented
    reduced: Any = obj.__reduce__()
    made, args = reduced[0], reduced[1]
    if made is not kind:
        return NotImplemented
    base = next(entry for entry in kind.__mro__ if _native(entry))
    state = {name: getattr(obj, name) for name in _KEPT if getattr(obj, name)}
    state.update(_unsaid(obj, make_exception(kind, base, args, obj.args)))
    own = reduced[2] if len(reduced) > 2 else None
    state["" if own is None or own is not kinds.attributes(obj) else _DICT] = own
    if slots := dict(kinds.slots(obj)):
        state[_SLOTS] = slots
    return make_exception, (kind, base, args, obj.args), state, None, None, fill_exception


def _unsaid(obj: BaseException, made: BaseException) -> dict[str, Any]:
    """Attributes of Python's own exceptions that their `__reduce__` leaves out."""
    names = {
        name
        for base in kinds.mro(type(obj))
        if _native(base) and base is not BaseException
        for name, kept in vars(base).items()
        if type(kept) is types.MemberDescriptorType
    }
    return {
        name: value
        for name in names
        if (value := getattr(obj, name, None)) is not None and getattr(made, name, None) is None
    }


def _native(kind: type) -> bool:
    return kinds.module(kind) == "builtins"


@frozen
def make_exception(
    kind: Any, base: Any, args: tuple[Any, ...], shown: tuple[Any, ...]
) -> BaseException:
    """An exception without state."""
    made: BaseException = base.__new__(kind, *args)
    try:
        base.__init__(made, *args)
    except TypeError:
        made.args = shown
    return made


@frozen
def fill_exception(made: BaseException, state: dict[str, Any]) -> None:
    """Its attributes, and what it came from."""
    if own := state.pop("", None):
        BaseException.__setstate__(made, own)
    if (attributes := state.pop(_DICT, None)) is not None:
        kinds.adopt(made, attributes)
    for name, value in state.pop(_SLOTS, {}).items():
        object.__setattr__(made, name, value)
    for name, value in state.items():
        setattr(made, name, value)


# -- weak references -------------------------------------------------------------------------


@rule("builtins.weakref", "weakref.ReferenceType", "builtins.ReferenceType")
def _ref(_: Pickler, obj: weakref.ref[Any]) -> Any:
    return make_ref, (obj(), obj.__callback__) if obj() is not None else ()


@rule("weakref.WeakMethod")
def _weak_method(_: Pickler, obj: Any) -> Any:
    method = obj()
    return make_weak_method, () if method is None else (method,)


@rule("weakref.ProxyType", "weakref.CallableProxyType", "builtins.weakproxy",
      "builtins.weakcallableproxy")  # fmt: skip
def _proxy(_: Pickler, obj: Any) -> Any:
    try:
        target = obj.__repr__.__self__
    except ReferenceError:
        return make_proxy, ()
    return make_proxy, (target,)


@rule("weakref.WeakValueDictionary", "weakref.WeakKeyDictionary", "_weakrefset.WeakSet",
      derived=True)  # fmt: skip
def _weak(_: Pickler, obj: Any) -> Any:
    """What is in it, and what a class of the session has added to it."""
    base = next(kind for kind in kinds.mro(type(obj)) if kinds.module(kind) in _WEAK)
    given = {**vars(obj), **_slots(obj)}
    own = {name: value for name, value in given.items() if name not in vars(base())}
    content = list(obj if base is weakref.WeakSet else obj.items())
    return make_weak, (type(obj), base), (content, own), None, None, fill_weak


_WEAK = frozenset({"weakref", "_weakrefset"})


def _slots(obj: Any) -> dict[str, Any]:
    state = object.__getstate__(obj)
    return (state[1] or {}) if type(state) is tuple else {}


@frozen
def make_weak(kind: Any, base: Any) -> Any:
    """A weak container of a class, still empty."""
    made = base.__new__(kind)
    base.__init__(made)
    return made


@frozen
def fill_weak(made: Any, state: tuple[list[Any], dict[str, Any]]) -> None:
    """Put in what it holds, past methods of the session."""
    content, own = state
    if isinstance(made, weakref.WeakSet):
        weakref.WeakSet.update(made, content)
    else:
        base: Any = weakref.WeakValueDictionary
        if not isinstance(made, base):
            base = weakref.WeakKeyDictionary
        for key, value in content:
            base.__setitem__(made, key, value)
    for name, value in own.items():
        object.__setattr__(made, name, value)


class _Gone:
    """Something to refer to that is gone at once."""

    def here(self) -> None:
        """A method to refer to."""


@frozen
def make_ref(target: Any = None, callback: Any = None) -> weakref.ref[Any]:
    """A reference; to nothing any more if there is no target."""
    if target is None:
        return weakref.ref(_Gone())
    return weakref.ref(target, callback)


@frozen
def make_weak_method(method: Any = None) -> Any:
    """A reference to a bound method."""
    return weakref.WeakMethod(_Gone().here if method is None else method)


@frozen
def make_proxy(target: Any = None) -> Any:
    """A proxy; of nothing any more if there is no target."""
    return weakref.proxy(_Gone() if target is None else target)


@frozen
def fill_weak_set(made: Any, state: list[Any]) -> None:
    """Put its elements in."""
    made.update(state)


# -- views, iterators ------------------------------------------------------------------------


@rule("builtins.dict_keys", "builtins.dict_values", "builtins.dict_items")
def _dict_view(_: Pickler, obj: Any) -> Any:
    (target,) = gc.get_referents(obj)
    return make_dict_view, (target, type(obj).__name__[5:])


@rule("builtins.odict_keys", "builtins.odict_values", "builtins.odict_items")
def _ordered_view(_: Pickler, obj: Any) -> Any:
    (target,) = gc.get_referents(obj)
    return make_dict_view, (target, type(obj).__name__[6:])


@frozen
def make_dict_view(target: Any, name: str) -> Any:
    """Keys, values or items of a dict."""
    return getattr(target, name)()


@rule("builtins.mappingproxy", "types.MappingProxyType")
def _mapping_proxy(_: Pickler, obj: Any) -> Any:
    """A view of its mapping, which goes along; of a class it is the class that goes."""
    (target,) = gc.get_referents(obj)
    if type(target) is dict:
        for name in ("__dict__", "__weakref__"):
            owner = getattr(target.get(name), "__objclass__", None)
            if isinstance(owner, type):
                return vars, (owner,)
    return make_mapping_proxy, (target,)


@frozen
def make_mapping_proxy(target: Any) -> Any:
    """A read-only view of a mapping."""
    return types.MappingProxyType(target)


@rule(*(f"itertools.{name}" for name in _ITERTOOLS))  # fmt: skip
def _itertools(_: Pickler, obj: Any) -> Any:
    """As they say themselves, where they still do; Python warns that it will stop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return obj.__reduce__()


# -- text, bytes, numbers --------------------------------------------------------------------


@rule("re.Match")
def _match(_: Pickler, obj: re.Match[Any]) -> Any:
    """Matched again over the same text; it is checked that it is the same match."""
    for how in ("match", "fullmatch", "search"):
        found = getattr(obj.re, how)(obj.string, obj.pos, obj.endpos)
        if found is not None and found.regs == obj.regs:
            return make_match, (obj.re, how, obj.string, obj.pos, obj.endpos)
    return make_match_at, (obj.re, obj.string, obj.pos, obj.endpos, obj.start())


@frozen
def make_match(pattern: Any, how: str, text: Any, start: int, end: int) -> Any:
    """A match, made by the method that found it."""
    return getattr(pattern, how)(text, start, end)


@frozen
def make_match_at(pattern: Any, text: Any, start: int, end: int, at: int) -> Any:
    """A match that was one of several in a text."""
    for found in pattern.finditer(text, start, end):
        if found.start() == at:
            return found
    raise LookupError("the match is not found again")


@rule("_struct.Struct", "struct.Struct")
def _struct(_: Pickler, obj: struct.Struct) -> Any:
    return (struct.Struct, (obj.format,)) if type(obj) is struct.Struct else NotImplemented


@rule("builtins.memoryview")
def _memoryview(pickler: Pickler, obj: memoryview) -> Any:
    """A view of what it shows, which goes along."""
    try:
        whole = memoryview(obj.obj)
    except ValueError:
        return make_released, ()
    shape = (obj.format, obj.shape, obj.readonly)
    if whole.nbytes == obj.nbytes and whole.contiguous and obj.contiguous:
        return make_memoryview, (obj.obj, 0, obj.nbytes, *shape)
    if not (whole.contiguous and obj.contiguous):
        return pickler.lose(obj, "a memoryview with gaps cannot be written")
    start = _address(obj) - _address(whole)
    return make_memoryview, (obj.obj, start, obj.nbytes, *shape)


def _address(view: memoryview) -> int:
    """Where the memory of a view starts."""
    words = (ctypes.c_ssize_t * 16)()  # a Py_buffer has ten, and begins with the address
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(words), 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(words))
    return int(words[0])


@frozen
def make_memoryview(
    target: Any,
    start: int,
    size: int,
    format: str,
    shape: Any,
    readonly: bool,
) -> memoryview:
    """A view of memory."""
    made = memoryview(target)
    made = made.cast("B")[start : start + size]
    if format != "B" or tuple(shape) != (size,):
        made = made.cast(format, shape)  # type: ignore[call-overload]
    return made.toreadonly() if readonly else made


@frozen
def make_released() -> memoryview:
    """A view that has been released."""
    made = memoryview(b"")
    made.release()
    return made


# -- functools, contextvars, collections -----------------------------------------------------


@rule("functools.KeyWrapper")
def _key(_: Pickler, obj: Any) -> Any:
    compare, *rest = (part for part in gc.get_referents(obj) if part is not type(obj))
    return make_key, (compare, *rest)


@frozen
def make_key(compare: Any, *rest: Any) -> Any:
    """What `cmp_to_key` gives, or what that makes of an object."""
    made: Any = functools.cmp_to_key(compare)
    return made(*rest) if rest else made


@rule("functools.partialmethod")
def _partialmethod(_: Pickler, obj: Any) -> Any:
    return make_partialmethod, (obj.func, obj.args, obj.keywords)


@frozen
def make_partialmethod(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A partial method."""
    return functools.partialmethod(func, *args, **keywords)


@rule("functools.singledispatchmethod")
def _dispatch_method(_: Pickler, obj: Any) -> Any:
    return make_dispatch_method, (obj.func, obj.dispatcher)


@frozen
def make_dispatch_method(func: Any, dispatcher: Any) -> Any:
    """A method that dispatches by the type of its argument."""
    made = functools.singledispatchmethod(func)
    made.dispatcher = dispatcher
    return made


@rule("_contextvars.ContextVar", "contextvars.ContextVar", "builtins.ContextVar")
def _context_var(pickler: Pickler, obj: contextvars.ContextVar[Any]) -> Any:
    if findable_var(obj):
        pickler.from_library(findable_var(obj))
        return make_named_var, (findable_var(obj), obj.name)
    missing = object()
    value = obj.get(missing)
    try:
        own = contextvars.Context().run(obj.get)
    except LookupError:
        own = missing
    state = () if value is missing or value is own else (value,)
    return make_context_var, (obj.name, *(() if own is missing else (own,))), state, None, None, \
        fill_context_var  # fmt: skip


def findable_var(obj: contextvars.ContextVar[Any]) -> str:
    """The module that has a variable under its own name, if one has."""
    for name, module in list(sys.modules.items()):
        space = getattr(module, "__dict__", None)
        if name != "__main__" and type(space) is dict and space.get(obj.name) is obj:
            return name
    return ""


@frozen
def make_named_var(module: str, name: str) -> Any:
    """The variable of a module."""
    return getattr(sys.modules[module], name)


@frozen
def make_context_var(name: str, *default: Any) -> contextvars.ContextVar[Any]:
    """A variable without a value."""
    if default:
        return contextvars.ContextVar(name, default=default[0])
    return contextvars.ContextVar(name)


@frozen
def fill_context_var(made: contextvars.ContextVar[Any], state: tuple[Any, ...]) -> None:
    """Its value."""
    if state:
        made.set(state[0])


@rule("abc.abstractproperty", "types.DynamicClassAttribute", "enum.property", derived=True)
def _dynamic(_: Pickler, obj: Any) -> Any:
    if findable(type(obj)) and type(obj).__module__ in ("types", "enum"):
        return make_dynamic, (type(obj), obj.fget, obj.fset, obj.fdel, obj.__doc__), \
            {"name": getattr(obj, "name", None)}, None, None, fill_dynamic  # fmt: skip
    return NotImplemented


@frozen
def make_dynamic(kind: Any, *parts: Any) -> Any:
    """A property of an Enum's members."""
    return kind(*parts)


@frozen
def fill_dynamic(made: Any, state: dict[str, Any]) -> None:
    """Its name."""
    made.__dict__.update({name: value for name, value in state.items() if value is not None})


# -- what has a part that is made of the rest ------------------------------------------------


@rule("json.decoder.JSONDecoder", derived=True)
def _json_decoder(_: Pickler, obj: Any) -> Any:
    """Its scanner is made of its settings."""
    state = {name: value for name, value in vars(obj).items() if name != "scan_once"}
    return copyreg.__newobj__, (type(obj),), state, None, None, fill_json_decoder  # type: ignore[attr-defined]


@frozen
def fill_json_decoder(made: Any, state: dict[str, Any]) -> None:
    """Settings of a decoder, and its scanner."""
    vars(made).update(state)
    made.scan_once = json.scanner.make_scanner(made)  # type: ignore[attr-defined]


@rule("re.Scanner")
def _re_scanner(_: Pickler, obj: Any) -> Any:
    return make_re_scanner, (obj.lexicon, obj.scanner.flags)


@frozen
def make_re_scanner(lexicon: Any, flags: int) -> Any:
    """A scanner of these phrases."""
    return re.Scanner(lexicon, flags & ~re.UNICODE)  # type: ignore[attr-defined]


@rule("IPython.core.interactiveshell.InteractiveShell", derived=True)
def _shell(pickler: Pickler, obj: Any) -> Any:
    """The shell of the kernel is the one that is there."""
    if obj is not _this_shell():
        return pickler.lose(obj, "a shell of a kernel that ended")
    return this_shell, ()


def _this_shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


@frozen
def this_shell() -> Any:
    """The shell of this kernel."""
    return _this_shell()
