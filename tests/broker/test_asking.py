"""Leave for calls, over a real journal: what asks, what an answer is for, when it is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import cave
from cave.approval import Approval
from cave.broker import Rules
from cave.policy import Policy, Rule
from cave.policy.answering import Answer
from cave.ports import SkillAnswer
from cave.testing.leases import SteppedClock
from tests.broker.conftest import Session, decode

Make = Callable[..., Session]


def skill_of(done: list[Any], approval: Any = "always", effect: Any = "write") -> cave.Skill:
    """A skill of the host that notes what it is called with."""

    @cave.skill(effect=effect, runs="host", approval=approval)
    def post(n: int) -> int:
        """Post."""
        done.append(n)
        return n

    return post


def raised(answer: SkillAnswer) -> str:
    """The class of what the cell gets; empty for a value."""
    return "" if answer.fault is None else answer.fault.name


async def answered(s: Session, id: str, state: Any, **more: Any) -> bytes | None:
    """Answer as another process does."""
    asked = s.journal.history.approvals.entries[id]
    answer = Answer(state=state, digest=asked.digest, actor="ann", at=s.clock.now(), **more)
    return await s.store.answer("q3", id, answer.encoded(), until=asked.expires_at)


def test_an_answer_is_for_one_call(session: Make) -> None:
    """The call that was asked about is made once, answered from the ledger when its cell runs
    again; the same arguments elsewhere, and others there, are asked about anew."""
    done: list[Any] = []
    s = session(skill_of(done))

    async def main() -> None:
        async with s.operation():
            assert raised(await s.call("post", n=1)) == "ApprovalRequired"
            assert raised(await s.call("post", n=1)) == "ApprovalRequired"
            assert list(s.journal.history.approvals.entries) == ["a1"]
            await answered(s, "a1", "approved")
            assert [decode(await s.call("post", n=1)) for _ in range(2)] == [1, 1]
            assert raised(await s.call("post", (1, "", 2), n=1)) == "ApprovalRequired"
            assert raised(await s.call("post", (2, "", 1), n=2)) == "ApprovalRequired"
            await answered(s, "a3", "denied", reason="too much")
            refused = await s.call("post", (2, "", 1), n=2)
            assert raised(refused) == "ApprovalDenied"
            assert refused.fault is not None
            assert "denied by ann: too much" in refused.fault.message

    asyncio.run(main())
    assert done == [1]


def test_time_denies(session: Make) -> None:
    """What nobody has answered in time counts as denied; a later yes is none, one in time is."""
    done: list[Any] = []
    clock = SteppedClock()
    s = session(skill_of(done), clock=clock)
    s.rules = Rules(Policy(approval_timeout=60))

    async def main() -> None:
        async with s.operation():
            for place in ((1, "", 1), (1, "", 2)):
                assert raised(await s.call("post", place, n=1)) == "ApprovalRequired"
            assert await answered(s, "a1", "approved") is not None
            clock.advance(60)
            assert await answered(s, "a2", "approved") is None
            assert decode(await s.call("post", (1, "", 1), n=1)) == 1
            refused = await s.call("post", (1, "", 2), n=1)
            assert raised(refused) == "ApprovalDenied"
            assert refused.fault is not None
            assert "nobody answered in time" in refused.fault.message

    asyncio.run(main())
    assert done == [1]


@pytest.mark.parametrize(
    ("approval", "expected"),
    [
        (lambda _: False, ""),
        (lambda call: call.arguments["n"] > 0, "ApprovalRequired"),
        (lambda _: "allow", ""),
        (lambda _: "deny", "PolicyViolation"),
        (lambda _: 1 / 0, "ApprovalRequired"),
        (lambda _: "whatever", "ApprovalRequired"),
    ],
)
def test_a_function_of_the_call_decides(session: Make, approval: Any, expected: str) -> None:
    """Also for what touches nothing; one that breaks, or gives what is no answer, asks."""
    done: list[Any] = []
    s = session(skill_of(done, approval, "none"))

    async def main() -> None:
        async with s.operation():
            assert raised(await s.call("post", n=1)) == expected

    asyncio.run(main())
    assert done == ([] if expected else [1])


def test_an_edit_that_is_refused_denies(session: Make) -> None:
    """What another process has changed is validated by who has the skill, and journaled so."""
    done: list[Any] = []
    s = session(skill_of(done))

    async def main() -> None:
        async with s.operation():
            await s.call("post", (1, "", 1), n=1)
            await answered(s, "a1", "approved", edits={"n": "much"})
            refused = await s.call("post", (1, "", 1), n=1)
            assert raised(refused) == "ApprovalDenied"
            await s.call("post", (1, "", 2), n=1)
            await answered(s, "a2", "approved", edits={"n": 7})
            assert decode(await s.call("post", (1, "", 2), n=1)) == 7

    asyncio.run(main())
    assert done == [7]
    other = session(skill_of(done))

    async def again() -> None:
        async with other.operation():
            assert decode(await other.call("post", (1, "", 2), n=1)) == 7

    asyncio.run(again())
    assert done == [7]


def test_a_rule_denies_what_was_approved(session: Make) -> None:
    """A rule that came later holds for a call that was approved before it was made; a yes for
    the session is for the skill as it is declared."""
    done: list[Any] = []
    s = session(skill_of(done))

    async def main() -> None:
        async with s.operation():
            await s.call("post", n=1)
            await answered(s, "a1", "approved", scope="session")
            s.rules = Rules(Policy(rules=[Rule(decision="deny", skill="po*")]))
            assert raised(await s.call("post", n=1)) == "PolicyViolation"
            s.rules = Rules()
            assert decode(await s.call("post", (2, "", 1), n=5)) == 5
            s.offer.skills["post"] = skill_of(done, lambda _: True)
            assert raised(await s.call("post", (3, "", 1), n=5)) == "ApprovalRequired"

    asyncio.run(main())
    assert done == [5]


def test_an_approver_that_hangs_is_given_up(session: Make) -> None:
    """After the time that requests have it has said no; people are not asked then."""
    done: list[Any] = []
    s = session(skill_of(done))

    async def never(_: Approval) -> bool:
        await asyncio.Event().wait()
        return True

    s.rules = Rules(Policy(approval_timeout=0.05), never)

    async def main() -> None:
        async with s.operation():
            refused = await s.call("post", n=1)
            assert raised(refused) == "ApprovalDenied"

    asyncio.run(main())
    assert done == []
