"""Deciding what becomes of a call: answered from the ledger, called, or in doubt."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Protocol

from cave.broker import quiescence, standing
from cave.broker.asking import Asking
from cave.broker.host import HostCalls
from cave.broker.invoking import invoke
from cave.broker.kernel import KernelCalls
from cave.broker.pen import Pen, doubt_of
from cave.broker.terms import ProbeCall, Terms, Work, fault_of, refusal, said
from cave.broker.undoing import Undoing
from cave.errors import CaveError, Divergence, EffectInDoubt, LeaseLost, SkillError
from cave.events import EffectIntent
from cave.ledger import Entry, Place, key_of
from cave.ports import Caller, SkillAnswer, SkillCall
from cave.skills import Skill


class Offered(Protocol):
    """The skills that a session's cells may call."""

    def find(self, name: str, hash: str) -> Skill | None:
        """The skill of that name, as it was when the kernel got it."""


class Broker:
    """Answers the calls of one session's cells."""

    def __init__(self, pen: Pen, offered: Offered, asking: Asking) -> None:
        self._pen = pen
        self._offered = offered
        self._asking = asking
        self._host = HostCalls(pen)
        self._kernel = KernelCalls(pen)
        self._running: dict[str, asyncio.Task[SkillAnswer]] = {}
        """Effects that are being answered, by key."""
        self._diverged: dict[int, str] = {}
        """Cells that called something else than the first time, and what is said of it."""
        self._reached: set[Place] = set()
        """Places that the newest cell has called from."""
        self._newest = 0

    async def quiet(self) -> None:
        """Wait until no call is under way."""
        while tasks := [*self._running.values(), *self._host.late]:
            await asyncio.wait(tasks)

    def began(self, cell: int) -> None:
        """A cell begins, perhaps again: it may go its old road."""
        self._diverged.pop(cell, None)
        self._reached.clear()

    def diverged(self, cell: int) -> str:
        """What a cell called that it had not called before; empty when it kept to its road."""
        return self._diverged.get(cell, "")

    def _reach(self, place: Place) -> None:
        if place[0] != self._newest:
            self._newest = place[0]
            self._reached.clear()
        self._reached.add(place)

    def unreached(self, cell: int) -> list[Entry]:
        """Effects that a cell had the first time, and has not come to again."""
        entries = self._pen.journal.history.ledger.of_cell(cell)
        return [entry for entry in entries if entry.place not in self._reached]

    async def answer(self, call: SkillCall, caller: Caller) -> SkillAnswer:
        """What the cell gets. Raises `LeaseLost` when the next owner is to answer."""
        try:
            if call.phase == "end":
                return await self._kernel.ended(call, self._offered.find(call.skill, call.hash))
            return await self._wanted(call, caller)
        except LeaseLost:
            raise
        except CaveError as error:
            return refusal(error)

    async def _wanted(self, call: SkillCall, caller: Caller) -> SkillAnswer:
        work = self._work(call, caller)
        if work.terms.kind == "none":
            return await self._plain(work)
        if (reason := self._diverged.get(work.place[0])) is not None:
            raise Divergence(reason)
        task = self._running.get(work.key)
        if task is None:
            task = self._running[work.key] = asyncio.ensure_future(self._effect(work))
            task.add_done_callback(lambda _: self._running.pop(work.key, None))
        return await asyncio.shield(task)  # what was begun goes on when nobody waits any more

    async def _plain(self, work: Work) -> SkillAnswer:
        """A call that touches nothing, and may need leave all the same."""
        await self._asking.changed(work)
        await self._asking.call(work)
        if work.terms.runs == "kernel":
            return SkillAnswer("go", key=work.key, value=work.changed)
        return await self._host.plain(work)

    def _work(self, call: SkillCall, caller: Caller) -> Work:
        skill, arguments = self._offered.find(call.skill, call.hash), call.arguments
        if call.declaration is not None:
            skill, terms = None, Terms.told(call, call.declaration)
        elif skill is None:
            raise SkillError(self._not_here(call.skill))
        else:
            terms = Terms.of(skill)
            arguments = skill.validate(arguments) if terms.runs == "host" else arguments
        place = (call.cell or 0, call.lane, call.ordinal)
        return Work(call, caller, terms, skill, arguments, place, self._key(place, call))

    def _key(self, place: Place, call: SkillCall) -> str:
        opened = self._pen.journal.history.opened
        uid = opened.uid if opened is not None else ""
        return key_of(uid or self._pen.journal.session, place, call.skill, call.digest)

    def _not_here(self, name: str) -> str:
        ref = self._pen.journal.history.skills.get(name)
        came = f": it came from module {ref.module!r}" if ref is not None else ""
        return f"skill {name!r} is not in this session now{came}; add it with s.skills.add(...)"

    # -- effects -----------------------------------------------------------------------------

    async def _effect(self, work: Work) -> SkillAnswer:
        await self._asking.changed(work)
        entry = work.entry = self._pen.journal.history.ledger.at(work.place)
        self._reach(work.place)
        if entry is not None:
            self._check_same(entry, work)
            if (known := await self._known(entry, work)) is not None:
                return known
        elif (refused := await standing.ask_first(self._pen, work)) is not None:
            return refused
        await self._asking.call(work)
        if work.terms.runs == "kernel":
            return await self._kernel.leave(work)
        return await self._host.effect(work)

    def _check_same(self, entry: Entry, work: Work) -> None:
        was, call = entry.intent, work.call
        if (was.skill, was.digest) == (call.skill, call.digest):
            return
        what = "with other arguments" if was.skill == call.skill else f"instead of {was.skill!r}"
        cell, lane, ordinal = work.place
        where = f"call {ordinal}" + (f" of lane {lane}" if lane else "")
        self._diverged[cell] = (
            f"cell {cell} ran again and called {call.skill!r} {what} ({where}, effect "
            f"{entry.id}); nothing was called. Type s.history[{cell}].effects to see what it had "
            f"done, and run what is missing in a new cell"
        )
        raise Divergence(self._diverged[cell])

    async def _known(self, entry: Entry, work: Work) -> SkillAnswer | None:
        """The answer that the ledger has; None when the skill is to be called (again)."""
        match entry.state:
            case "done" | "failed":
                return await self._recorded(entry)
            case "given_up":
                raise EffectInDoubt(
                    f"effect {entry.id} ({entry.intent.skill}) was given up: it is not called again"
                )
            case "in_doubt":
                raise doubt_of(entry, entry.reason)
            case "not_done":
                return await self._once_late_has_ended(entry, work)
            case _:
                return await self._left_open(entry, work)

    async def _recorded(self, entry: Entry) -> SkillAnswer:
        if entry.error is not None:
            return SkillAnswer("error", fault=entry.error)
        if entry.value is None:
            return SkillAnswer("ok")
        value = await self._pen.fetch(entry.value)
        return SkillAnswer("ok", value=value)

    async def _once_late_has_ended(self, entry: Entry, work: Work) -> SkillAnswer | None:
        """Called again, unless a call that had run out of its time was done after all."""
        await self._host.ended(entry, work.terms.timeout)
        now = work.entry = self._pen.journal.history.ledger.entries[entry.id]
        return None if now.state == "not_done" else await self._known(now, work)

    async def undo(self, entry: Entry, undoing: Undoing) -> SkillAnswer:
        """Call what compensates an effect: once, whoever asks and however often."""
        call = undoing.call(entry, self._pen.journal.history.ledger)
        place = (0, call.lane, call.ordinal)
        work = Work(
            call,
            undoing.caller,
            undoing.terms,
            undoing.skill,
            undoing.skill.validate(call.arguments),
            place,
            self._key(place, call),
            entry=self._pen.journal.history.ledger.at(place),
            undoes=entry.id,
        )
        known = None if work.entry is None else await self._known(work.entry, work)
        return known if known is not None else await self._host.effect(work)

    async def pay(self) -> None:
        """Journal results that no disk would take when they came. Raises `StoreError`."""
        await self._pen.pay()

    async def ask_about_left_open(self) -> None:
        """Have a person asked about what nothing comes back to: compensations, and effects of
        cells that have ended, which their host could not say the end of."""
        history = self._pen.journal.history
        for entry in [e for e in history.ledger.entries.values() if e.state == "begun"]:
            intent = entry.intent
            waits = intent.key in self._running or self._kernel.asked_again(entry)
            now = None if history.running is None else history.running.cell
            again = {*history.cut.cells, history.cut.stopped, now}
            ended = intent.cell in history.cells and intent.cell not in again
            if _asks(intent) and not waits and (entry.first.undoes or ended):
                await self._pen.doubt(intent, _unknown(intent))

    # -- doubts ------------------------------------------------------------------------------

    async def _left_open(self, entry: Entry, work: Work) -> SkillAnswer | None:
        """An effect that was begun, and nobody here knows how it ended."""
        intent, terms = entry.intent, work.terms
        if terms.kind == "read" or self._kernel.asked_again(entry):
            return None
        if terms.doubt == "ask":
            raise await self._pen.doubt(intent, _unknown(intent))
        seconds = self._until_over(intent)
        if seconds == math.inf:
            pid = quiescence.owner_of(intent).pid
            raise await self._pen.doubt(
                intent,
                f"process {pid}, which began it, may still live, and the skill has no time limit",
            )
        if seconds:
            work.caller.note(f"waiting {seconds:.0f} s: then effect {entry.id} can only be over")
            await asyncio.sleep(seconds)
        return await self._probed(entry, work) if terms.doubt == "probe" else None

    async def ask_about(self, cell: int) -> None:
        """Have a person asked about what a death has left open in this cell, where the skill
        says so; what is under way here ends first."""
        await self.quiet()
        for entry in self._pen.journal.history.ledger.of_cell(cell):
            intent = entry.intent
            if _asks(intent) and entry.state == "begun" and not self._kernel.asked_again(entry):
                await self._pen.doubt(intent, _unknown(intent))

    def _until_over(self, intent: EffectIntent) -> float:
        if intent.runs == "kernel":
            return 0.0  # its kernel is dead: there are never two
        return quiescence.seconds_until(intent, self._pen.owner, self._pen.journal.clock)

    async def _probed(self, entry: Entry, work: Work) -> SkillAnswer | None:
        """Ask the skill's probe whether it was done."""
        skill, intent = work.skill, entry.intent
        assert skill is not None
        probe: Any = skill.in_doubt
        asked = ProbeCall(intent.skill, work.arguments, intent.key, intent.attempt, intent.cell)
        try:
            found = await invoke(
                lambda: probe(asked), note=work.caller.note, timeout=work.terms.timeout
            )
        except Exception as error:
            reason = f"its probe raised {said(fault_of(error))}"
            raise await self._pen.doubt(intent, reason) from error
        if found is None:
            return None
        return await self._pen.done(work, intent, found, source="probe")


def _asks(intent: EffectIntent) -> bool:
    return intent.in_doubt == "ask" and intent.effect_kind == "write"


def _unknown(intent: EffectIntent) -> str:
    who = f"process {quiescence.owner_of(intent).pid}"
    if intent.runs == "kernel":
        who = f"kernel {intent.kernel}"
    return f"{who} had begun it, and went before its result was known"
