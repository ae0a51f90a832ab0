"""The turn loop: ask the operator, run its cell, observe, until it answers.

Pure over the ports: it knows a journal, a supply of kernels, an operator and a blob store,
and writes each fact before it acts on it, so that another process can go on with the turn
from the journal alone. What a model may do wrong (nonsense, two blocks, an unterminated
fence, empty text, never finishing) is journaled and told to it, never run by guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from cave import failpoints, stream
from cave.errors import KernelDied, LeaseLost, OperatorError
from cave.events import (
    CellFinished,
    CellOrigin,
    CellOutput,
    CellResumed,
    CellStarted,
    Checked,
    CheckResult,
    CheckSpec,
    Fault,
    InterruptSent,
    Output,
    ReplyKind,
    StepReplied,
    StepStarted,
    TextDelta,
    TurnFinished,
    TurnStatus,
    Usage,
    clean,
)
from cave.history import History
from cave.journal import Journal
from cave.ports import Begin, Executed, Kernel, Operator, Reply, View, Wanted
from cave.recovery import Supply, death_fault, names, never_sent
from cave.spending import Grant, Refused, Spending
from cave.turn import Cell
from cave.wishes import Interruption

MALFORMED_LIMIT = 3
"""Replies in a row that cannot be understood before the turn stops for a person."""


POLL = 0.01
"""Seconds between looks at a cell that was told to stop."""

PATIENCE = 5.0
"""Seconds that an operator which is given up has to let go."""


@dataclass(frozen=True, slots=True)
class Halt:
    """How a turn ends that was steered from outside."""

    status: TurnStatus
    reason: str
    over: bool = False


@dataclass(slots=True)
class Stop:
    """The wish of a person that what runs shall stop."""

    wished: asyncio.Event = field(default_factory=asyncio.Event)
    """Now."""
    halt: Halt | None = None
    """The turn, after its step at the latest."""

    async def race(self, work: asyncio.Task[Reply]) -> Reply | None:
        """The result of `work`, or None when the wish came first (then it is cancelled)."""
        wish = asyncio.ensure_future(self.wished.wait())
        try:
            await asyncio.wait({work, wish}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            return None
        finally:
            wish.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=PATIENCE)


@dataclass(slots=True)
class Work:
    """What an operation works with."""

    journal: Journal
    supply: Supply
    sync: bool = True
    """Whether ends of cells and turns wait for the disk."""
    more: bool = False
    """Whether the operation goes on after the end of the turn."""
    stop: Stop = field(default_factory=Stop)
    skills: str = ""
    """The catalogue of what cells may call, for the operator."""
    vet: Callable[[CellStarted], Awaitable[Fault | None]] | None = None
    """Says why a cell may not run, or not yet; None: it may."""
    offer: Callable[[Kernel], Awaitable[None]] | None = None
    """Lets cells of a kernel call the skills of now."""
    seen: Callable[[Cell], Awaitable[None]] | None = None
    """Shows others a cell that has ended."""
    check: Callable[[Kernel, Sequence[CheckSpec]], Awaitable[Sequence[CheckResult]]] | None = None
    """Says how what has to hold at the end of a turn comes out."""
    rewrite: Callable[[str], Awaitable[tuple[str, str]]] | None = None
    """Makes another answer of an answer, and says what went wrong with that."""


async def run_cell(
    work: Work,
    kernel: Kernel,
    source: str,
    *,
    note: str = "",
    origin: CellOrigin = "person",
    turn: int | None = None,
    step: int | None = None,
    timeout: float | None = None,
) -> Cell:
    """Run one cell to its end and journal it. Faults and deaths are in the Cell."""
    journal = work.journal
    n, source = journal.history.next_cell, clean(source)
    started = CellStarted(
        cell=n,
        source=source,
        note=note,
        origin=origin,
        turn=turn,
        step=step,
        kernel=work.supply.number,
        timeout=timeout,
    )
    await journal.append(started)
    if work.stop.wished.is_set():  # while its kernel came up, or it was being written
        await journal.append(never_sent(n, "it was interrupted before it began"), sync=work.sync)
        return journal.history.cells[n]
    return await _vetted(work, kernel, started)


async def rerun_cell(work: Work, kernel: Kernel, n: int) -> Cell:
    """Run a cell that a death cut once more, under its number: from its start, or from where
    the namespace is that of its midst."""
    journal = work.journal
    await journal.append(CellResumed(cell=n, kernel=work.supply.number))
    history = journal.history
    source = history.source_of(n)
    assert history.running is not None
    assert source is not None
    started = replace(history.running, source=source)
    return await _vetted(work, kernel, started, _begin(history))


def _begin(history: History) -> Begin:
    at = history.resumed
    deaths = dict(history.cut.deaths)
    if at is None:
        return Begin(deaths=deaths)
    return Begin(at.statement, at.calls, at.forks, at.items, at.keys, deaths)


async def _vetted(
    work: Work, kernel: Kernel, started: CellStarted, begin: Begin | None = None
) -> Cell:
    """Run a cell that the policy and people allow; what they say of another is its error."""
    why = None if work.vet is None else await work.vet(started)
    if why is None:
        return await _send(work, kernel, started, begin)
    journal, n = work.journal, started.cell
    await journal.append(CellFinished(cell=n, status="denied", error=why), sync=work.sync)
    return journal.history.cells[n]


async def _send(
    work: Work, kernel: Kernel, started: CellStarted, begin: Begin | None = None
) -> Cell:
    journal, n = work.journal, started.cell
    failpoints.hit("cell.before_send")
    wanted = work.supply.lineage.wanted(n)
    executed = await kernel.execute(
        started.source,
        cell=n,
        lease=journal.lease,
        timeout=started.timeout,
        on_output=_publisher(journal, n),
        wanted=wanted,
        begin=begin,
    )
    failpoints.hit("cell.before_finish")
    await _end_cell(work, kernel, executed, started, wanted)
    if work.seen is not None:
        await work.seen(journal.history.cells[n])
    return journal.history.cells[n]


def _publisher(journal: Journal, cell: int) -> Callable[[Output], None]:
    return lambda output: journal.publish(CellOutput(cell=cell, output=output))


async def _end_cell(
    work: Work,
    kernel: Kernel,
    executed: Executed,
    started: CellStarted,
    wanted: Wanted | None,
) -> None:
    n, turn = started.cell, started.turn
    journal, sync = work.journal, work.sync and turn is None
    death = kernel.death if not executed.kept else None
    lineage = work.supply.lineage
    if death is not None:
        await lineage.settle()
        await work.supply.keep_progress()
        fault = death_fault(death, work.supply.losses(), lineage.back)
        if executed.status == "timeout" and executed.error is not None:
            fault = Fault(executed.error.name, f"{executed.error.message}; {fault.message}")
        executed = replace(executed, error=fault)
    else:
        executed = replace(executed, error=_with_loss(journal, executed.error))
    before = journal.history.outputs_before(n)
    event: CellFinished = await work.supply.finished(n, executed, before)
    late, last = await work.supply.late_events(), turn is None and death is None
    due = death is None and lineage.due
    asked = await lineage.ask(kernel, n, wanted) if due else None  # written meanwhile
    number = work.supply.number
    saved = await lineage.at_once(asked, event, number) if asked and not late else None
    if saved is not None:
        await journal.append(event, saved, sync=sync, last=last)
        lineage.saved(saved)
    else:
        await journal.append(*late, event, sync=sync and not due, last=last and not due)
    if death is not None:
        await work.supply.bury(death, alone=True)
        return
    kernel.ack(journal.history.spool)
    if due and saved is None:
        await lineage.take(kernel, number, wait=False, sync=sync, last=last, asked=asked)


def _with_loss(journal: Journal, error: Fault | None) -> Fault | None:
    """A NameError on a lost name also says what was lost and why."""
    if error is None or error.name != "NameError":
        return error
    for variable in journal.history.lost:
        if f"'{variable.name}'" in error.message:
            made = f", made by cell {variable.cell}" if variable.cell else ""
            note = f"lost with an earlier kernel: {names((variable,))}{made}"
            return replace(error, message=f"{error.message} ({note})")
    return error


# -- stopping --------------------------------------------------------------------------------


async def stop_cell(work: Work, *, kill: bool) -> Interruption:
    """Stop what runs, each step in the journal: SIGINT, and SIGKILL when that has no effect."""
    work.stop.wished.set()
    journal, kernel = work.journal, work.supply.kernel
    running = journal.history.running
    if kernel is None or running is None:
        return Interruption(stopped=True, message="the model's call is given up; no cell ran")
    cell = f"cell {running.cell}"
    await _log_stop(journal, running.cell, "sigint")
    stopped = await kernel.interrupt(kill=kill, cell=running.cell)
    while stopped and kernel.death is None and journal.history.running is running:
        await asyncio.sleep(POLL)  # it was just being sent, or its end is being journaled
        stopped = await kernel.interrupt(kill=kill, cell=running.cell)
    if stopped and kernel.death is None:
        return Interruption(stopped=True, message=f"{cell} was interrupted")
    if stopped:
        await _log_stop(journal, running.cell, "sigkill", "SIGINT had no effect")
        return Interruption(stopped=True, message=f"{cell} ignored SIGINT; the kernel was killed")
    message = (
        f"{cell} ignores SIGINT and still runs; killing the kernel would lose "
        f"{len(journal.history.variables)} variables: s.interrupt(kill=True) does it"
    )
    await _log_stop(journal, running.cell, "refused", message)
    return Interruption(stopped=False, message=message)


async def _log_stop(
    journal: Journal, cell: int, action: Literal["sigint", "sigkill", "refused"], reason: str = ""
) -> None:
    with suppress(LeaseLost):  # the operation has ended meanwhile: its end tells the story
        await journal.append(InterruptSent(cell=cell, action=action, reason=reason))


# -- turns -----------------------------------------------------------------------------------


async def run_turn(
    work: Work, operator: Operator, spending: Spending, *, timeout: float | None = None
) -> TurnFinished:
    """Go on with the open turn of the journal until it ends or waits.

    `spending` says what it may cost. Raises `OperatorError` when the provider fails for good;
    the turn is journaled as failed then and can be resumed.
    """
    history = work.journal.history
    assert history.turn is not None
    while True:
        if work.stop.wished.is_set() or work.stop.halt is not None:
            return await _interrupted(work)
        if (waits := await _unapproved(work)) is not None:
            return waits
        if work.supply.kernel is None:  # its successor comes first: the operator is told of it
            await work.supply.ready(news=False)
        await _offered(work)
        granted = await spending.call(operator, lambda: _view(work, operator))
        if isinstance(granted, Refused):
            return await _paused(work, granted)
        try:
            reply = await _ask(work, operator, spending, granted)
        except TimeoutError:
            return await _paused(work, spending.late())
        except OperatorError as error:
            await _finish(work, "failed", reason=str(error))
            raise
        if reply is None:
            return await _interrupted(work)
        ended = await _act(work, reply, spending, timeout)
        if ended is not None:
            return ended


async def _offered(work: Work) -> None:
    """Skills that the last cell has activated can be called by the next; a new kernel's too."""
    if work.offer is not None and work.supply.kernel is not None:
        with suppress(KernelDied):  # the next cell finds that out, and tells of it
            await work.offer(work.supply.kernel)


