from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from stamina import instrumentation

import cave
from cave import logs
from cave.broker import quiescence
from cave.events import EffectIntent, EffectSettled, Fault
from cave.ports import SkillCall
from cave.skills import SkillContext
from tests.broker.conftest import Session, decode

Make = Callable[..., Session]


class World:
    """The outside: what was done there, by key."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def post(self, key: str) -> str:
        self.done.append(key)
        return f"posted {len(self.done)}"


def test_a_call_is_an_intent_then_the_call_then_a_result(session: Make) -> None:
    """When the skill runs its intent is in the journal, and its result before the cell has it."""
    seen: list[list[str]] = []

    @cave.skill(effect="write", runs="host")
    def post(n: int) -> int:
        """Post."""
        seen.append(s.states)
        return n + 1

    s = session(post)

    async def main() -> None:
        async with s.operation():
            assert decode(await s.call("post", n=1)) == 2
            assert s.states == ["done"]

    asyncio.run(main())
    assert seen == [["begun"]]
    effect = s.journal.history.effects_of(1)[0]
    assert (effect.id, effect.skill, effect.state, effect.result) == ("e1", "post", "done", 2)
    assert effect.arguments == {"n": "1"}


def test_a_known_place_is_answered_from_the_ledger(session: Make) -> None:
    """A cell that runs again, also in another process, gets what it got, and nothing happens."""
    world = World()

    @cave.skill(effect="write", runs="host")
    def post(ctx: SkillContext, fail: bool = False) -> str:
        """Post."""
        if fail:
            world.post(ctx.idempotency_key)
            raise LookupError("no account")
        return world.post(ctx.idempotency_key)

    async def main() -> None:
        first = session(post)
        async with first.operation():
            assert decode(await first.call("post")) == "posted 1"
            failed = await first.call("post", (1, "", 2), fail=True)
            assert failed.fault is not None
            assert (failed.fault.name, failed.fault.message) == ("LookupError", "no account")
        for s in (first, session(post)):
            async with s.operation():
                assert decode(await s.call("post")) == "posted 1"
                assert (await s.call("post", (1, "", 2), fail=True)).fault == failed.fault

    asyncio.run(main())
    assert len(world.done) == len(set(world.done)) == 2


def test_another_call_at_a_known_place_stops_the_cell(session: Make) -> None:
    """Other arguments, or another skill, call nothing; nor does anything later in that cell."""
    world = World()

    @cave.skill(effect="write", runs="host")
    def post(n: int) -> str:
        """Post."""
        return world.post(str(n))

    @cave.skill(effect="write", runs="host")
    def mail(n: int) -> str:
        """Mail."""
        return world.post(str(n))

    s = session(post, mail)

    async def main() -> list[Any]:
        async with s.operation():
            await s.call("post", n=1)
            s.broker.began(1)
            one = await s.call("post", n=2)
            two = await s.call("post", (1, "", 2), n=3)
            s.broker.began(1)
            three = await s.call("mail", n=1)
            s.broker.began(1)
            return [one, two, three, await s.call("post", n=1)]

    one, two, three, four = asyncio.run(main())
    assert one.fault.name == two.fault.name == three.fault.name == "Divergence"
    assert "with other arguments (call 1, effect e1)" in one.fault.message
    assert "'mail' instead of 'post'" in three.fault.message
    assert four.status == "ok"
    assert world.done == ["1"]


def test_effects_of_one_cell_have_keys_of_their_own(session: Make) -> None:
    """Fifty calls side by side: fifty ids, fifty keys, in every lane and place one."""
    keys: list[str] = []

    @cave.skill(effect="write", runs="host")
    async def post(n: int, ctx: SkillContext) -> int:
        """Post."""
        await asyncio.sleep(0.01)
        keys.append(ctx.idempotency_key)
        return n

    s = session(post)

    async def main() -> list[int]:
        async with s.operation():
            calls = [s.call("post", (1, f"/{n % 5}", n // 5), n=7) for n in range(50)]
            return [decode(a) for a in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [7] * 50
    assert len(set(keys)) == 50
    assert len(s.journal.history.ledger.entries) == 50


def test_the_same_call_twice_at_once_is_one(session: Make) -> None:
    """A call that comes again while it is being answered waits for the first one's answer."""
    world = World()

    @cave.skill(effect="write", runs="host")
    def post() -> str:
        """Post."""
        time.sleep(0.2)
        return world.post("x")

    s = session(post)

    async def main() -> list[Any]:
        async with s.operation():
            return await asyncio.gather(s.call("post"), s.call("post"))

    assert [decode(a) for a in asyncio.run(main())] == ["posted 1", "posted 1"]


