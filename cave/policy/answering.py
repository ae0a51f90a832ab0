"""Answers to approvals: who may give them, what they say, and that only the first counts.

An `Answer` is encoded to be kept, and `settled` makes the journal's `ApprovalSettled` of it.
The fold (`cave.approval`) takes the first for the exact bytes that were asked about.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast, get_args

from cave.approval import Approval
from cave.errors import ConfigError
from cave.events import ApprovalScope, ApprovalSettled, StoredValue

AnswerState = Literal["approved", "denied", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Yes or no, to these bytes, from somebody."""

    state: AnswerState
    digest: str
    """Of what was shown to whoever answers."""
    scope: ApprovalScope = "once"
    actor: str = ""
    via: str = ""
    reason: str = ""
    at: float = 0.0
    """When it was given (Unix seconds); 0 where nobody knows."""
    edits: Mapping[str, Any] | None = None
    """Arguments that are to be others, as JSON values; the skill validates them again."""

    def __post_init__(self) -> None:
        if self.state not in get_args(AnswerState):
            raise ConfigError(f"an answer is {self.state!r}, not 'approved' or 'denied'")
        if self.scope not in get_args(ApprovalScope):
            raise ConfigError(f"scope is {self.scope!r}, not 'once' or 'session'")
        if self.edits is not None and self.state != "approved":
            raise ConfigError("edits are for what is approved; type s.deny(...) without them")
        if self.edits is not None and self.scope == "session":
            raise ConfigError(
                "edits change one call, and scope='session' is for all of them; choose one"
            )

    def encoded(self) -> bytes:
        """As the store keeps it."""
        try:
            return json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as fault:
            raise ConfigError(f"edits={self.edits!r:.80} are no JSON values: {fault}") from fault


def decoded(body: bytes) -> Answer:
    """An answer as the store gave it. Raises `ConfigError`."""
    try:
        return Answer(**json.loads(body))
    except (TypeError, ValueError) as fault:
        raise ConfigError(f"an answer in the store cannot be read: {fault}") from fault


def person() -> str:
    """The user of this process, as approvals name them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user on this machine
        return "unknown"


def choose(pending: list[Approval], id: str | None) -> Approval:
    """The approval that `approve()` or `deny()` is about. Raises `ConfigError`."""
    there = ", ".join(f"{a.id} ({a.what})" for a in pending) or "none"
    if id is None:
        if len(pending) != 1:
            raise ConfigError(f"say which approval: s.approve(id); waiting are {there}")
        return pending[0]
    for approval in pending:
        if approval.id == id:
            return approval
    raise ConfigError(f"no approval {id!r} waits for an answer; waiting are {there}")


@dataclass(frozen=True, slots=True)
class Edited:
    """Arguments of a call as the answer changed them, validated and encoded."""

    shown: dict[str, str]
    digest: str
    stored: StoredValue


def settled(
    approval: Approval,
    answer: Answer,
    *,
    edit: Callable[[Mapping[str, Any]], Edited] | None = None,
) -> ApprovalSettled:
    """The fact that an answer makes. What it cannot be used for is denied, and says why:
    an answer about other bytes, edits that the skill refuses, edits of a cell.
    """

    def denied(reason: str) -> ApprovalSettled:
        return ApprovalSettled(
            approval=approval.id,
            state="denied",
            digest=approval.digest,
            actor=answer.actor,
            via=answer.via,
            reason=reason,
        )

    if answer.digest != approval.digest:
        return denied("the answer was about other arguments than those that wait")
    changed: Edited | None = None
    if answer.edits:
        if edit is None:
            return denied("what waits takes no edits")
        try:
            changed = edit(answer.edits)
        except (ValueError, TypeError) as fault:
            return denied(f"the edited arguments are refused: {fault}")
    return ApprovalSettled(
        approval=approval.id,
        state=answer.state,
        digest=approval.digest,
        scope=answer.scope,
        actor=answer.actor,
        via=answer.via,
        reason=answer.reason,
        answered_at=answer.at or None,
        edits={} if changed is None else changed.shown,
        edited="" if changed is None else changed.digest,
        given=None if changed is None else changed.stored,
    )


def expired(approval: Approval) -> Answer:
    """The answer that time gives."""
    return Answer(
        state="expired", digest=approval.digest, reason="nobody answered in time", via="expiry"
    )


Approver = Callable[[Approval], Any]
"""A function of the user's own, sync or async: True, False, an `Answer`, or None (ask people)."""


async def consult(
    approver: Approver, approval: Approval, *, timeout: float | None = None
) -> Answer | None:
    """What `approver` says. None where it has no opinion, or gives what is no answer: people
    are asked then. One that raises, or takes too long, has said no. A sync one runs in a thread.
    """
    name = getattr(approver, "__qualname__", type(approver).__qualname__)

    def answer(state: AnswerState, reason: str = "") -> Answer:
        return Answer(
            state=state, digest=approval.digest, actor=name, via="approver", reason=reason
        )

    try:
        async with asyncio.timeout(timeout):
            said = await _called(approver, approval)
    except TimeoutError as error:
        why = f"gave no answer in {timeout:g} s" if timeout is not None else f"failed: {error!r}"
        return answer("denied", f"the approver {why}")
    except Exception as error:  # noqa: BLE001  a broken approver lets nothing through
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        return answer("denied", f"the approver failed: {what}")
    if isinstance(said, Answer):
        return said if said.actor else replace(said, actor=name, via="approver")
    if not isinstance(said, bool):
        return None  # "no" as a text, 0, an object: never taken for a yes
    return answer("approved" if said else "denied")


async def _called(approver: Approver, approval: Approval) -> Any:
    called = approver.__call__ if not inspect.isroutine(approver) else approver  # type: ignore[operator]
    if inspect.iscoroutinefunction(called):
        return await cast(Awaitable[Any], approver(approval))
    said = await asyncio.to_thread(approver, approval)
    return await said if inspect.isawaitable(said) else said
