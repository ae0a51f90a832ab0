"""Hidden state of Python's own: folder, environment, paths, random, warnings, signals, ..."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # typeshed has it as `signal` only
import asyncio
import builtins
import logging
import os
import random
import signal
import sys
import threading
import warnings
from array import array
from typing import Any

from .. import threads
from . import places, secrets
from .hidden_kind import Kind
from .lost import Lost


class Random(Kind):
    """The generator behind `random.random()`."""

    name = "random"

    def read(self) -> Any:
        version, words, gauss = random.getstate()
        return version, array("I", words).tobytes(), gauss

    def apply(self, value: Any) -> None:
        if value is not None:
            version, words, gauss = value
            random.setstate((version, tuple(array("I", words)), gauss))


class Environment(Kind):
    """`os.environ`, as what differs from the kernel's start. Secrets are named, not kept."""

    name = "environ"

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[str, str] = {}
        self._raw: Any = None
        self._seen: Any = None

    def remember(self) -> None:
        self._start = dict(os.environ)
        self._raw = dict(vars(os.environ)["_data"])

    def read(self) -> Any:
        data = vars(os.environ)["_data"]
        if data == self._raw:
            return None
        if self._last is None or data != self._seen:
            self._seen = dict(data)
            return self._difference()
        return self._last

    def _difference(self) -> Any:
        now = dict(os.environ)
        changed = {k: v for k, v in now.items() if self._start.get(k) != v}
        hidden = sorted(k for k, v in changed.items() if secrets.is_secret(k, v))
        kept = {k: v for k, v in changed.items() if k not in hidden}
        return kept, tuple(sorted(k for k in self._start if k not in now)), tuple(hidden)

    def apply(self, value: Any) -> None:
        kept, removed, hidden = value or ({}, (), ())
        target = {k: v for k, v in self._start.items() if k not in removed} | kept
        for name in hidden:
            if name in os.environ:
                target[name] = os.environ[name]
            else:
                self.note(
                    "lost", name, f"{name} is a secret, and this environment does not have it"
                )
        for name in [name for name in os.environ if name not in target]:
            del os.environ[name]
        for name, text in target.items():
            if os.environ.get(name) != text:
                os.environ[name] = text


class Home(Kind):
    """The session's own folder, where its kernels start: in a fork it is another."""

    name = "home"
    _start = ""

    def remember(self) -> None:
        self._start = os.getcwd()
        places.remember(self._start)

    def read(self) -> Any:
        return self._start or None

    def apply(self, value: Any) -> None:
        places.moved(value or "", self._start)


class WorkingDirectory(Kind):
    """Where relative paths start."""

    name = "cwd"
    _start = ""

    def remember(self) -> None:
        self._start = os.getcwd()

    def read(self) -> Any:
        try:
            now = os.getcwd()
        except FileNotFoundError:
            return None
        return None if now == self._start else now

    def apply(self, value: Any) -> None:
        wanted = places.here(value) if value else self._start
        try:
            if not wanted or os.getcwd() == wanted:
                return
        except FileNotFoundError:
            pass
        try:
            os.chdir(wanted)
        except OSError as exc:
            self.note("lost", "cwd", f"the folder {wanted!r} cannot be entered: {exc.strerror}")


class Path(Kind):
    """`sys.path`; in another installation, what was added to it and taken away."""

    name = "path"
    _start: tuple[str, ...] = ()

    def remember(self) -> None:
        self._start = tuple(sys.path)

    def read(self) -> Any:
        now = tuple(sys.path)
        return None if now == self._start else (self._start, now)

    def apply(self, value: Any) -> None:
        start, now = value or (self._start, self._start)
        if start == self._start:
            wanted = list(now)
        else:
            first = next((i for i, entry in enumerate(now) if entry in start), len(now))
            taken = set(start) - set(now)
            kept = [entry for entry in self._start if entry not in taken]
            added = [entry for entry in now[first:] if entry not in start]
            wanted = [*now[:first], *kept, *added]
        wanted = [places.here(entry) if isinstance(entry, str) else entry for entry in wanted]
        if sys.path != wanted:
            sys.path[:] = wanted


class Limits(Kind):
    """Recursion limit and the like."""

    name = "limits"
    _start: Any = None

    def remember(self) -> None:
        self._start = self._now()

    def _now(self) -> Any:
        return sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.getswitchinterval()

    def read(self) -> Any:
        now = self._now()
        return None if now == self._start else now

    def apply(self, value: Any) -> None:
        calls, digits, interval = value or self._start
        sys.setrecursionlimit(calls)
        sys.set_int_max_str_digits(digits)
        sys.setswitchinterval(interval)