def _begin(s: Session, **more: Any) -> EffectIntent:
    """The intent that a process which is dead now had written."""
    place: dict[str, Any] = {"cell": 1, "lane": "", "ordinal": 1, "effect": "e1", "attempt": 1}
    owner = ("", "", 0, 0.0) if "owner" not in more else more.pop("owner")
    import hashlib

    from cave.ledger import key_of

    digest = hashlib.sha256(b"{}").hexdigest()
    return EffectIntent(
        **place,
        skill="post",
        effect_kind="write",
        runs="host",
        digest=digest,
        key=key_of("u1", (1, "", 1), "post", digest),
        owner=owner,
        kernel=1,
        **more,
    )


DEAD = ("", "another boot", 1, 0.0)


@pytest.mark.parametrize("declared", ["ask", "retry", "probe: done", "probe: not", "probe: raises"])
def test_an_effect_left_open_is_settled_as_declared(session: Make, declared: str) -> None:
    """Its owner is dead: asked about, called again with the same key, or looked up."""
    import socket

    world = World()

    def probe(call: Any) -> str | None:
        assert call.skill == "post"
        if declared == "probe: raises":
            raise ConnectionError("the bank is closed")
        return "posted before" if declared == "probe: done" else None

    @cave.skill(effect="write", runs="host", in_doubt=probe if ":" in declared else declared)
    def post(ctx: SkillContext) -> str:
        """Post."""
        return world.post(ctx.idempotency_key)

    s = session(post)
    intent = _begin(s, owner=(socket.gethostname(), *DEAD[1:]))

    async def main() -> Any:
        async with s.operation():
            await s.journal.append(intent)
            return await s.call("post")

    answer = asyncio.run(main())
    match declared:
        case "ask" | "probe: raises":
            assert answer.fault.name == "EffectInDoubt"
            assert "s.settle('e1', 'done'" in answer.fault.message
            assert s.states == ["in_doubt"]
            assert world.done == []
            if ":" in declared:
                assert "the bank is closed" in answer.fault.message
        case "probe: done":
            assert (decode(answer), world.done, s.states) == ("posted before", [], ["done"])
        case _:
            assert (decode(answer), s.states) == ("posted 1", ["done"])
            assert world.done == [intent.key]


@pytest.mark.parametrize("decision", ["done", "not_done", "give_up"])
def test_what_a_person_settles_counts(session: Make, decision: Any) -> None:
    """Settled as done it gives that result, as not done it is called, given up it never is."""
    world = World()

    @cave.skill(effect="write", runs="host")
    def post() -> str:
        """Post."""
        return world.post("x")

    s = session(post)
    import base64

    from cave.events import StoredValue

    value = StoredValue("safe", (5,), data=base64.b64encode(b'"2-7"').decode())

    async def main() -> Any:
        async with s.operation():
            await s.journal.append(_begin(s))
            first = await s.call("post")
            assert first.fault is not None
            given = value if decision == "done" else None
            await s.journal.append(EffectSettled(effect="e1", decision=decision, value=given))
            return await s.call("post")

    answer = asyncio.run(main())
    match decision:
        case "done":
            assert (decode(answer), world.done) == ("2-7", [])
        case "not_done":
            assert (decode(answer), world.done) == ("posted 1", ["x"])
        case _:
            assert answer.fault.name == "EffectInDoubt"
            assert world.done == []


class Later:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.ahead


