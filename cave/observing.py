"""What a session tells to code of its user, and asks it. A part of `cave.session.AsyncSession`.

Three hooks: `on` hears events, `post_process` may rewrite an answer before it is journaled,
inspectors see what a cell is about to do and what became of the namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from cave.display import VarTable
from cave.errors import ConfigError
from cave.events import CellStarted, Event, Fault, Restored, SnapshotCommitted, Variable
from cave.history import History
from cave.hooks import Hooks, name_of
from cave.journal import Journal
from cave.loop import Work
from cave.report import Diff
from cave.turn import Cell

F = TypeVar("F", bound=Callable[..., Any])

Trigger = Literal["pre_execute", "post_execute", "snapshot", "restore"]
_EVENTS: dict[type[Event], Trigger] = {SnapshotCommitted: "snapshot", Restored: "restore"}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an inspector is shown.

    `diff` is since the cell began (`post_execute`), since the snapshot before (`snapshot`), or
    since the cell before (`restore`); before a cell everything is `unchanged`.
    """

    trigger: Trigger
    cell: Cell | None
    """The cell that begins or has ended, or after which the snapshot stands; one that only
    begins has no outputs and no status of its own yet."""
    diff: Diff
    vars: VarTable
    """The variables as they are known now, without asking the kernel."""


Inspector = Callable[[Inspection], Any]


class Inspectors:
    """The inspectors of one session."""

    def __init__(self, history: History, hooks: Hooks) -> None:
        self._history = history
        self._hooks = hooks
        self._all: list[tuple[Trigger, Inspector]] = []
        self._before: dict[Trigger, Mapping[str, Variable]] = {}

    def attach(self, trigger: Trigger, callback: Inspector) -> Callable[[], None]:
        """Have it called; gives the undo. Raises `ConfigError`."""
        if trigger not in get_args(Trigger):
            raise ConfigError(
                f"no trigger {trigger!r}; choose one of {', '.join(get_args(Trigger))}"
            )
        _check(callback, "an inspector")
        entry = trigger, callback
        self._all.append(entry)
        self._before[trigger] = dict(self._history.variables)
        return lambda: self._all.remove(entry)

    async def before(self, started: CellStarted) -> Fault | None:
        """Show a cell that is about to run; an inspector that raises has denied it."""
        for inspector in self._of("pre_execute"):
            cell = Cell(started.cell, started.source, started.note, started.origin)
            shown = self._inspection("pre_execute", cell, self._history.variables)
            name = name_of(inspector)
            try:
                await self._hooks.now(name, partial(inspector, shown))
            except Exception as fault:  # noqa: BLE001  the user's own: it has said no
                return _denied(name, fault)
        self._keep("post_execute")
        return None

    async def after(self, cell: Cell) -> None:
        """Show a cell that has ended, before anything else is done."""
        for inspector in self._of("post_execute"):
            shown = self._inspection("post_execute", cell, self._before["post_execute"])
            name = name_of(inspector)
            try:
                await self._hooks.now(name, partial(inspector, shown))
            except Exception as fault:  # noqa: BLE001  the user's own: the cell has ended
                self._hooks.tell(name, fault)

    def hear(self, event: Event) -> None:
        """Show a snapshot or a restore, when the work has gone on."""
        trigger = _EVENTS.get(type(event))
        if trigger is None or not self._all:
            self._keep("restore")
            return
        cell = self._history.cells.get(getattr(event, "cell", 0))
        for inspector in self._of(trigger):
            shown = self._inspection(trigger, cell, self._before[trigger])
            self._hooks.later(name_of(inspector), partial(inspector, shown))
        self._keep(trigger)
        self._keep("restore")

    def _of(self, trigger: Trigger) -> list[Inspector]:
        return [inspector for when, inspector in self._all if when == trigger]

    def _keep(self, trigger: Trigger) -> None:
        if trigger in self._before:
            self._before[trigger] = dict(self._history.variables)

    def _inspection(
        self, trigger: Trigger, cell: Cell | None, before: Mapping[str, Variable]
    ) -> Inspection:
        now = self._history.variables
        rows = VarTable(self._history.lasting.of(tuple(now.values())))
        return Inspection(trigger, cell, difference(before, now), rows)


