"""asyncio: the kernel's own loop is found again; tasks end with their process.

What is done stays done: a finished task comes back as a future with its result.
"""

from __future__ import annotations

import asyncio
import collections
import warnings
from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .recipes_processes import losing
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

losing(
    "a call that a loop of this process was to make",
    "asyncio.events.Handle", "asyncio.events.TimerHandle",
)  # fmt: skip
losing(
    "a connection or process of a loop that ended",
    "asyncio.streams.StreamReader", "asyncio.streams.StreamWriter", "asyncio.base_events.Server",
    "asyncio.transports.BaseTransport", "asyncio.subprocess.Process",
)  # fmt: skip
losing("it belongs to a block that is entered", "asyncio.taskgroups.TaskGroup",
       "asyncio.timeouts.Timeout", "asyncio.runners.Runner")  # fmt: skip


@rule("asyncio.events.AbstractEventLoop", "tornado.ioloop.IOLoop", derived=True)
def _loop(pickler: Pickler, obj: Any) -> Any:
    """The loop that cells run in is there after any restart; other loops are not."""
    if obj is _here() or getattr(obj, "asyncio_loop", None) is _here():
        return kernel_loop, (hasattr(obj, "asyncio_loop"),)
    return pickler.lose(obj, "a loop of its own; make it again")


def _here() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:
            return None


@frozen
def kernel_loop(tornado: Any) -> Any:
    """The loop that cells run in, or tornado's view of it."""
    if tornado:
        from tornado.ioloop import IOLoop

        return IOLoop.current()
    found = _here()
    if found is None:
        asyncio.set_event_loop(found := asyncio.new_event_loop())
    return found


@rule("_asyncio.Task", "_asyncio.Future", "asyncio.tasks.Task", "asyncio.futures.Future",
      derived=True)  # fmt: skip
def _future(pickler: Pickler, obj: Any) -> Any:
    if not obj.done():
        return pickler.lose(obj, "it was not done, and ended with its process")
    if isinstance(obj, asyncio.Task):
        pickler.rebuilt(obj, "a future that is done as the task was")
    if obj.cancelled():
        state: tuple[str, Any] = ("cancelled", None)
    elif (error := obj.exception()) is not None:
        state = ("exception", error)
    else:
        state = ("result", obj.result())
    return make_done_future, (), state, None, None, fill_done_future


@frozen
def make_done_future() -> Any:
    """A future of the kernel's loop."""
    return asyncio.Future(loop=_here() or asyncio.new_event_loop())


@frozen
def fill_done_future(made: Any, state: tuple[str, Any]) -> None:
    """It is done."""
    how, value = state
    if how == "cancelled":
        made.cancel()
    elif how == "exception":
        made.set_exception(value)
        made.exception()  # it has been seen: nobody is warned of it
    else:
        made.set_result(value)


@rule("asyncio.mixins._LoopBoundMixin", derived=True)
def _primitive(pickler: Pickler, obj: Any) -> Any:
    """Locks, events and queues of asyncio: unbound from their loop, nobody waiting."""
    state = {**obj.__dict__, "_loop": None}
    waiting = 0
    for name in ("_waiters", "_getters", "_putters"):
        if state.get(name):
            waiting += len(state[name])
            state[name] = collections.deque() if name != "_waiters" or _eager(obj) else None
    if waiting:
        pickler.rebuilt(obj, f"{waiting} task(s) waited for it, and wait no more")
    return make_primitive, (type(obj),), state, None, None, fill_primitive


def _eager(obj: Any) -> bool:
    """Events and conditions always have a queue of who waits, locks have it when needed."""
    return isinstance(obj, asyncio.Event | asyncio.Condition)


@frozen
def make_primitive(kind: Any) -> Any:
    """A lock, event or queue of asyncio without its state."""
    return kind.__new__(kind)


@frozen
def fill_primitive(made: Any, state: dict[str, Any]) -> None:
    """Its state."""
    made.__dict__.update(state)
