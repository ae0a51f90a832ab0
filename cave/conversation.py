"""Turns: a person asks, the operator works. A part of `cave.session.AsyncSession`."""

from __future__ import annotations

import asyncio
import types
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cave import config, failpoints, loop
from cave.check import Check, Function, checks_of
from cave.config import Options, bindable
from cave.errors import CaveError, ConfigError, PutError, SkillError
from cave.events import CheckResult, CheckSpec, Event, TurnFinished, TurnResumed, TurnStarted, clean
from cave.history import History
from cave.home import Home
from cave.journal import Journal
from cave.operations import carried
from cave.operators import missing, resolve
from cave.policy import Budget
from cave.ports import Kernel, Operator
from cave.spending import Spending, raised
from cave.turn import Cell, Turn

if TYPE_CHECKING:
    from cave.operations import Operations


class Conversation:
    """What a session does with its operator."""

    name: str
    home: Home
    _options: Options
    _settings: config.Settings
    _operations: Operations
    _operator: Operator | None
    _spec: Any
    _journal: Journal
    _fold: History
    _work: loop.Work
    _spending: Spending
    _functions: dict[str, Function]
    """Those that checks of this process are, by name."""
    _gone_on: Turn | Cell | None = None
    """What went on by itself when it was approved, and was given to nobody yet."""

    @abstractmethod
    def _operation(
        self, on_event: Callable[[Event], None] | None = None
    ) -> AbstractAsyncContextManager[bool]: ...

    @abstractmethod
    async def _ready(self, *, news: bool) -> Kernel: ...

    @abstractmethod
    async def _resumed_cell(self, kernel: Kernel) -> Cell | None: ...

    @abstractmethod
    async def _go_on(self, kernel: Kernel, *, asked: bool = False) -> Kernel: ...

    @abstractmethod
    async def _keep_all(self) -> None: ...

    @abstractmethod
    async def _sleep(self) -> None: ...

    @abstractmethod
    async def _catalogue(self) -> str: ...

    @abstractmethod
    def _require_settled(self) -> None: ...

    @property
    @abstractmethod
    def _cell_timeout(self) -> float | None: ...

    @carried
    async def ask(
        self,
        prompt: str,
        *,
        budget: Budget | None = None,
        returns: str | None = None,
        done_when: Any = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> Turn:
        """Let the operator work on `prompt` until it answers and all `done_when` hold.

        `returns` names the variable to put into `turn.value`; where it cannot be had the turn
        stays done, and `turn.reason` says why. Raises `OperatorError` without a model, or when
        the provider fails for good; `SessionBusy`.
        """
        if not isinstance(prompt, str):
            raise ConfigError(f"a prompt is a text, not {type(prompt).__name__!r}")
        if returns is not None and not bindable(returns):
            raise ConfigError(f"returns={returns!r} is not the name of a variable")
        checks = self._checks(done_when)
        operator = self._require_operator()
        self._work.skills = await self._catalogue()
        async with self._operation(on_event) as news:
            self._require_settled()
            self._gone_on = None
            await self._ready(news=news)
            if self._fold.turn is not None:
                await self._supersede(self._fold.turn.n)
            await self._keep_all()
            failpoints.hit("turn.before_row")
            started = TurnStarted(
                turn=self._fold.next_turn,
                prompt=clean(prompt),
                operator=operator.name,
                limits=None if budget is None else budget.limits,
                checks=tuple(check.spec for check in checks),
            )
            await self._journal.append(started)
            return await self._turn(operator, budget, returns)

    def _checks(self, given: Any) -> tuple[Check, ...]:
        """What has to hold at the end of a turn: the session's, and the turn's own.

        Raises `ConfigError`.
        """
        checks = checks_of([*checks_of(self._options.done_when or ()), *checks_of(given)])
        self._functions |= {c.spec.name: _carried(c) for c in checks if c.function is not None}
        self._work.check = self._checked
        return checks

    async def _checked(self, kernel: Kernel, specs: Sequence[CheckSpec]) -> Sequence[CheckResult]:
        """How they come out. Of a function that another process was given nothing is known."""
        known = [s for s in specs if s.kind != "function" or s.name in self._functions]
        functions = {s.name: self._functions[s.name] for s in known if s.kind == "function"}
        lease, folder = self._journal.lease, str(self.home.workdir(self.name))
        try:
            results = await kernel.check(known, functions, folder=folder, lease=lease)
        except PutError as error:
            results = [CheckResult(s.name, passed=False, message=str(error)) for s in known]
        found = {result.name: result for result in results}
        gone = "its function is not in this process: open the session with done_when=[...] again"
        return [found.get(s.name, CheckResult(s.name, passed=False, message=gone)) for s in specs]

    def _raise_session(self, budget: Budget | None) -> None:
        """What stopped at the session's budget goes on when that is raised."""
        paused = self._fold.paused
        if budget is not None and paused is not None and paused.budget == "session":
            self._options = replace(self._options, budget=budget.over(self._options.budget))

    async def _supersede(self, turn: int) -> None:
        await self._journal.append(
            TurnFinished(turn=turn, status="interrupted", reason="a new request came first")
        )

    async def _turn(
        self, operator: Operator, budget: Budget | None, returns: str | None = None
    ) -> Turn:
        self._work.more = returns is not None or self._settings.persistence == "snapshot"
        await self._spending.begin(budget, self._options.budget)
        ended = await loop.run_turn(
            self._work, operator, self._spending, timeout=self._cell_timeout
        )
        turn = self._fold.turns[ended.turn]
        if returns is not None and turn.status == "done":
            turn = await self._with_value(turn, returns)
        await self._sleep()
        return turn

    async def _with_value(self, turn: Turn, name: str) -> Turn:
        try:
            kernel = await self._ready(news=False)
            return replace(turn, value=await kernel.get(name, lease=self._journal.lease))
        except CaveError as error:  # the answer is not lost with it
            return replace(turn, reason=f"turn.value is None: {error}")

    async def resume(
        self,
        *,
        budget: Budget | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> Turn | Cell | None:
        """Go on with what was cut or waits: a turn; a person's cell that still runs, that a
        death has cut, or that stopped at an effect in doubt or at an approval, which is settled
        now. What has gone on by itself since it was approved is given once.

        None when nothing waits.
        """
        return await self._resume(budget, on_event)

    @carried
    async def _resume(
        self,
        budget: Budget | None = None,
        on_event: Callable[[Event], None] | None = None,
        *,
        by_itself: bool = False,
    ) -> Turn | Cell | None:
        async with self._operation(on_event) as news:
            self._require_settled()
            running = self._fold.running
            kernel = await self._ready(news=news or running is not None)
            turn = self._fold.turn or self._fold.waiting
            gone_on, self._gone_on = self._gone_on, None
            waits = self._waits_for_leave()
            if waits is not None:
                return waits
            again = None
            if turn is None or self._fold.cut.stopped is not None:
                again = await self._resumed_cell(kernel)
            else:
                await self._go_on(kernel, asked=True)
            if turn is None:
                cell = again or (self._fold.cells.get(running.cell) if running else None)
                self._gone_on = cell if by_itself else None
                return cell or gone_on
            operator = self._require_operator()
            self._checks(())
            self._work.skills = await self._catalogue()
            if self._fold.turn is None:
                self._raise_session(budget)
                limits = None if budget is None else raised(turn.limits, budget)
                resumed = TurnResumed(turn=turn.n, operator=operator.name, limits=limits)
                await self._journal.append(resumed)
            ended = await self._turn(operator, budget)
            self._gone_on = ended if by_itself else None
            return ended

    def _waits_for_leave(self) -> Turn | Cell | None:
        """What stopped at an approval that nobody has answered; it cannot go on."""
        fold = self._fold
        if fold.turn is not None or not any(fold.approvals.pending):
            return None
        if fold.waiting is not None:
            return fold.turns[fold.waiting.n]
        return None if fold.cut.stopped is None else fold.cells[fold.cut.stopped]

    async def stream(
        self, prompt: str, *, budget: Budget | None = None, done_when: Any = ()
    ) -> AsyncIterator[Event]:
        """`ask`, giving its events as they come; ends after `TurnFinished`."""
        inbox: asyncio.Queue[Event | None] = asyncio.Queue()
        work = self.ask(prompt, budget=budget, done_when=done_when, on_event=inbox.put_nowait)
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: inbox.put_nowait(None))
        try:
            while (event := await inbox.get()) is not None:
                yield event
            await task
        finally:
            task.cancel()

    def _require_operator(self) -> Operator:
        spec = self._options.operator
        if self._operator is None or spec is not self._spec:
            self._operator = resolve(
                spec if spec is not None else self._settings.model,
                max_retries=self._settings.max_retries,
            )
            self._spec = spec
        if self._operator is None:
            raise missing()
        return self._operator


def _carried(check: Check) -> Function:
    """The function of a check as it goes into a kernel. Raises `ConfigError`."""
    if not isinstance(check.function, types.FunctionType):
        assert check.function is not None
        return check.function
    from cave.skills.carried import carried

    try:
        return carried(check.function, {}, check.spec.name)
    except SkillError as error:
        raise ConfigError(str(error).replace("skill", "check")) from error