class Warnings(Kind):
    """Filters of warnings, in their order."""

    name = "warnings"
    _start: Any = None

    def remember(self) -> None:
        self._start = list(warnings.filters)

    def read(self) -> Any:
        return None if warnings.filters == self._start else list(warnings.filters)

    def apply(self, value: Any) -> None:
        wanted = self._start if value is None else [f for f in value if not isinstance(f, Lost)]
        if warnings.filters != wanted:
            filters: Any = warnings.filters
            filters[:] = wanted
            warnings.filterwarnings("ignore", message="cave")  # modules look again after a change
            filters[:] = wanted


class Decimals(Kind):
    """The context of decimal arithmetic."""

    name = "decimal"

    def read(self) -> Any:
        decimal = sys.modules.get("decimal")
        if decimal is None:
            return None
        now = decimal.getcontext().__reduce__()[1]
        return None if now == decimal.DefaultContext.__reduce__()[1] else now

    def apply(self, value: Any) -> None:
        if value is not None or "decimal" in sys.modules:
            import decimal

            context = decimal.DefaultContext.copy() if value is None else decimal.Context(*value)
            decimal.setcontext(context)


class Locale(Kind):
    """How numbers and dates are written, where a cell has set it."""

    name = "locale"
    _start: Any = None

    def remember(self) -> None:
        self._start = self._now()

    def _now(self) -> Any:
        locale = sys.modules.get("_locale")
        return None if locale is None else locale.setlocale(locale.LC_ALL, None)

    def read(self) -> Any:
        now = self._now()
        return None if now == self._start else now

    def apply(self, value: Any) -> None:
        import locale

        wanted = value or self._start
        if wanted is None or wanted == self._now():
            return
        try:
            locale.setlocale(locale.LC_ALL, wanted)
        except locale.Error:
            self.note("lost", "locale", f"this system has no locale {wanted!r}")


_DIALECTS = frozenset({"excel", "excel-tab", "unix"})
_OF_DIALECT = ("delimiter", "quotechar", "escapechar", "doublequote", "skipinitialspace",
               "lineterminator", "quoting", "strict")  # fmt: skip


class Dialects(Kind):
    """Dialects of csv that cells have registered."""

    name = "csv"

    def read(self) -> Any:
        csv: Any = sys.modules.get("_csv")
        if csv is None:
            return None
        return {
            name: {part: getattr(csv.get_dialect(name), part) for part in _OF_DIALECT}
            for name in csv.list_dialects()
            if name not in _DIALECTS
        } or None

    def apply(self, value: Any) -> None:
        if value is None and "_csv" not in sys.modules:
            return
        import csv

        for name in set(csv.list_dialects()) - _DIALECTS:
            csv.unregister_dialect(name)
        for name, parts in (value or {}).items():
            csv.register_dialect(name, **parts)


