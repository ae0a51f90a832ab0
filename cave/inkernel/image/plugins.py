"""Recipes of others: by entry point, by `@cave.resource`, by `@cave.persistent`.

A library registers rules in the entry-point group `cave.recipes`: an entry point is called
with `rule` when the first snapshot is taken. In a cell, `@cave.resource` makes a function
whose results are written as "call it again", and `@cave.persistent` a class whose instances
say themselves what is to be kept.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import kinds
from . import rules
from .frozen import frozen
from .lost import Lost
from .remarks import gone, remark

if TYPE_CHECKING:
    from .pickler import Pickler

GROUP = "cave.recipes"
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_made: dict[int, tuple[Any, Resource, tuple[Any, ...], dict[str, Any]]] = {}
"""Objects that resources made, by id: a weak reference, and the call that made them."""
_ruled: set[str] = set()
_kept: list[Any] = []
"""Such objects that cannot be referred to weakly; they stay until the process ends."""


class Resource:
    """A function that makes a live object: a connection, a client, a handle."""

    def __init__(self, make: Callable[..., Any], name: str, env: Sequence[str]) -> None:
        functools.update_wrapper(self, make)
        self.make = make
        self.name = name
        self.env = tuple(env)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        missing = [name for name in self.env if name not in os.environ]
        if missing:
            raise LookupError(
                f"the resource {self.name!r} needs {', '.join(missing)} in the environment"
            )
        made = self.make(*args, **kwargs)
        _remember(made, self, args, kwargs)
        return made

    def __repr__(self) -> str:
        return f"<resource {self.name!r}>"

    def __reduce__(self) -> Any:
        return make_resource, (), vars(self), None, None, fill_resource


@frozen
def make_resource() -> Any:
    """A resource without its function."""
    return Resource.__new__(Resource)


@frozen
def fill_resource(made: Any, state: dict[str, Any]) -> None:
    """Its function, name and variables."""
    vars(made).update(state)


def resource(name: str, env: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Resource]:
    """Decorate a function whose result a restored session makes again by calling it.

    `env` names the environment variables that it needs: where one is missing, the object is
    lost and the report names the variable.
    """

    def decorate(make: Callable[..., Any]) -> Resource:
        return Resource(make, name, env)

    return decorate


def _remember(made: Any, by: Resource, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    key = id(made)
    try:
        held: Any = weakref.ref(made, lambda _: _made.pop(key, None))
    except TypeError:
        held = functools.partial(_itself, made)
        _kept.append(made)
    _made[key] = held, by, args, kwargs
    _rule_for(type(made))


def _itself(made: Any) -> Any:
    return made


def _rule_for(made: type) -> None:
    """A rule for that type: by the resource, where the object came from one, else as before."""
    from . import ready

    kind = rules.full_name(made)
    if kind in _ruled:
        return
    ready.load()  # what comes later would take the place of ours
    found = rules.find(made)
    _ruled.add(kind)

    @rules.rule(kind)
    def write(pickler: Pickler, obj: Any) -> Any:
        known = _made.get(id(obj))
        if known is not None and known[0]() is obj:
            _, by, args, kwargs = known
            pickler.rebuilt(obj, f"made again by the resource {by.name!r}")
            return call_resource, (pickler.root, by, args, kwargs, (kind, needs(by.make)))
        return NotImplemented if found is None else found(pickler, obj)


@frozen
def call_resource(
    root: str, by: Any, args: tuple[Any, ...], kwargs: dict[str, Any], about: tuple[Any, ...]
) -> Any:
    """The object that a resource makes now."""
    kind, space = about
    if isinstance(by, Lost):
        return by
    missing = [name for name in by.env if name not in os.environ]
    if missing:
        what = f"the resource {by.name!r} needs {', '.join(missing)} in the environment"
        return gone(root, kind, what)
    try:
        with _bound(by.make, space):
            return by(*args, **kwargs)
    except Exception as exc:
        return gone(root, kind, f"the resource {by.name!r} raised {type(exc).__name__}: {exc}")


# -- classes -------------------------------------------------------------------------------------


def persistent(save: Callable[[Any], Any], load: Callable[[Any], Any]) -> Callable[[C], C]:
    """Decorate a class: its instances are written as `save(obj)`, and are `load(value)` again."""

    def decorate(kind: C) -> C:
        kind.__cave_persistent__ = (save, load)  # type: ignore[attr-defined]
        kind.__reduce_ex__ = _reduce_persistent  # type: ignore[assignment]
        return kind

    return decorate


@frozen
def _reduce_persistent(self: Any, _: int) -> Any:
    """What a persistent class has for pickle's `__reduce_ex__`."""
    save, load = type(self).__cave_persistent__
    return load_persistent, (load, save(self), needs(load))


@frozen
def load_persistent(load: Any, value: Any, space: dict[str, Any]) -> Any:
    """An instance from what its `save` gave."""
    if isinstance(value, Lost) or isinstance(load, Lost):
        return value if isinstance(value, Lost) else load
    with _bound(load, space):
        return load(value)


# -- names that they use: variables are bound only when everything is read ------------------------

_PLAIN = (str, bytes, int, float, bool, type(None))


def needs(function: Any) -> dict[str, Any]:
    """Globals that a function uses, and those that its functions and classes use in turn."""
    found: dict[str, Any] = {}
    space = getattr(function, "__globals__", {})
    todo = [function]
    while todo:
        for code in _codes(todo.pop(), space):
            for name in code.co_names:
                if name in space and name not in found and _goes(space[name]):
                    found[name] = space[name]
                    todo.append(space[name])
    return found


def _codes(obj: Any, space: dict[str, Any]) -> Iterator[types.CodeType]:
    """Code of functions that have these globals, and of methods of classes."""
    if isinstance(obj, Resource):
        obj = obj.make
    parts = [obj] if kinds.of(obj, types.FunctionType) else []
    if kinds.of(obj, type) and kinds.module(obj) == space.get("__name__"):
        parts = [part for part in kinds.space(obj).values() if kinds.of(part, types.FunctionType)]
    todo = [part.__code__ for part in parts if part.__globals__ is space]
    while todo:
        code = todo.pop()
        yield code
        todo += [const for const in code.co_consts if isinstance(const, types.CodeType)]


def _goes(value: Any, depth: int = 3) -> bool:
    """Whether a global can go along: what could lead back to the object itself cannot."""
    if kinds.of(value, *_PLAIN, types.ModuleType, types.FunctionType, type, Resource):
        return True
    if depth and type(value) in (list, tuple, set):
        return len(value) < 1000 and all(_goes(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return len(value) < 1000 and all(_goes(item, depth - 1) for item in value.values())
    return False


@contextlib.contextmanager
def _bound(function: Any, names: dict[str, Any]) -> Iterator[None]:
    """Within this block the function's globals have these names."""
    space = getattr(function, "__globals__", None)
    if space is None:
        yield
        return
    before = {name: space[name] for name in names if name in space}
    space.update(names)
    try:
        yield
    finally:
        for name in names:
            space.pop(name, None)
        space.update(before)


# -- entry points ----------------------------------------------------------------------------


def load_entry_points() -> None:
    """Let installed libraries register their rules. A fault of theirs is noted, no more."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            entry.load()(rules.rule)
        except Exception as exc:
            remark("lost", f"hidden:{GROUP}", "plugin", f"{entry.name} cannot be used: {exc!r}")