def test_a_living_owner_is_waited_for(session: Make) -> None:
    """While another process may still do it, an effect is not called again: its time limit and
    the lag of a look have to pass; without a limit a person is asked."""
    import os
    import socket

    from cave.store.holders import boot_id, start_time

    parent = os.getppid()
    owner = (socket.gethostname(), boot_id(), parent, start_time(parent) or 0.0)
    clock = Later()

    left_then: list[float] = []

    @cave.skill(effect="write", runs="host", in_doubt="retry", timeout=2.0)
    def post() -> str:
        """Post."""
        left_then.append(quiescence.seconds_until(begun, s.owner, clock))
        return "posted"

    s = session(post, clock=clock)
    begun = _begin(s, owner=owner, timeout=2.0, since_boot=clock.monotonic())
    left = quiescence.seconds_until(begun, s.owner, clock)
    assert 7.5 < left <= 2.0 + quiescence.LAG + quiescence.DRIFT
    clock.ahead = left + 0.1
    assert quiescence.seconds_until(begun, s.owner, clock) == 0.0
    clock.ahead = left - 0.5

    async def main() -> Any:
        async with s.operation():
            await s.journal.append(begun)
            return await s.call("post")

    assert decode(asyncio.run(main())) == "posted"
    assert left_then == [0.0]
    assert "waiting" in s.cell.notes[0]
    unlimited = _begin(s, owner=owner, since_boot=clock.monotonic())
    assert quiescence.seconds_until(unlimited, s.owner, clock) == float("inf")


def test_a_call_past_its_time_is_in_doubt_and_told_of_later(session: Make) -> None:
    """It is not called again by itself; when its thread ends after all, that is journaled."""
    world, go = World(), threading.Event()

    @cave.skill(effect="write", runs="host", timeout=0.2, retries=3, in_doubt="retry")
    def post() -> str:
        """Post."""
        go.wait(30)
        return world.post("x")

    s = session(post)

    async def main() -> None:
        async with s.operation():
            answer = await s.call("post")
            assert answer.fault is not None
            assert answer.fault.name == "EffectInDoubt"
            assert "may still run" in answer.fault.message
            assert s.states == ["in_doubt"]
            await s.journal.append(EffectSettled(effect="e1", decision="not_done"))
            again = await s.call("post")
            assert again.fault is not None
            assert "still runs in this process" in again.fault.message
            go.set()
            await s.broker.quiet()
            assert decode(await s.call("post")) == "posted 1"

    asyncio.run(main())
    assert world.done == ["x"]
    assert s.states == ["done"]


@pytest.mark.parametrize(
    ("stopped", "why"),
    [
        ({"over": True}, "did not end within 5 s"),
        ({"cut": True}, "stopped in its midst (TimeoutError)"),
    ],
)
def test_a_write_of_the_kernel_that_was_stopped_is_in_doubt(
    session: Make, stopped: dict[str, bool], why: str
) -> None:
    """What ran out of its time or was interrupted in the midst of a write is asked about, also
    when the cell runs again; it is no transient error."""

    @cave.skill(effect="write", timeout=5, retries=3, transient=TimeoutError)
    def post() -> str:
        """Post."""
        return "x"

    s = session(post)
    over = SkillCall(
        "1", "post", "", 1, "", 1, "end", fault=Fault("TimeoutError", "over"),
        bases=() if "cut" in stopped else ("TimeoutError",), attempt=1, **stopped,
    )  # fmt: skip

    async def main() -> None:
        async with s.operation():
            assert (await s.call("post", phase="begin")).status == "go"
            for answer in (await s.broker.answer(over, s.cell), await s.call("post")):
                assert answer.fault is not None
                assert answer.fault.name == "EffectInDoubt"
                assert why in answer.fault.message

    asyncio.run(main())
    assert s.states == ["in_doubt"]


