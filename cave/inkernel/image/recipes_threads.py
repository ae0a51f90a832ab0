"""Locks, threads, pools, futures and queues.

A lock that is free comes back as a new one that is free, which is the same thing. No thread
survives its process: one that ran is lost, and who waited waits no more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_HELD = "it was held; it comes back free"


# -- locks -----------------------------------------------------------------------------------


@rule("_thread.lock")
def _lock(pickler: Pickler, obj: Any) -> Any:
    if not obj.locked():
        return make_lock, ()
    pickler.rebuilt(obj, _HELD)
    return make_lock, (True,)


@frozen
def make_lock(_held: bool = False) -> Any:  # noqa: FBT002
    """A new lock, free, whatever it was."""
    return threading.Lock()


@rule("_thread.RLock", "threading._RLock")
def _rlock(pickler: Pickler, obj: Any) -> Any:
    if not _rlock_held(obj):
        return make_rlock, ()
    pickler.rebuilt(obj, _HELD)
    return make_rlock, (True,)


def _rlock_held(obj: Any) -> bool:
    if obj._is_owned() or not obj.acquire(blocking=False):
        return True
    obj.release()
    return False


@frozen
def make_rlock(_held: bool = False) -> Any:  # noqa: FBT002
    """A new reentrant lock, free, whatever it was."""
    return threading.RLock()


@rule("threading.Condition")
def _condition(pickler: Pickler, obj: Any) -> Any:
    if obj._waiters:
        pickler.rebuilt(obj, f"{len(obj._waiters)} thread(s) waited for it, and wait no more")
    return make_condition, (obj._lock,)


@frozen
def make_condition(lock: Any) -> Any:
    """A condition that nobody waits for."""
    return threading.Condition(lock)


@rule("threading.Barrier")
def _barrier(pickler: Pickler, obj: Any) -> Any:
    if obj.n_waiting:
        pickler.rebuilt(obj, f"{obj.n_waiting} thread(s) waited at it, and wait no more")
    return make_barrier, (obj.parties, obj._action, obj._timeout, obj.broken)


@frozen
def make_barrier(parties: int, action: Any, timeout: Any, broken: Any) -> Any:
    """A barrier that nobody waits at."""
    made = threading.Barrier(parties, action, timeout)
    if broken:
        made.abort()
    return made


@rule("_thread._local", derived=True)
def _local(_: Pickler, obj: Any) -> Any:
    """What this thread has in it; other threads are gone, and theirs with them."""
    return make_local, (type(obj),), dict(obj.__dict__), None, None, fill_local


@frozen
def make_local(kind: Any) -> Any:
    """Values of the thread that reads, none yet."""
    return kind.__new__(kind)


@frozen
def fill_local(made: Any, state: dict[str, Any]) -> None:
    """Its values."""
    made.__dict__.update(state)


# -- threads -----------------------------------------------------------------------------------

_OF_THREAD = frozenset(vars(threading.Thread(target=None))) | {"_target", "_args", "_kwargs", "run"}


@rule("threading.Thread", derived=True)
def _thread(pickler: Pickler, obj: threading.Thread) -> Any:
    if obj is threading.main_thread():
        return main_thread, ()
    if not _initialised(obj):
        return pickler.lose(obj, "a thread whose __init__ did not run")
    if obj.is_alive():
        return pickler.lose(obj, f"the thread {obj.name!r} was running, and ended with its process")
    ended = obj.ident is not None
    if ended:
        pickler.rebuilt(obj, "a thread that has ended, as it had; its ident is another")
    else:
        pickler.rebuilt(obj, "a thread that is not started yet, as it was")
    state = {
        "own": {name: value for name, value in vars(obj).items() if name not in _OF_THREAD},
        "base": {"name": obj.name, "daemon": obj.daemon},
        "call": {name: getattr(obj, f"_{name}", None) for name in ("target", "args", "kwargs")},
        "ended": ended,
    }
    return make_thread, (type(obj),), state, None, None, fill_thread


def _initialised(obj: threading.Thread) -> bool:
    return bool(getattr(obj, "_initialized", False))


@frozen
def main_thread() -> Any:
    """The thread that runs cells."""
    return threading.main_thread()


@frozen
def make_thread(kind: Any) -> Any:
    """A thread that was not initialised yet."""
    return kind.__new__(kind)


@frozen
def fill_thread(made: Any, state: dict[str, Any]) -> None:
    """Make it one that waits for its start, or has ended."""
    call = state["call"]
    call["args"] = call["args"] or ()
    threading.Thread.__init__(made, **call, **state["base"])
    if state["ended"]:
        made.run = _nothing
        made.start()
        made.join()
        vars(made).pop("run", None)
        for name in ("_target", "_args", "_kwargs"):
            vars(made).pop(name, None)
    vars(made).update(state["own"])


def _nothing() -> None:
    pass


# -- pools and futures -----------------------------------------------------------------------------


@rule("concurrent.futures.thread.ThreadPoolExecutor")
def _thread_pool(pickler: Pickler, obj: Any) -> Any:
    waiting = obj._work_queue.qsize()
    busy = len(obj._threads) - obj._idle_semaphore._value
    if obj._shutdown:
        pickler.rebuilt(obj, "a pool that is shut down, as it was")
    elif waiting or busy > 0:
        pickler.rebuilt(obj, f"new threads; work that was going on ({busy}) or waiting ({waiting}) "
                        "is gone")  # fmt: skip
    else:
        pickler.rebuilt(obj, "new threads, none busy, as before")
    settings = (obj._max_workers, obj._thread_name_prefix, obj._initializer, obj._initargs)
    return make_thread_pool, (settings, obj._shutdown)


@frozen
def make_thread_pool(settings: tuple[Any, ...], ended: Any) -> Any:
    """A pool of threads without work."""
    from concurrent.futures import ThreadPoolExecutor

    made = ThreadPoolExecutor(*settings)
    if ended:
        made.shutdown()
    return made


@rule("concurrent.futures.process.ProcessPoolExecutor")
def _process_pool(pickler: Pickler, obj: Any) -> Any:
    waiting = len(obj._pending_work_items)
    what = f"; {waiting} piece(s) of work are gone" if waiting else ""
    pickler.rebuilt(obj, f"new processes{what}")
    method = obj._mp_context.get_start_method(allow_none=True)
    settings = (obj._max_workers, method, obj._initializer, obj._initargs)
    return make_process_pool, (settings, bool(obj._shutdown_thread))


@frozen
def make_process_pool(settings: tuple[Any, ...], ended: Any) -> Any:
    """A pool of processes without work."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    workers, method, initializer, arguments = settings
    context = multiprocessing.get_context(method)
    made = ProcessPoolExecutor(workers, context, initializer, arguments)
    if ended:
        made.shutdown()
    return made


