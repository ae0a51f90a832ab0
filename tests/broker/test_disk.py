"""Disks that fail at each point of the ledger: nothing is done twice, nothing done is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cave
from cave import failpoints
from cave.errors import StoreError
from cave.snapshot import Reserve
from cave.store.disk import explain_os

from .conftest import Session

pytestmark = pytest.mark.anyio
called: list[str] = []


@cave.skill(effect="write", runs="host")
def post(item: str) -> str:
    """Post one item."""
    called.append(item)
    return item * 30_000


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is called yet, and no failpoint stays armed."""
    called.clear()
    yield
    failpoints.disarm()


BEFORE = [("effect.before_intent", 1), ("store.before_commit", 1)]
AFTER = [
    ("effect.before_result", 1), ("blob.before_rename", 1), ("store.before_commit", 2),
    ("store.after_commit", 2), ("effect.after_result", 1),
]  # fmt: skip


@pytest.mark.parametrize("fault", ["enospc", "eio"])
@pytest.mark.parametrize(("point", "after"), BEFORE)
async def test_what_cannot_be_journaled_is_not_called(
    session: Callable[..., Session], point: str, after: int, fault: str
) -> None:
    """The cell gets an error that says so and what is wrong; once the disk works it is called."""
    s = session(post)
    async with s.operation():
        failpoints.arm(point, fault, after=after)
        answer = await s.call("post", item="a")
        assert answer.fault is not None
        assert answer.fault.name == "StoreError"
        assert answer.fault.message.startswith("skill 'post' was not called: ")
        assert ("make room" if fault == "enospc" else "system's log") in answer.fault.message
        assert called == []
    async with s.operation():
        assert (await s.call("post", item="a")).status == "ok"
    assert called == ["a"]


@pytest.mark.parametrize("fault", ["enospc", "eio"])
@pytest.mark.parametrize(("point", "after"), AFTER)
async def test_what_was_done_is_recorded_all_the_same(
    session: Callable[..., Session], point: str, after: int, fault: str
) -> None:
    """The reserve is let go of and the result written again: done once, answered ever after."""
    s = session(post)
    async with s.operation():
        failpoints.arm(point, fault, after=after)
        answer = await s.call("post", item="a")
        assert answer.status == "ok", answer.fault
        assert not (Path(s.store.path).parent / "reserve").exists()
    other = session(post)
    async with other.operation():
        assert other.states == ["done"]
        assert (await other.call("post", item="a")).status == "ok"
        assert (await other.call("post", (2, "", 1), item="b")).status == "ok"
        assert (Path(s.store.path).parent / "reserve").exists()  # set aside for the next
    assert called == ["a", "b"]


async def test_what_no_disk_takes_is_owed(
    session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that cannot be written is kept in memory, said, and written with what comes next;
    another process that never got it asks a person."""
    s = session(post)
    append: Any = s.store.append
    full = explain_os(OSError(errno.ENOSPC, "no space"), "home")

    async def refuse(lease: Any, events: Any, **more: Any) -> Any:
        if called and "done" not in told:
            raise full
        return await append(lease, events, **more)

    told: list[str] = []
    monkeypatch.setattr(s.store, "append", refuse)
    async with s.operation():
        answer = await s.call("post", item="a")
        assert answer.fault is not None
        assert "effect e1 has ended (done), but the disk that holds" in answer.fault.message
        assert "Make room before this process ends" in answer.fault.message
    assert s.states == ["begun"]
    async with s.operation():
        with pytest.raises(StoreError, match="full"):
            await s.broker.pay()
    told.append("done")
    async with s.operation():
        await s.broker.pay()
        await s.broker.pay()
        assert s.states == ["done"]
    assert called == ["a"]


async def test_without_room_for_a_result_nothing_begins(
    session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the reserve cannot be set aside the call is refused, and nothing was done."""
    monkeypatch.setattr(Reserve, "ensure", lambda _: False)
    s = session(post)
    async with s.operation():
        answer = await s.call("post", item="a")
        assert answer.fault is not None
        assert "has no room left for its result; make room" in answer.fault.message
    assert called == []
    assert s.states == []