def test_only_named_errors_are_tried_again(
    session: Make, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A transient error has the same key tried again, each attempt journaled; another is told.
    stdout is for data: what is logged of it does not go there."""
    keys: list[tuple[str, int]] = []

    @cave.skill(effect="write", runs="host", retries=2, transient=(ConnectionError,))
    def post(ctx: SkillContext, error: str = "") -> int:
        """Post."""
        keys.append((ctx.idempotency_key, ctx.attempt))
        if error:
            raise LookupError(error)
        if ctx.attempt < 3:
            raise ConnectionResetError("gone")
        return ctx.attempt

    @cave.skill(runs="host", retries=1, transient=ConnectionError)
    def look(ctx: SkillContext) -> int:
        """Look, which is not journaled."""
        if ctx.attempt < 2:
            raise ConnectionResetError("gone")
        return ctx.attempt

    s = session(post, look)

    async def main() -> None:
        async with s.operation():
            assert decode(await s.call("look", (1, "", 9))) == 2
            assert decode(await s.call("post")) == 3
            other = await s.call("post", (1, "", 2), error="no")
            assert other.fault is not None
            assert other.fault.name == "LookupError"

    asyncio.run(main())
    assert [attempt for _, attempt in keys] == [1, 2, 3, 1]
    assert len({key for key, _ in keys[:3]}) == 1
    assert [note for note in s.cell.notes if "ConnectionResetError" in note]
    assert s.states == ["done", "failed"]
    logs.logger("cave.test").warning("told", what=1)
    assert not capsys.readouterr().out
    assert "stamina.retry_scheduled" in caplog.text
    assert "event='told' what=1" in caplog.text


def test_hooks_of_the_process_hear_of_repeated_calls() -> None:
    """What the user has set for stamina stays, and only what would print is replaced."""

    def mine(details: object) -> None:
        """Listen."""

    try:
        instrumentation.set_on_retry_hooks([mine, instrumentation.StructlogOnRetryHook])
        logs.retries()
        kept, replaced = instrumentation.get_on_retry_hooks()
        assert kept is mine
        assert "structlog" not in replaced.__module__
    finally:
        instrumentation.set_on_retry_hooks(None)


def test_whatever_a_skill_raises_is_its_error(session: Make) -> None:
    """Also what no future carries, and what ends a program."""

    @cave.skill(runs="host")
    def first(kind: str) -> int:
        """Raise."""
        raise {"stop": StopIteration, "exit": SystemExit}[kind](3)

    s = session(first)

    async def main() -> list[Any]:
        async with s.operation():
            return [await s.call("first", kind="stop"), await s.call("first", kind="exit")]

    async def waited() -> list[Any]:
        return await asyncio.wait_for(main(), 60)

    stopped, left = asyncio.run(waited())
    assert (stopped.fault.name, stopped.fault.message) == (
        "RuntimeError",
        "it raised StopIteration(3)",
    )
    assert left.fault.name == "SystemExit"


def test_a_result_that_cannot_be_sent_was_done_all_the_same(session: Make) -> None:
    """The cell is told so, and the effect is not made again for it."""
    world = World()

    @cave.skill(effect="write", runs="host")
    def post() -> object:
        """Post."""
        world.post("x")
        return object()

    s = session(post)

    async def main() -> list[Any]:
        async with s.operation():
            return [await s.call("post"), await s.call("post")]

    for answer in asyncio.run(main()):
        assert answer.fault.name == "SkillError"
        assert "post was done; what 'post' gave, a object, cannot be sent" in answer.fault.message
    assert world.done == ["x"]
    assert s.states == ["done"]


def test_without_the_lease_nothing_is_called(session: Make) -> None:
    """An owner that was relieved between the intent and the call finds it out before calling."""
    world = World()
    clock = Later()

    @cave.skill(effect="write", runs="host")
    def post() -> str:
        """Post."""
        return world.post("x")

    s, other = session(post, clock=clock), session(post, clock=clock)

    async def main() -> None:
        begin = s.broker._pen.begin

        async def begin_then_sleep(*of: Any) -> Any:
            intent = await begin(*of)
            clock.ahead = 100.0  # a stopped process wakes up long after
            await other.store.acquire("q3", other.owner, wait=0)
            return intent

        s.broker._pen.begin = begin_then_sleep  # type: ignore[method-assign]
        async with s.operation():
            with pytest.raises(cave.LeaseLost):
                await s.call("post")

    asyncio.run(main())
    assert world.done == []


def test_reads_are_recorded_without_waiting_for_the_disk(session: Make) -> None:
    """A read is answered from the ledger later, and one that was cut is simply made again."""
    calls: list[int] = []

    @cave.skill(effect="read", runs="host")
    def price(n: int) -> int:
        """A price."""
        calls.append(n)
        return len(calls)

    s = session(price)
    synced: list[bool] = []
    append = s.store.append

    async def watched(lease: Any, events: Any, **how: Any) -> Any:
        synced.append(how.get("sync", False))
        return await append(lease, events, **how)

    s.store.append = watched  # type: ignore[method-assign]

    async def main() -> list[int]:
        async with s.operation():
            synced.clear()
            return [decode(await s.call("price", n=5)), decode(await s.call("price", n=5))]

    assert asyncio.run(main()) == [1, 1]
    assert calls == [5]
    assert synced == [False]
