"""Leave for calls and cells: what the rules and a skill's own terms say, and what people say.

Nothing waits here for a person. What has no answer yet is journaled as a request, and the
cell ends: it runs again from its start when the answer is there, and finds it at the same
place, for the same bytes. Answers are kept in the store, where whoever is asked puts them;
the holder of the lease makes them facts of the journal.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cave import failpoints
from cave.approval import Approval, Approvals, Place, digest_of
from cave.broker.pen import Pen
from cave.broker.terms import ProbeCall, Work, short
from cave.errors import (
    ApprovalDenied,
    ApprovalRequired,
    CaveError,
    ConfigError,
    PolicyViolation,
    SkillError,
)
from cave.events import ApprovalRequested, CellStarted, Fault
from cave.policy.answering import (
    Answer,
    Approver,
    Edited,
    consult,
    decoded,
    expired,
    settled,
)
from cave.policy.rules import Call, Policy, Verdict, strictest
from cave.ports import Encoded
from cave.skills import Skill

ALLOWED = Verdict("allow")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the owner of the session has set."""

    policy: Policy | None = None
    approver: Approver | None = None

    @property
    def patience(self) -> float | None:
        """Seconds until a request without an answer is denied."""
        return None if self.policy is None else self.policy.approval_timeout


@dataclass(frozen=True, slots=True)
class Codec:
    """How values cross, as the session's host knows it."""

    encode: Callable[[Any], Encoded]
    decode: Callable[[Encoded], Any]
    digest: Callable[[Encoded], str]