@rule("concurrent.futures._base.Future")
def _future(pickler: Pickler, obj: Any) -> Any:
    if not obj.done():
        return pickler.lose(obj, f"its work was {obj._state.lower()}, and ended with its process")
    return make_future, (), (obj._state, obj._result, obj._exception), None, None, fill_future


@frozen
def make_future() -> Any:
    """A future, not yet done."""
    from concurrent.futures import Future

    return Future()


@frozen
def fill_future(made: Any, state: tuple[Any, ...]) -> None:
    """It is done."""
    made._state, made._result, made._exception = state


# -- queues --------------------------------------------------------------------------------------


@rule("_queue.SimpleQueue")
def _simple_queue(_: Pickler, obj: Any) -> Any:
    """Its content can only be had by taking it out; it is put back at once."""
    import queue

    items = []
    try:
        while True:
            items.append(obj.get_nowait())
    except queue.Empty:
        pass
    for item in items:
        obj.put(item)
    return make_simple_queue, (), items, None, None, fill_simple_queue


@frozen
def make_simple_queue() -> Any:
    """An empty queue."""
    import queue

    return queue.SimpleQueue()


@frozen
def fill_simple_queue(made: Any, items: list[Any]) -> None:
    """Its items, in their order."""
    for item in items:
        made.put(item)
