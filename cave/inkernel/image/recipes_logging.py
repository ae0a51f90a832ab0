"""Loggers and their handlers: found by name, set up as they were."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .lost import Lost
from .remarks import remark
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_STATE = ("level", "propagate", "disabled", "filters", "handlers")


@rule("logging.Logger", derived=True)
def _logger(_: Pickler, obj: Any) -> Any:
    root = obj is logging.root
    known = root or logging.root.manager.loggerDict.get(obj.name) is obj
    state = {name: getattr(obj, name) for name in _STATE}
    if not known:
        state.update(vars(obj))
        state.pop("_cache", None)
        state.pop("manager", None)
    name = None if root else obj.name
    return make_logger, (name, None if known else type(obj)), state, None, None, fill_logger


@frozen
def make_logger(name: str | None, kind: Any) -> Any:
    """The logger of that name (None for the root), or one that the registry does not have."""
    return logging.getLogger(name) if kind is None else kind(name)


@frozen
def fill_logger(made: Any, state: dict[str, Any]) -> None:
    """Its level, handlers, filters."""
    state = dict(state)
    for name in ("handlers", "filters"):
        kept = [part for part in state[name] if not isinstance(part, Lost)]
        state[name] = kept
    made.setLevel(state.pop("level"))
    vars(made).update(state)


@rule("logging._StderrHandler")
def _last_resort(_: Pickler, obj: Any) -> Any:
    return (last_resort, ()) if obj is logging.lastResort else NotImplemented


@frozen
def last_resort() -> Any:
    """The handler that logging has for those who set up none."""
    return logging.lastResort


@rule("logging.Handler", derived=True)
def _handler(pickler: Pickler, obj: Any) -> Any:
    state = {name: value for name, value in vars(obj).items() if name != "lock"}
    return make_handler, (pickler.root, type(obj)), state, None, None, fill_handler


@frozen
def make_handler(root: str, kind: Any) -> Any:
    """A handler without its settings."""
    made = kind.__new__(kind)
    made.__dict__["_cave_root"] = root
    return made


@frozen
def fill_handler(made: Any, state: dict[str, Any]) -> None:
    """Its settings, a new lock, and its place among what is flushed at the end."""
    root = made.__dict__.pop("_cave_root")
    vars(made).update(state)
    made.createLock()
    stream = state.get("stream")
    if isinstance(stream, Lost):
        kind = type(made).__name__
        if isinstance(made, logging.FileHandler):
            made.stream = None  # opened again at the next record
            made.mode = "a"
            remark("rebuilt", root, kind, f"its file {made.baseFilename!r} is made anew")
        else:
            made.stream = sys.stderr
            remark("changed", root, kind, "its stream is lost; it writes to stderr")
    for name in ("sock", "listener"):
        if isinstance(state.get(name), Lost):
            setattr(made, name, None)
    vars(logging)["_addHandlerRef"](made)
    if state.get("_name"):
        vars(logging)["_handlers"][state["_name"]] = made