class Asking:
    """Asks for one session, and knows what was answered."""

    def __init__(
        self,
        pen: Pen,
        rules: Callable[[], Rules],
        codec: Codec,
        find: Callable[[str], Skill | None],
    ) -> None:
        self._pen = pen
        self._rules = rules
        self._codec = codec
        self._find = find
        self._given = 0
        """The number in the last id that was given: calls of one cell ask side by side."""
        self.waited = 0.0
        """Seconds for which an approver was waited for."""

    @property
    def approvals(self) -> Approvals:
        """As the journal knows them."""
        return self._pen.journal.history.approvals

    # -- calls -------------------------------------------------------------------------------

    async def call(self, work: Work) -> None:
        """Have leave for a call, or raise `ApprovalRequired`, `ApprovalDenied`,
        `PolicyViolation`. Arguments that the answer changed take the place of the call's own.
        """
        verdict = await self._of_call(work)
        if verdict.decision == "deny":
            raise PolicyViolation(f"{work.terms.name}() was not called: {verdict.reason}")
        if verdict.decision == "allow" or work.changed is not None:  # a person wrote these
            return
        asked = await self._answered(
            place_of(work), work.call.digest, verdict.rule, lambda: self._for_call(work, verdict)
        )
        _insist(asked)
        await self._take(asked, work)

    async def changed(self, work: Work) -> None:
        """Take the arguments of an answer in the place of the call's own."""
        asked = self.approvals.at(place_of(work), work.call.digest)
        if asked is not None and asked.state == "approved":
            await self._take(asked, work)

    async def _take(self, asked: Approval, work: Work) -> None:
        if asked.given is None:
            return
        stored = await self._pen.fetch(asked.given)
        arguments = self._codec.decode(stored)
        assert work.skill is not None
        work.arguments = work.skill.validate(arguments)
        work.call = replace(work.call, arguments=arguments, digest=asked.edited)
        work.changed = stored

    async def _of_call(self, work: Work) -> Verdict:
        """What the rules and the skill's own terms say; the strictest decides."""
        terms, policy = work.terms, self._rules().policy
        call = Call(terms.name, terms.kind, work.arguments)
        by_rule = ALLOWED if policy is None else policy.for_call(call)
        named = f"{terms.name}@{terms.hash}" if work.skill is not None else ""
        if by_rule.rule:
            by_rule = replace(by_rule, rule=f"{named} {by_rule.rule}" if named else "")
        return strictest(await self._own(work, named), by_rule)

    async def _own(self, work: Work, named: str) -> Verdict:
        """What the skill's `approval=` says of this call. A function that fails asks."""
        wants, name = work.terms.approval, work.terms.name
        always = Verdict("ask", f"skill {name!r} is approved call by call", named)
        if not callable(wants):
            return always if wants == "always" else ALLOWED
        cell = work.place[0]
        asked = ProbeCall(name, work.arguments, work.key, work.attempt, cell)
        try:
            said = await asyncio.to_thread(wants, asked)
            said = await said if inspect.isawaitable(said) else said
        except Exception as error:  # noqa: BLE001  a function that breaks lets nothing through
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            return Verdict("ask", f"approval= of skill {name!r} raised {what}", named)
        match said:
            case False | None | "never" | "allow":
                return ALLOWED
            case True | "always" | "ask":
                return replace(always, reason=f"skill {name!r} wants this call to be approved")
            case "deny":
                return Verdict("deny", f"approval= of skill {name!r} says no")
            case _:
                return Verdict("ask", f"approval= of skill {name!r} gave {said!r:.80}", named)

    async def _for_call(self, work: Work, verdict: Verdict) -> ApprovalRequested:
        call, (cell, lane, ordinal) = work.call, work.place
        shown = {name: short(value) for name, value in call.arguments.items()}
        told = ", ".join(f"{name}={text}" for name, text in shown.items())
        running = self._pen.journal.history.running
        given = None
        if work.skill is not None:
            encoded = self._codec.encode(dict(call.arguments))
            given = await self._pen.keep(encoded)
        return ApprovalRequested(
            approval=self._new_id(),
            what=f"{work.terms.name}({told})",
            digest=call.digest,
            skill=work.terms.name,
            arguments=shown,
            source="" if running is None or running.cell != cell else running.source,
            reason=verdict.reason,
            covers=verdict.rule,
            expires_at=self._until(),
            cell=cell,
            lane=lane,
            ordinal=ordinal,
            given=given,
        )

    # -- cells -------------------------------------------------------------------------------

    async def cell(self, started: CellStarted) -> Fault | None:
        """None for a cell that may run, else why it does not."""
        policy = self._rules().policy
        verdict = ALLOWED if policy is None else policy.for_cell(started.source)
        if verdict.decision == "allow":
            return None
        if verdict.decision == "deny":
            return Fault("PolicyViolation", f"the cell did not run: {verdict.reason}")
        place: Place = (started.cell, "", 0)
        digest = digest_of(started.source)
        asked = await self._answered(
            place, digest, verdict.rule, lambda: self._for_cell(started, digest, verdict)
        )
        try:
            _insist(asked)
        except CaveError as refused:
            return Fault(type(refused).__name__, str(refused))
        return None

    async def _for_cell(
        self, started: CellStarted, digest: str, verdict: Verdict
    ) -> ApprovalRequested:
        return ApprovalRequested(
            approval=self._new_id(),
            what=f"cell {started.cell}",
            digest=digest,
            source=started.source,
            reason=verdict.reason,
            covers=verdict.rule,
            expires_at=self._until(),
            turn=started.turn,
            step=started.step,
            cell=started.cell,
        )

    # -- requests and answers ----------------------------------------------------------------

    def _new_id(self) -> str:
        self._given = max(self._given, self.approvals.newest) + 1
        return f"a{self._given}"

    def _until(self) -> float | None:
        patience = self._rules().patience
        return None if patience is None else self._pen.journal.clock.now() + patience

    async def _answered(
        self, place: Place, digest: str, covers: str, request: Callable[[], Any]
    ) -> Approval:
        """What was said of these bytes at this place; asked for when nobody was asked."""
        await self.absorb()  # perhaps somebody has answered meanwhile
        found = self.approvals.found(place, digest=digest, covers=covers)
        if found is None:
            event = await request()
            failpoints.hit("approval.before_request")
            await self._pen.write(event, sync=True, fenced=True)
            failpoints.hit("approval.after_request")
            found = self.approvals.entries[event.approval]
            await self._consult(found)
            await self.absorb()
        return self.approvals.entries[found.id]

    async def _consult(self, asked: Approval) -> None:
        """Ask the approver of the session, if there is one; people when it has no opinion."""
        rules, clock = self._rules(), self._pen.journal.clock
        if rules.approver is None:
            return
        began = clock.monotonic()
        answer = await consult(rules.approver, asked, timeout=rules.patience)
        self.waited += clock.monotonic() - began
        if answer is not None:
            await self._keep(asked, answer)

    async def _keep(self, asked: Approval, answer: Answer) -> None:
        """Put an answer where people's are: the first one counts."""
        store = self._pen.journal.store
        until = None if answer.state == "expired" else asked.expires_at
        answer = replace(answer, at=self._pen.journal.clock.now())
        await store.answer(self._pen.journal.session, asked.id, answer.encoded(), until=until)

    async def absorb(self) -> None:
        """Make the answers that were given facts of the journal, and time's own."""
        journal = self._pen.journal
        waiting = list(self.approvals.pending)
        if not waiting:
            return
        for asked in self.approvals.overdue(journal.clock.now()):
            await self._keep(asked, expired(asked))
        given = await journal.store.answers(journal.session)
        for asked in waiting:
            if (body := given.get(asked.id)) is not None:
                await self._settle(asked, body)

    async def _settle(self, asked: Approval, body: bytes) -> None:
        answer = decoded(body)
        edit = None
        if answer.edits and asked.skill:
            edited = await self.edited(asked, answer.edits)
            edit = edited if callable(edited) else _value(edited)
        event = settled(asked, answer, edit=edit)
        failpoints.hit("approval.before_settled")
        await self._pen.write(event, sync=True)
        failpoints.hit("approval.after_settled")

    async def edited(
        self, asked: Approval, edits: Mapping[str, Any]
    ) -> Edited | Callable[[Mapping[str, Any]], Edited]:
        """The arguments with `edits`, validated and kept; or what raises why they cannot be."""
        try:
            merged = await self._merged(asked, edits)
        except (ValueError, TypeError) as fault:
            return _raising(fault)
        encoded = self._codec.encode(merged)
        return Edited(
            shown={name: short(value) for name, value in edits.items()},
            digest=self._codec.digest(encoded),
            stored=await self._pen.keep(encoded),
        )

    async def _merged(self, asked: Approval, edits: Mapping[str, Any]) -> dict[str, Any]:
        skill = self._find(asked.skill)
        if skill is None or asked.original is None:
            raise SkillError(
                f"skill {asked.skill!r} is not in this session now, so nobody can check them"
            )
        stored = await self._pen.fetch(asked.original)
        merged = {**self._codec.decode(stored), **edits}
        skill.validate(merged)
        return merged

    async def check(self, asked: Approval, edits: Mapping[str, Any]) -> None:
        """Raises `SkillError` for edits that the skill refuses, `ConfigError` for a cell's."""
        if not asked.skill:
            raise ConfigError(f"{asked.id} is about a cell, which takes no edits: deny it instead")
        if self._find(asked.skill) is not None:
            await self._merged(asked, edits)


def place_of(work: Work) -> Place:
    """Where approvals of a call stand."""
    return work.place


def _insist(asked: Approval) -> None:
    """Raises unless somebody has said yes."""
    match asked.state:
        case "approved":
            return
        case "pending":
            raise ApprovalRequired(
                f"{asked.what} waits until somebody approves it ({asked.reason}): "
                f"s.approve({asked.id!r}) or s.deny({asked.id!r}), then s.resume()"
            )
        case "expired":
            raise ApprovalDenied(f"{asked.what} was not approved: {asked.said}")
        case _:
            who = f" by {asked.actor}" if asked.actor else ""
            why = f": {asked.said}" if asked.said else ""
            raise ApprovalDenied(f"{asked.what} was denied{who}{why}")


def _value(edited: Edited) -> Callable[[Mapping[str, Any]], Edited]:
    return lambda _: edited


def _raising(fault: Exception) -> Callable[[Mapping[str, Any]], Edited]:
    def edit(_: Mapping[str, Any]) -> Edited:
        raise fault

    return edit
