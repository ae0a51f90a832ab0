"""The contract of `Store`, as a test class to subclass.

::

    class TestMyStore(StoreContract):
        def open_store(self, clock):
            return MyStore(self.place, clock=clock, lease_ttl=self.lease_ttl)

`self.place` is an empty folder of each test; two stores opened on it share their sessions,
as two processes do. Needs pytest. `BlobStoreContract` is in `cave.testing.blobs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from cave.errors import LeaseLost, SessionBusy, SessionNotFound, StoreError
from cave.events import (
    CellFinished,
    CellOutput,
    Fault,
    Output,
    TurnFinished,
    Usage,
    ValuesDeleted,
)
from cave.ports import Lease, Store
from cave.store import this_process
from cave.testing.leases import LeaseContract, SteppedClock, cells, journal
from cave.testing.shared import SharedContract

__all__ = ["SteppedClock", "StoreContract", "cells", "journal"]


class StoreContract(SharedContract, LeaseContract):
    """What every `Store` promises. Subclass it and give `open_store`."""

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

    @pytest.mark.parametrize("verb", ["info", "delete", "verify", "seals", "read", "acquire"])
    def test_a_wrong_name_is_told_with_the_nearest_one(self, verb: str) -> None:
        """Every verb on a missing session raises `SessionNotFound` proposing the nearest."""

        async def scenario(store: Store) -> None:
            await store.create("revenue")
            calls: dict[str, Callable[[str], Awaitable[object]]] = {
                "info": store.info,
                "delete": store.delete,
                "verify": store.verify,
                "seals": store.seals,
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

    def test_usage_without_a_price_comes_back(self) -> None:
        """None and numbers are not confused on the way."""

        async def scenario(store: Store) -> None:
            lease = await self.begin(store)
            await store.append(
                lease, [TurnFinished(turn=1, status="done", usage=Usage(usd=None, seconds=1e-9))]
            )
            (event,) = await journal(store, "q3")
            assert isinstance(event, TurnFinished)
            assert event.usage == Usage(usd=None, seconds=1e-9)

        self.run(scenario)