def difference(before: Mapping[str, Variable], now: Mapping[str, Variable]) -> Diff:
    """Which names were added, changed and removed, by what is known of them."""
    both = [name for name in now if name in before]
    return Diff(
        added=tuple(name for name in now if name not in before),
        changed=tuple(name for name in both if now[name] != before[name]),
        removed=tuple(name for name in before if name not in now),
        unchanged=tuple(name for name in both if now[name] == before[name]),
    )


class Observing:
    """Hooks of a session."""

    name: str
    _journal: Journal
    _hooks: Hooks
    _inspectors: Inspectors
    _work: Work
    _rewriters: list[Callable[[str], Any]]
    _allowed: Callable[[CellStarted], Awaitable[Fault | None]] | None

    def _begin_observing(self, history: History) -> None:
        self._hooks = Hooks(self.name)
        self._inspectors = Inspectors(history, self._hooks)
        self._rewriters = []
        self._journal.listen(self._inspectors.hear)
        self._allowed = self._work.vet
        self._work.vet = self._vet
        self._work.seen = self._inspectors.after
        self._work.rewrite = self._rewritten

    async def _vet(self, started: CellStarted) -> Fault | None:
        why = None if self._allowed is None else await self._allowed(started)
        return why or await self._inspectors.before(started)

    def on(self, kind: type[Event]) -> Callable[[F], F]:
        """Decorator: have a function (also a coroutine function) called with every event of a
        type, in their order, beside the work; what it raises tears nothing."""
        if not _is_event(kind):
            raise ConfigError(
                f"{kind!r} is no type of event; write for example @s.on(cave.events.CellFinished)"
            )

        def register(function: F) -> F:
            _check(function, "what hears events")

            def hear(event: Event) -> None:
                if isinstance(event, kind):
                    self._hooks.later(name_of(function), partial(function, event))

            self._journal.listen(hear)
            return function

        return register

    def post_process(self, function: F) -> F:
        """Decorator: let a function rewrite each turn's answer before it is journaled. It is
        given the text and gives another; None leaves it as it is."""
        _check(function, "what rewrites answers")
        self._rewriters.append(function)
        return function

    def attach_inspector(self, trigger: Trigger, callback: Inspector) -> Callable[[], None]:
        """Have `callback(Inspection)` called at a trigger: `pre_execute` (raising denies the
        cell), `post_execute`, `snapshot`, `restore`. Gives a function that detaches it."""
        return self._inspectors.attach(trigger, callback)

    async def _rewritten(self, answer: str) -> tuple[str, str]:
        """The answer as the hooks leave it, and what went wrong with them."""
        wrong: list[str] = []
        for function in self._rewriters:
            name = name_of(function)
            try:
                given = await self._hooks.now(name, partial(function, answer))
            except Exception as fault:  # noqa: BLE001  the user's own: the answer stays
                wrong.append(f"{name} raised {type(fault).__name__}: {fault}")
                continue
            if isinstance(given, str):
                answer = given
            elif given is not None:
                wrong.append(f"{name} gave {type(given).__name__!r}, not a text")
        return answer, f"the answer was not rewritten: {'; '.join(wrong)}" if wrong else ""


def _is_event(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event)


def _check(function: Any, what: str) -> None:
    if not callable(function):
        raise ConfigError(f"{what} is a function, not {type(function).__name__!r}")


def _denied(name: str, fault: BaseException) -> Fault:
    text = f"{type(fault).__name__}: {fault}".removesuffix(": ")
    return Fault("PolicyViolation", f"the inspector {name!r} stopped the cell ({text})")