async def _paused(work: Work, refused: Refused) -> TurnFinished:
    await work.journal.append(refused.paused)
    return await _finish(work, "over_budget", reason=refused.reason)


def _view(work: Work, operator: Operator) -> View:
    """What the operator sees now."""
    journal = work.journal
    context = getattr(operator, "context_tokens", None)
    view = stream.view(journal.history, context_tokens=context, skills=work.skills)
    if journal.mask is not None:  # older records may hold what is a secret since
        view = journal.mask.value(view)
    return view


async def _ask(work: Work, operator: Operator, spending: Spending, granted: Grant) -> Reply | None:
    """One call of the operator, journaled; None when it was interrupted.

    Raises `TimeoutError` when the seconds of the budget are over.
    """
    journal = work.journal
    turn = journal.history.turn
    assert turn is not None
    step = turn.asked + 1
    await journal.append(StepStarted(turn=turn.n, step=step))
    view = replace(_view(work, operator), max_tokens=granted.max_tokens)

    def on_text(text: str) -> None:
        journal.publish(TextDelta(turn=turn.n, step=step, text=text))

    began = journal.clock.monotonic()
    async with asyncio.timeout(granted.seconds):
        reply = await work.stop.race(asyncio.ensure_future(_next(operator, view, on_text)))
    if reply is None:
        return None
    person = getattr(operator, "is_person", False)  # waiting for people is no work
    seconds = 0.0 if person else journal.clock.monotonic() - began
    spent = reply.usage + Usage(seconds=seconds)
    failpoints.hit("step.before_row")
    await journal.append(
        StepReplied(
            turn=turn.n,
            step=step,
            kind=reply.kind,
            source=clean(reply.source),
            note=clean(reply.note),
            text=clean(reply.text),
            raw=clean(reply.raw),
            usage=spent,
        )
    )
    failpoints.hit("step.before_settle")
    await spending.called(granted, spent)
    return reply