class Builtins(Kind):
    """Names that cells added to builtins, or replaced there."""

    name = "builtins"
    mutable = True
    _ours = frozenset({"_", "__", "___", "display", "get_ipython", "__IPYTHON__", "exit", "quit",
                       "copyright", "credits", "license", "help", "__tracebackhide__",
                       "input"})  # fmt: skip
    """Those of the shell; `input` is put there for each cell, and is the kernel's while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[str, Any] = {}
        self._names: list[str] = []
        self._ids: list[int] = []

    def remember(self) -> None:
        self._start = dict(vars(builtins))
        self._names, self._ids = list(self._start), list(map(id, self._start.values()))

    def read(self) -> Any:
        start, ours = self._start, self._ours
        now = vars(builtins)
        if self._ids == list(map(id, now.values())) and self._names == list(now):
            return None
        changed = {
            name: value
            for name, value in dict(now).items()
            if start.get(name) is not value and name not in ours
        }
        return changed or None

    def apply(self, value: Any) -> None:
        space = vars(builtins)
        for name in self.read() or ():
            if name in self._start:
                space[name] = self._start[name]
            else:
                del space[name]
        space.update((k, v) for k, v in (value or {}).items() if not isinstance(v, Lost))


class Streams(Kind):
    """`sys.stdout` and `sys.stderr`, where a cell has put something else."""

    name = "streams"
    mutable = True

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[str, Any] = {}

    def remember(self) -> None:
        self._start = {name: getattr(sys, name) for name in ("stdout", "stderr", "stdin")}

    def read(self) -> Any:
        now = {k: getattr(sys, k) for k, v in self._start.items() if getattr(sys, k) is not v}
        return now or None

    def apply(self, value: Any) -> None:
        for name, ours in self._start.items():
            stream = (value or {}).get(name, ours)
            stream = ours if isinstance(stream, Lost) else stream
            if not getattr(stream, "closed", False):
                setattr(sys, name, stream)


class Signals(Kind):
    """Handlers of signals that a cell has set."""

    name = "signals"
    mutable = True
    _numbers = sorted(
        signal.valid_signals()
        - {signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGCHLD}
    )[:31]

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[int, Any] = {}

    def remember(self) -> None:
        self._start = {int(number): _signal.getsignal(number) for number in self._numbers}

    def read(self) -> Any:
        get = _signal.getsignal  # without an enum for each
        now = {k: handler for k, v in self._start.items() if (handler := get(k)) is not v}
        return now or None

    def apply(self, value: Any) -> None:
        wanted = {**self._start, **(value or {})}
        for number, handler in wanted.items():
            if handler is not None and not isinstance(handler, Lost) \
                    and _signal.getsignal(number) is not handler:  # fmt: skip
                signal.signal(number, handler)


class Threads(Kind):
    """Live threads of cells: they end with the process, and are named."""

    name = "threads"
    mutable = True

    def __init__(self) -> None:
        super().__init__()
        self._start: set[threading.Thread] = set()

    def remember(self) -> None:
        self._start = set(threading.enumerate())

    def read(self) -> Any:
        if threading.active_count() <= len(self._start):
            return None
        live = [thread for thread in threading.enumerate() if thread not in self._start]
        if not live:
            return None
        busy = set(threads.of_user())
        return tuple(thread for thread in live if thread.name in busy) or None

    def apply(self, value: Any) -> None:
        """There is nothing to bring back."""


class Tasks(Kind):
    """Pending tasks of cells: they end with the process, and are named."""

    name = "tasks"
    mutable = True

    def read(self) -> Any:
        try:
            tasks = asyncio.all_tasks()
        except RuntimeError:  # no loop runs
            return None
        found = [task for task in tasks if _of_cells(task.get_coro())]
        return tuple(sorted(found, key=lambda task: task.get_name())) or None

    def apply(self, value: Any) -> None:
        """There is nothing to bring back."""


def _of_cells(coro: Any) -> bool:
    frame = getattr(coro, "cr_frame", None)
    return frame is not None and frame.f_globals.get("__name__") == "__main__"


class Logging(Kind):
    """Loggers that cells have set up: levels, handlers, filters."""

    name = "logging"
    mutable = True

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[str, Any] = {}
        self._disabled = 0

    def remember(self) -> None:
        self._start = {name: _setup(logger) for name, logger in _loggers()}
        self._disabled = logging.root.manager.disable

    def read(self) -> Any:
        usual: Any = (0, True, False, [], [])
        start = self._start
        changed = [
            logger for name, logger in _loggers() if _setup(logger) != start.get(name, usual)
        ]
        disabled = logging.root.manager.disable
        if not changed and disabled == self._disabled:
            return None
        return tuple(changed), disabled

    def apply(self, value: Any) -> None:
        loggers, disabled = value or ((), self._disabled)
        for name, logger in _loggers():
            before = self._start.get(name, (0, True, False, [], []))
            if logger not in loggers and _setup(logger) != before:
                _restore(logger, before)
        logging.disable(disabled)


def _loggers() -> list[tuple[str, Any]]:
    known = logging.root.manager.loggerDict
    found = [(name, it) for name, it in list(known.items()) if type(it) is not logging.PlaceHolder]
    return [("", logging.root), *found]


def _setup(logger: Any) -> Any:
    return (
        logger.level, logger.propagate, logger.disabled, logger.filters[:],
        [it for it in logger.handlers if type(it) is not logging.NullHandler],
    )  # fmt: skip


def _restore(logger: Any, state: Any) -> None:
    level, logger.propagate, logger.disabled, filters, handlers = state
    logger.setLevel(level)
    logger.filters, logger.handlers = list(filters), list(handlers)


KINDS: list[Kind] = [
    Home(), Environment(), WorkingDirectory(), Path(), Limits(), Random(), Warnings(), Decimals(),
    Locale(), Dialects(), Builtins(), Streams(), Signals(), Threads(), Tasks(), Logging(),
]  # fmt: skip
