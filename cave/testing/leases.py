"""The part of the `Store` contract that is about leases, and what all parts of it share.

Subclass `cave.testing.store.StoreContract`, which has all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from cave.errors import LeaseLost, SessionBusy
from cave.events import CellStarted, Event
from cave.ports import Holder, Lease, Store
from cave.store import this_process


class SteppedClock:
    """A clock that stands until it is moved."""

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.wall = at
        self.boot = 1000.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.boot

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.wall += seconds
        self.boot += seconds


def cells(*numbers: int) -> list[Event]:
    """One `CellStarted` for each number."""
    return [CellStarted(cell=n, source=f"x = {n}") for n in numbers]


async def journal(store: Store, session: str, *, after: int = 0) -> list[Event]:
    """The events of a session as a list."""
    return [event async for event in store.read(session, after=after)]


def elsewhere(holder: Holder) -> Holder:
    """The same holder on another machine, of whose processes nothing is known here."""
    return replace(holder, host="elsewhere", boot="another-boot")


class StoreCase:
    """Opens stores for one test, and closes them."""

    lease_ttl: ClassVar[float] = 30.0
    place: Path
    clock: SteppedClock

    @pytest.fixture(autouse=True)
    def _prepared(self, tmp_path: Path) -> None:
        self.place = tmp_path
        self.clock = SteppedClock()

    def open_store(self, clock: SteppedClock) -> Store:
        """A new store on `self.place`."""
        raise NotImplementedError

    def run(self, scenario: Callable[..., Awaitable[None]], *, stores: int = 1) -> None:
        """Run `scenario(store, ...)` on `stores` stores that share their sessions."""

        async def main() -> None:
            async with AsyncExitStack() as stack:
                opened = [self.open_store(self.clock) for _ in range(stores)]
                for store in opened:
                    stack.push_async_callback(store.close)
                await scenario(*opened)

        asyncio.run(main())

    async def begin(self, store: Store, session: str = "q3") -> Lease:
        """Make a session and operate it."""
        await store.create(session)
        return await store.acquire(session, this_process())


class LeaseContract(StoreCase):
    """Who may write: one holder at a time, each fenced off by the next."""

    def test_a_number_is_kept_while_nobody_came_between(self) -> None:
        """The same holder acquires again under its number; after another one it goes up."""

        async def scenario(store: Store, other: Store) -> None:
            me, you = this_process(), this_process()
            await store.create("q3")
            first = await store.acquire("q3", me)
            await store.release(first)
            again = await store.acquire("q3", me)
            assert again == first
            await store.release(again)
            assert (await other.acquire("q3", you)).number == first.number + 1

        self.run(scenario, stores=2)

    def test_a_busy_session_names_its_holder(self) -> None:
        """`SessionBusy` says who operates since when; `info` and `sessions` say it too."""

        async def scenario(store: Store, other: Store) -> None:
            lease = await self.begin(store)
            began = self.clock.now()
            self.clock.advance(3)
            with pytest.raises(SessionBusy) as busy:
                await other.acquire("q3", this_process())
            assert (busy.value.pid, busy.value.since) == (lease.holder.pid, began)
            assert busy.value.holder == lease.holder.host
            info = await other.info("q3")
            assert (info.holder, info.since, info.lease) == (lease.holder, began, lease.number)
            assert await other.sessions() == [info]

        self.run(scenario, stores=2)

    def test_acquire_waits_for_the_end_of_an_operation(self) -> None:
        """With `wait` a busy session is had as soon as it is released."""

        async def scenario(store: Store, other: Store) -> None:
            lease = await self.begin(store)
            waiting = asyncio.ensure_future(other.acquire("q3", this_process(), wait=20))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await store.append(lease, cells(1), release=True)
            taken = await asyncio.wait_for(waiting, 10)
            assert taken.number == lease.number + 1

        self.run(scenario, stores=2)

    def test_waiting_ends_as_busy(self) -> None:
        """When the time to wait is over, `SessionBusy` is raised."""

        async def scenario(store: Store, other: Store) -> None:
            await self.begin(store)
            with pytest.raises(SessionBusy):
                await other.acquire("q3", this_process(), wait=0.05)

        self.run(scenario, stores=2)

    def test_a_lease_taken_over_is_fenced(self) -> None:
        """After a takeover the old holder appends and renews nothing, and releases nothing."""

        async def scenario(store: Store, other: Store) -> None:
            old = await self.begin(store)
            await store.append(old, cells(1))
            self.clock.advance(self.lease_ttl + 1)
            new = await other.acquire("q3", this_process())
            assert new.number == old.number + 1
            with pytest.raises(LeaseLost, match="taken over"):
                await store.append(old, cells(2))
            with pytest.raises(LeaseLost):
                await store.append(old, cells(2), release=True)
            with pytest.raises(LeaseLost):
                await store.renew(old)
            await store.release(old)
            assert (await store.info("q3")).holder == new.holder
            await other.append(new, cells(3))
            assert [e.seq for e in await journal(store, "q3")] == [1, 2]
            assert await store.verify("q3") == []

        self.run(scenario, stores=2)

    def test_the_number_is_never_given_twice(self) -> None:
        """Each change of hands counts the lease up, whoever comes back."""

        async def scenario(store: Store) -> None:
            await store.create("q3")
            holders = [this_process(), this_process()]
            numbers = []
            for turn in range(6):
                lease = await store.acquire("q3", holders[turn % 2])
                numbers.append(lease.number)
                await store.append(lease, cells(turn), release=True)
            assert numbers == [1, 2, 3, 4, 5, 6]

        self.run(scenario)

    def test_a_lease_made_by_hand_is_refused(self) -> None:
        """A number that was never given out, or to another holder, writes nothing."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            for forged in (
                replace(lease, number=lease.number + 1),
                replace(lease, holder=this_process()),
            ):
                with pytest.raises(LeaseLost):
                    await store.append(forged, cells(1))
            assert await journal(store, "q3") == []

        self.run(scenario)

    def test_renewing_keeps_a_lease(self) -> None:
        """A lease that is renewed, or under which is appended, is not taken over."""

        async def scenario(store: Store, other: Store) -> None:
            lease = await self.begin(store)
            for keep in (lambda: store.renew(lease), lambda: store.append(lease, cells(1))):
                self.clock.advance(self.lease_ttl * 0.7)
                await keep()
                self.clock.advance(self.lease_ttl * 0.7)
                with pytest.raises(SessionBusy):
                    await other.acquire("q3", this_process())

        self.run(scenario, stores=2)

    def test_an_ended_lease_that_nobody_took_goes_on(self) -> None:
        """The end of a lease alone fences nobody: it only allows a takeover."""

        async def scenario(store: Store, other: Store) -> None:
            lease = await self.begin(store)
            self.clock.advance(self.lease_ttl * 2)
            assert (await store.info("q3")).holder is None
            await store.append(lease, cells(1))
            with pytest.raises(SessionBusy):
                await other.acquire("q3", this_process())

        self.run(scenario, stores=2)

    def test_another_machines_holder_is_judged_by_the_lease_alone(self) -> None:
        """Of a holder elsewhere nothing is known: it keeps the session until its lease ends."""

        async def scenario(store: Store) -> None:
            await store.create("q3")
            away = elsewhere(replace(this_process(), pid=2**22 + 1))
            lease = await store.acquire("q3", away)
            with pytest.raises(SessionBusy, match="elsewhere"):
                await store.acquire("q3", this_process())
            self.clock.advance(self.lease_ttl + 1)
            assert (await store.acquire("q3", this_process())).number == lease.number + 1

        self.run(scenario)

    def test_a_dead_holder_is_taken_over_at_once(self) -> None:
        """A holder on this machine whose process has ended holds nothing."""

        async def scenario(store: Store) -> None:
            await store.create("q3")
            no_such_pid = replace(this_process(), pid=2**22 + 1)
            used_again = replace(this_process(), started=this_process().started + 1)
            before_a_restart = replace(this_process(), boot="the boot before")
            for dead in (no_such_pid, used_again, before_a_restart):
                lease = await store.acquire("q3", dead)
                assert (await store.info("q3")).holder is None
                new = await store.acquire("q3", this_process())
                assert new.number == lease.number + 1
                with pytest.raises(LeaseLost):
                    await store.append(lease, cells(1))
                await store.release(new)

        self.run(scenario)

    def test_a_jumping_wall_clock_makes_no_second_owner(self) -> None:
        """On one machine a date set forward or back ends no lease and prolongs none."""

        async def scenario(store: Store, other: Store) -> None:
            lease = await self.begin(store)
            for jump in (86_400.0, -172_800.0):
                self.clock.wall += jump
                with pytest.raises(SessionBusy):
                    await other.acquire("q3", this_process())
            self.clock.boot += self.lease_ttl + 1
            assert (await other.acquire("q3", this_process())).number == lease.number + 1

        self.run(scenario, stores=2)

    def test_append_makes_an_idle_session_busy_again(self) -> None:
        """While nobody came between, appending needs no new acquire; afterwards it is lost."""

        async def scenario(store: Store, other: Store) -> None:
            lease = await self.begin(store)
            await store.append(lease, cells(1), release=True)
            assert (await store.info("q3")).holder is None
            self.clock.advance(100)
            await store.append(lease, cells(2))
            info = await store.info("q3")
            assert (info.holder, info.since) == (lease.holder, self.clock.now())
            with pytest.raises(SessionBusy):
                await other.acquire("q3", this_process())
            await store.append(lease, cells(3), release=True)
            await other.acquire("q3", this_process())
            with pytest.raises(LeaseLost):
                await store.append(lease, cells(4))

        self.run(scenario, stores=2)

    def test_of_many_who_acquire_at_once_one_wins(self) -> None:
        """Ten holders racing for an idle session: one has it, nine are told that it is busy."""

        async def scenario(store: Store, other: Store) -> None:
            await store.create("q3")
            results = await asyncio.gather(
                *((store, other)[n % 2].acquire("q3", this_process()) for n in range(10)),
                return_exceptions=True,
            )
            won = [r for r in results if isinstance(r, Lease)]
            assert [lease.number for lease in won] == [1]
            assert sum(isinstance(r, SessionBusy) for r in results) == 9

        self.run(scenario, stores=2)
