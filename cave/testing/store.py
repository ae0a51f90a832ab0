"""The contracts of `Store` and `BlobStore`, as test classes to subclass.

::

    class TestMyStore(StoreContract):
        def open_store(self, clock):
            return MyStore(self.place, clock=clock, lease_ttl=self.lease_ttl)

`self.place` is an empty folder of each test; two stores opened on it share their sessions,
as two processes do. Needs pytest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from cave.errors import LeaseLost, SessionBusy, SessionNotFound, StoreError
from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Event,
    Fault,
    Output,
    Usage,
    ValuesDeleted,
)
from cave.ports import BlobStore, Holder, Lease, Store
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


class StoreContract:
    """What every `Store` promises. Subclass it and give `open_store`."""

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

    # -- sessions ----------------------------------------------------------------------------

    def test_create_makes_a_session_once(self) -> None:
        """`create` tells whether it made the session; the second time it did not."""

        async def scenario(store: Store) -> None:
            assert await store.create("q3")
            assert not await store.create("q3")
            assert [info.name for info in await store.sessions()] == ["q3"]

        self.run(scenario)

    def test_a_new_session_is_empty_and_nobodys(self) -> None:
        """A new session has no events, no holder, and a chain that is whole."""

        async def scenario(store: Store) -> None:
            await store.create("q3")
            info = await store.info("q3")
            assert (info.events, info.lease, info.holder, info.since) == (0, 0, None, 0.0)
            assert info.created == info.changed == self.clock.now()
            assert await journal(store, "q3") == []
            assert await store.verify("q3") == []

        self.run(scenario)

    def test_sessions_come_last_changed_first(self) -> None:
        """`sessions` is ordered by the time of the last event, newest first."""

        async def scenario(store: Store) -> None:
            for name in ("a", "b", "c"):
                await store.create(name)
                self.clock.advance(1)
            await store.append(await store.acquire("b", this_process()), cells(1))
            assert [info.name for info in await store.sessions()] == ["b", "c", "a"]

        self.run(scenario)

    @pytest.mark.parametrize("verb", ["info", "delete", "verify", "read", "acquire"])
    def test_a_wrong_name_is_told_with_the_nearest_one(self, verb: str) -> None:
        """Every verb on a missing session raises `SessionNotFound` proposing the nearest."""

        async def scenario(store: Store) -> None:
            await store.create("revenue")
            calls: dict[str, Callable[[str], Awaitable[object]]] = {
                "info": store.info,
                "delete": store.delete,
                "verify": store.verify,
                "read": lambda name: journal(store, name),
                "acquire": lambda name: store.acquire(name, this_process()),
            }
            with pytest.raises(SessionNotFound, match=r"did you mean 'revenue'"):
                await calls[verb]("revenu")
            with pytest.raises(SessionNotFound, match=r"no session 'zzz'$"):
                await calls[verb]("zzz")

        self.run(scenario)

    def test_delete_forgets_a_session_and_its_journal(self) -> None:
        """After `delete` the name is free, and its next session starts empty."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(lease, cells(1, 2), release=True)
            await store.delete("q3")
            assert await store.sessions() == []
            assert await store.create("q3")
            assert await journal(store, "q3") == []

        self.run(scenario)

    def test_delete_refuses_while_somebody_operates(self) -> None:
        """A session in use is not deleted, and loses nothing."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(lease, cells(1))
            with pytest.raises(SessionBusy):
                await store.delete("q3")
            assert len(await journal(store, "q3")) == 1

        self.run(scenario)

    def test_a_namesake_refuses_the_old_lease(self) -> None:
        """A lease of a deleted session does not write into a new one of that name."""

        async def scenario(store: Store) -> None:
            old = await self.begin(store)
            await store.release(old)
            await store.delete("q3")
            new = await self.begin(store)
            with pytest.raises(LeaseLost):
                await store.append(old, cells(1))
            await store.append(new, cells(2))

        self.run(scenario)

    # -- append and read ---------------------------------------------------------------------

    def test_append_gives_events_their_place(self) -> None:
        """Events come back stamped 1, 2, 3 ... with session and time, and read the same."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            first = await store.append(lease, cells(1, 2))
            self.clock.advance(5)
            second = await store.append(lease, cells(3), sync=True)
            got = [*first, *second]
            assert [e.seq for e in got] == [1, 2, 3]
            assert {e.session for e in got} == {"q3"}
            assert got[2].at - got[0].at == 5
            assert await journal(store, "q3") == got
            info = await store.info("q3")
            assert (info.events, info.changed) == (3, got[2].at)

        self.run(scenario)

    def test_values_of_events_come_back_equal(self) -> None:
        """What an event holds survives the journal exactly: texts, bundles, nested values."""
        finished = CellFinished(
            cell=1,
            status="error",
            outputs=(
                Output("stream", "é\u2028\x00\U0001f600\n", "stdout"),
                Output("display_data", data={"text/plain": "1", "n": [1.5, None, {"a": True}]}),
            ),
            error=Fault("ValueError", "no", "Traceback"),
            seconds=0.1,
        )

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(lease, [finished, ValuesDeleted(names=("a", "b"))])
            first, second = await journal(store, "q3")
            assert replace(first, seq=0, at=0.0, session="") == finished
            assert isinstance(second, ValuesDeleted)
            assert second.names == ("a", "b")

        self.run(scenario)

    def test_time_never_goes_back(self) -> None:
        """When the clock is set back, events keep the time of the one before."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            (first,) = await store.append(lease, cells(1))
            self.clock.wall -= 3600
            (second,) = await store.append(lease, cells(2))
            assert second.at == first.at

        self.run(scenario)

    def test_read_goes_on_behind_a_number(self) -> None:
        """`after` and `limit` cut the journal, across pages too."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(lease, cells(*range(1, 1201)))
            assert [e.seq for e in await journal(store, "q3", after=1198)] == [1199, 1200]
            assert await journal(store, "q3", after=1200) == []
            for limit in (0, 1, 700):
                some = [e.seq async for e in store.read("q3", after=300, limit=limit)]
                assert some == list(range(301, 301 + limit))

        self.run(scenario)

    def test_reading_goes_on_while_others_write(self) -> None:
        """A reader half-way sees what is appended meanwhile, without gap or repetition."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(lease, cells(*range(1, 601)))
            seen = []
            async with aclosing(store.read("q3")) as events:  # type: ignore[type-var]
                async for event in events:
                    seen.append(event.seq)
                    if event.seq == 100:
                        await store.append(lease, cells(601))
            assert seen == list(range(1, 602))

        self.run(scenario)

    def test_events_that_only_stream_are_refused(self) -> None:
        """A provisional event is never journaled, nor what was to be written with it."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            streamed = CellOutput(cell=1, output=Output("stream", "hi", "stdout"))
            with pytest.raises(ValueError, match=r"cell\.output"):
                await store.append(lease, [*cells(1), streamed])
            assert await journal(store, "q3") == []

        self.run(scenario)

    def test_an_empty_append_changes_no_journal(self) -> None:
        """Nothing to append is legal, and may release."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            assert list(await store.append(lease, [], release=True)) == []
            info = await store.info("q3")
            assert (info.events, info.holder) == (0, None)

        self.run(scenario)

    def test_sessions_append_side_by_side(self) -> None:
        """Eight sessions appending at once each get a contiguous journal that verifies."""

        async def work(store: Store, name: str) -> None:
            lease = await self.begin(store, name)
            for n in range(25):
                await store.append(lease, cells(n, n), sync=n % 5 == 0)

        async def scenario(store: Store) -> None:
            names = [f"s{n}" for n in range(8)]
            await asyncio.gather(*(work(store, name) for name in names))
            for name in names:
                assert [e.seq for e in await journal(store, name)] == list(range(1, 51))
                assert await store.verify(name) == []

        self.run(scenario)

    def test_one_sessions_refusal_undoes_nothing_of_anothers(self) -> None:
        """Of appends made at once, those under a lost lease fail and the others are kept."""

        async def scenario(store: Store) -> None:
            stale = await self.begin(store, "a")
            await store.release(stale)
            await store.acquire("a", this_process())
            good = await self.begin(store, "b")
            leases: Sequence[Lease] = [stale, good, stale, good]
            results = await asyncio.gather(
                *(store.append(lease, cells(1)) for lease in leases), return_exceptions=True
            )
            assert [isinstance(r, LeaseLost) for r in results] == [True, False, True, False]
            assert await journal(store, "a") == []
            assert len(await journal(store, "b")) == 2

        self.run(scenario)

    def test_a_cancelled_append_is_all_or_nothing(self) -> None:
        """A cancelled append is written whole or not at all, and known before it returns."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            for turns in range(6):
                before = (await store.info("q3")).events
                task = asyncio.ensure_future(store.append(lease, cells(1, 2, 3), sync=True))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                after = (await store.info("q3")).events
                assert after - before in {0, 3}
                await asyncio.sleep(0.01)
                assert (await store.info("q3")).events == after
            assert await store.verify("q3") == []

        self.run(scenario)

    def test_the_journal_outlives_the_store(self) -> None:
        """What was appended is there for a store opened later."""

        async def write(store: Store) -> None:
            await store.append(await self.begin(store), cells(1, 2))

        async def read(store: Store) -> None:
            assert [e.seq for e in await journal(store, "q3")] == [1, 2]
            assert await store.verify("q3") == []

        self.run(write)
        self.run(read)

    def test_a_closed_store_says_so(self) -> None:
        """Calls after `close` raise `StoreError`; closing again does not."""

        async def scenario(store: Store) -> None:
            await store.create("q3")
            await store.close()
            with pytest.raises(StoreError, match="closed"):
                await store.info("q3")
            with pytest.raises(StoreError, match="closed"):
                await store.create("q4")

        self.run(scenario)

    # -- leases ------------------------------------------------------------------------------

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

    def test_usage_without_a_price_comes_back(self) -> None:
        """None and numbers are not confused on the way."""
        from cave.events import TurnFinished

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(
                lease, [TurnFinished(turn=1, status="done", usage=Usage(usd=None, seconds=1e-9))]
            )
            (event,) = await journal(store, "q3")
            assert isinstance(event, TurnFinished)
            assert event.usage == Usage(usd=None, seconds=1e-9)

        self.run(scenario)