async def _next(operator: Operator, view: View, on_text: Callable[[str], None]) -> Reply:
    """The operator's reply; whatever else it does is an `OperatorError`."""
    name = operator.name
    try:
        reply = await operator.next(view, on_text)
    except OperatorError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise OperatorError(f"the operator {name!r} gave itself up") from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise OperatorError(f"the operator {name!r} raised {what}") from error
    if not _is_reply(reply):  # not every operator is type-checked
        raise OperatorError(
            f"the operator {name!r} gave {reply!r:.200}; its `next` gives a cave.ports.Reply "
            f"with texts"
        )
    return reply


def _is_reply(reply: object) -> bool:
    return (
        isinstance(reply, Reply)
        and reply.kind in get_args(ReplyKind)
        and {type(t) for t in (reply.source, reply.note, reply.text, reply.raw)} == {str}
        and type(reply.usage) is Usage
    )


async def _act(
    work: Work, reply: Reply, spending: Spending, timeout: float | None
) -> TurnFinished | None:
    """Do what the reply says; the end of the turn when it is one."""
    turn = work.journal.history.turn
    assert turn is not None
    match reply.kind:
        case "finish":
            held = await _held(work)
            if held is True:
                return await _answered(work, clean(reply.text) or _last_text(work))
            return held or None
        case "malformed":
            last = turn.steps[-MALFORMED_LIMIT:]
            if len(last) == MALFORMED_LIMIT and all(s.kind == "malformed" for s in last):
                reason = f"{MALFORMED_LIMIT} replies in a row could not be used: {reply.text}"
                return await _finish(work, "needs_attention", reason=reason)
            return None
        case _:
            kernel = await work.supply.ready(news=False)
            cell = await run_cell(
                work,
                kernel,
                reply.source,
                note=clean(reply.note),
                origin="operator",
                turn=turn.n,
                step=turn.asked,
                timeout=_shorter(timeout, await spending.seconds_left()),
            )
            await spending.ran(cell.n, cell.seconds)
            if cell.status == "interrupted":
                return await _interrupted(work)
            return await _in_doubt(work) or await _unapproved(work)


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _last_text(work: Work) -> str:
    turn = work.journal.history.turn
    known = work.journal.history.cells
    cells = [known[n] for n in turn.cells.values() if n in known] if turn else []
    return cells[-1].text if cells else ""


