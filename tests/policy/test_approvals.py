from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cave.approval import Approval, Approvals, digest_of
from cave.errors import ConfigError
from cave.events import ApprovalRequested, ApprovalSettled
from cave.policy.answering import Answer, choose, consult, decoded, settled

D, OTHER = digest_of("post(1)"), digest_of("post(1000)")
ASKED = ApprovalRequested(
    approval="a1", what="post(1)", digest=D, skill="post", cell=3, ordinal=1, covers="post@h1",
    expires_at=100.0, at=1.0, seq=1,
)  # fmt: skip
YES = ApprovalSettled(approval="a1", state="approved", digest=D, actor="ann", at=5.0, seq=2)
HERE = (3, "", 1)


def fold(*events: ApprovalRequested | ApprovalSettled) -> Approvals:
    approvals = Approvals()
    for event in events:
        approvals.feed(event)
    return approvals


def test_the_first_answer_counts() -> None:
    """Whoever answers second changes nothing, in either order."""
    no = replace(YES, state="denied", actor="bob")
    assert fold(ASKED, YES, no).entries["a1"].actor == "ann"
    assert fold(ASKED, no, YES).entries["a1"].state == "denied"


def test_an_answer_is_for_the_exact_bytes_and_place() -> None:
    """Other arguments, another call, another approval: each has to be asked for itself."""
    assert fold(ASKED, replace(YES, digest=OTHER)).entries["a1"].pending
    assert fold(YES).entries == {}
    approvals = fold(ASKED, YES)
    granted = approvals.found(HERE, digest=D, covers="post@h1")
    assert granted is not None
    assert granted.state == "approved"
    assert approvals.found(HERE, digest=OTHER, covers="post@h1") is None
    assert approvals.found((3, "", 2), digest=D, covers="post@h1") is None


def test_a_yes_for_the_session_covers_the_skill_as_it_was_declared() -> None:
    """Later calls with any arguments pass; a redefined skill, which has another hash, asks."""
    approvals = fold(ASKED, replace(YES, scope="session"))
    later = (9, "", 1)
    assert approvals.found(later, digest=OTHER, covers="post@h1") is not None
    assert approvals.found(later, digest=OTHER, covers="post@h2") is None
    assert approvals.found(later, digest=OTHER, covers="") is None


def test_time_denies() -> None:
    """A yes that comes at the end of its time or after it is no yes."""
    assert fold(ASKED, replace(YES, at=100.0)).entries["a1"].state == "expired"
    assert [a.id for a in fold(ASKED).overdue(100.0)] == ["a1"]
    assert not list(fold(ASKED).overdue(99.9))


def refuse(edits: Mapping[str, Any]) -> Any:
    raise ValueError(f"amount is {edits['amount']}, not above 0")


def test_what_an_answer_cannot_be_used_for_is_denied() -> None:
    """Bytes that were never shown, edits that the skill refuses, edits of a cell."""
    asked = fold(ASKED).entries["a1"]
    edits = Answer(state="approved", digest=D, edits={"amount": -1})
    for answer, edit in ((replace(edits, digest=OTHER), None), (edits, refuse), (edits, None)):
        event = settled(asked, answer, edit=edit)
        assert event.state == "denied"
        assert event.reason
    assert decoded(edits.encoded()) == edits
    with pytest.raises(ConfigError, match="scope='session'"):
        replace(edits, scope="session")
    with pytest.raises(ConfigError, match="without them"):
        replace(edits, state="denied")


def test_one_has_to_say_which_of_several() -> None:
    """Without an id the only one that waits is meant; never one of two."""
    one, two = fold(ASKED).entries["a1"], fold(replace(ASKED, approval="a2")).entries["a2"]
    assert choose([one], None) is one
    with pytest.raises(ConfigError, match=r"a1 .*a2"):
        choose([one, two], None)
    with pytest.raises(ConfigError, match="'a3'"):
        choose([one, two], "a3")


def test_an_approver_of_the_users_own_says_yes_only_with_true() -> None:
    """Sync or async; one that raises or takes too long says no; what is no answer is left to
    people."""

    async def no(_: Approval) -> bool:
        return False

    async def never(_: Approval) -> bool:
        await asyncio.Event().wait()
        return True

    def broken(_: Approval) -> bool:
        raise RuntimeError

    async def states() -> list[str | None]:
        asked = fold(ASKED).entries["a1"]
        said = [
            await consult(approver, asked, timeout=timeout)
            for approver, timeout in (
                (lambda _: True, None), (no, None), (never, 0.01), (broken, None),
                (lambda _: "no", None), (lambda _: 1, None), (lambda _: None, None),
            )
        ]  # fmt: skip
        return [None if answer is None else answer.state for answer in said]

    told = asyncio.run(states())
    assert told == ["approved", "denied", "denied", "denied", None, None, None]