class BlobStoreContract:
    """What every `BlobStore` promises. Subclass it and give `open_blobs`."""

    place: Path

    @pytest.fixture(autouse=True)
    def _prepared(self, tmp_path: Path) -> None:
        self.place = tmp_path

    def open_blobs(self) -> BlobStore:
        """A blob store on `self.place`."""
        raise NotImplementedError

    def test_a_blob_is_read_by_the_hash_of_its_content(self) -> None:
        """`put` gives the SHA-256 of all chunks, and `read` gives all of them."""
        blobs = self.open_blobs()
        key = blobs.put([b"ab", b"", b"c" * 100_000])
        content = b"ab" + b"c" * 100_000
        assert key == hashlib.sha256(content).hexdigest()
        assert blobs.read(key) == content
        assert self.open_blobs().read(key) == content

    def test_an_empty_blob_is_a_blob(self) -> None:
        """Nothing has a key, too."""
        blobs = self.open_blobs()
        assert blobs.read(blobs.put([])) == b""

    def test_the_same_content_is_kept_once(self) -> None:
        """Putting what is there changes nothing."""
        blobs = self.open_blobs()
        keys = {blobs.put([b"same"]), blobs.put([b"sa", b"me"])}
        assert len(keys) == 1
        assert list(blobs.keys()) == list(keys)

    def test_keys_lists_every_blob(self) -> None:
        """`keys` gives each key once, and none in an empty store."""
        blobs = self.open_blobs()
        assert list(blobs.keys()) == []
        put = {blobs.put([bytes([n])]) for n in range(20)}
        assert sorted(blobs.keys()) == sorted(put)

    def test_a_missing_blob_is_a_store_error(self) -> None:
        """Reading what is not there names the key; deleting it is no error."""
        blobs = self.open_blobs()
        key = blobs.put([b"gone"])
        blobs.delete(key)
        blobs.delete(key)
        assert list(blobs.keys()) == []
        with pytest.raises(StoreError, match=key):
            blobs.read(key)

    @pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
    def test_what_is_no_key_is_refused(self, key: str) -> None:
        """Only 64 hex digits are a key; nothing else reaches the files."""
        blobs = self.open_blobs()
        with pytest.raises(StoreError):
            blobs.read(key)
        with pytest.raises(StoreError):
            blobs.delete(key)

    def test_a_source_that_fails_leaves_nothing(self) -> None:
        """When the chunks cannot be had to the end, there is no blob and the error is theirs."""
        blobs = self.open_blobs()

        def chunks() -> object:
            yield b"some"
            raise LookupError("the source broke")

        with pytest.raises(LookupError, match="the source broke"):
            blobs.put(chunks())  # type: ignore[arg-type]
        assert list(blobs.keys()) == []