async def _held(work: Work) -> TurnFinished | bool:
    """Whether all holds that has to; the turn's end when what does not is the same as before."""
    turn = work.journal.history.turn
    assert turn is not None
    if not turn.checks or work.check is None:
        return True
    before = _failed(turn.results)
    kernel = await work.supply.ready(news=False)
    try:
        results = tuple(await work.check(kernel, turn.checks))
    except KernelDied as died:
        why = f"looking at it ended the kernel: {died}"
        results = tuple(CheckResult(c.name, passed=False, message=why) for c in turn.checks)
    await work.journal.append(Checked(turn=turn.n, step=turn.asked, results=results))
    failed = _failed(results)
    if not failed:
        return True
    if failed != before:
        return False
    told = "; ".join(f"{name}: {why}".removesuffix(": ") for name, why in failed)
    reason = f"finished twice while the same does not hold: {told}; go on with s.resume()"
    return await _finish(work, "needs_attention", reason=reason)


def _failed(results: Sequence[CheckResult]) -> list[tuple[str, str]]:
    return [(result.name, result.message) for result in results if not result.passed]


async def _answered(work: Work, answer: str) -> TurnFinished:
    reason = ""
    if work.rewrite is not None:
        answer, reason = await work.rewrite(answer)
    return await _finish(work, "done", answer=clean(answer), reason=clean(reason))


async def _interrupted(work: Work) -> TurnFinished:
    if (halt := work.stop.halt) is not None:
        return await _finish(work, halt.status, reason=halt.reason, over=halt.over)
    return await _finish(work, "interrupted", reason="interrupted; go on with s.resume()")


async def _in_doubt(work: Work) -> TurnFinished | None:
    """The end of the turn while a person has to say what became of an effect."""
    waiting = [entry.id for entry in work.journal.history.ledger.in_doubt()]
    if not waiting:
        return None
    reason = (
        f"nobody knows whether {', '.join(waiting)} was done; look at s.in_doubt, type "
        f"s.settle({waiting[0]!r}, ...), then s.resume()"
    )
    return await _finish(work, "needs_decision", reason=reason)


async def _unapproved(work: Work) -> TurnFinished | None:
    """The end of the turn while a person has to approve what it wants to do."""
    waiting = list(work.journal.history.approvals.pending)
    if not waiting:
        return None
    first = waiting[0]
    others = f", and {len(waiting) - 1} more" if waiting[1:] else ""
    reason = (
        f"{first.id} waits to be approved: {first.what}{others} ({first.reason}); type "
        f"s.approve({first.id!r}) or s.deny({first.id!r}), then s.resume()"
    )
    return await _finish(work, "needs_approval", reason=reason)


async def _make_durable(work: Work) -> None:
    """A turn ends when its namespace is on disk."""
    supply, kernel = work.supply, work.supply.kernel
    await supply.lineage.settle(sync=False)
    if kernel is not None and kernel.death is None and supply.lineage.stale:
        await supply.lineage.take(kernel, supply.number, sync=False)


async def _finish(
    work: Work, status: TurnStatus, *, answer: str = "", reason: str = "", over: bool = False
) -> TurnFinished:
    history = work.journal.history
    turn = history.turn
    assert turn is not None
    await _make_durable(work)
    usage = sum((s.usage for s in turn.steps), Usage())
    cells = [history.cells[n] for n in turn.cells.values() if n in history.cells]
    usage += Usage(cells=len(cells), seconds=sum(c.seconds for c in cells))
    event = TurnFinished(
        turn=turn.n, status=status, answer=answer, reason=reason, usage=usage, over=over
    )
    await work.journal.append(event, sync=work.sync, last=not work.more)
    return event
