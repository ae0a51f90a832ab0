"""The part of the `Store` contract that is about answers and budgets (see `cave.shared`).

Subclass `cave.testing.store.StoreContract`, which has all of it.
"""

from __future__ import annotations

import asyncio

import pytest

from cave.errors import SessionNotFound
from cave.facts import Amount
from cave.ports import Store
from cave.shared import NO_LIMITS
from cave.testing.leases import StoreCase


class SharedContract(StoreCase):
    """What processes may write without the lease."""

    def test_the_first_answer_is_the_only_one(self) -> None:
        """Of two who answer one approval one counts, and both are told which."""

        async def scenario(one: Store, other: Store) -> None:
            await one.create("q3")
            said = await asyncio.gather(
                one.answer("q3", "a1", b"yes"), other.answer("q3", "a1", b"no")
            )
            assert said[0] == said[1]
            assert await other.answers("q3") == {"a1": said[0]}
            assert await one.answer("q3", "a2", b"other") == b"other"

        self.run(scenario, stores=2)

    def test_an_answer_after_the_time_is_none(self) -> None:
        """What has expired takes no answer, and one that came in time stays."""

        async def scenario(store: Store) -> None:
            await store.create("q3")
            until = self.clock.now() + 5
            assert await store.answer("q3", "a1", b"yes", until=until) == b"yes"
            self.clock.advance(5)
            assert await store.answer("q3", "a2", b"yes", until=until) is None
            assert await store.answer("q3", "a1", b"no", until=until) == b"yes"
            assert await store.answers("q3") == {"a1": b"yes"}

        self.run(scenario)

    def test_answers_go_with_their_session(self) -> None:
        """A session that is deleted leaves no answer to its namesake."""

        async def scenario(store: Store) -> None:
            with pytest.raises(SessionNotFound, match="q3"):
                await store.answer("q3", "a1", b"yes")
            await store.create("q3")
            await store.answer("q3", "a1", b"yes")
            await store.delete("q3")
            await store.create("q3")
            assert await store.answers("q3") == {}

        self.run(scenario)

    def test_a_reservation_is_refused_where_it_would_pass_a_limit(self) -> None:
        """It says which limit, what is used of it and what was needed; nothing is set aside."""

        async def scenario(store: Store) -> None:
            await store.limit("b", Amount(100, -1, 3, -1), spent=Amount(tokens=10))
            assert await store.reserve("c1", "b", Amount(60, 10**15, 1, 1)) is None
            assert await store.reserve("c1", "b", Amount(60, 0, 1, 1)) is None  # once
            short = await store.reserve("c2", "b", Amount(31, 0, 1, 1))
            assert short is not None
            assert (short.budget, short.limit, short.allowed) == ("b", "tokens", 100)
            assert (short.used, short.needed) == (70, 31)
            assert await store.reserved("b") == {"c1": Amount(60, 10**15, 1, 1)}
            assert await store.reserve("c3", "none", Amount(1, 1, 1, 1)) is None

        self.run(scenario)

    def test_what_a_call_has_cost_is_counted_once(self) -> None:
        """`settle` frees what was reserved and counts the cost; a second one changes nothing."""

        async def scenario(store: Store) -> None:
            await store.limit("b", Amount(100, -1, -1, -1))
            await store.reserve("c1", "b", Amount(tokens=60, steps=1))
            for _ in range(2):
                await store.settle("c1", Amount(tokens=25, steps=1))
            (account,) = await store.accounts("b")
            assert (account.spent, account.reserved) == (Amount(tokens=25, steps=1), Amount())
            assert await store.reserve("c2", "b", Amount(tokens=75)) is None

        self.run(scenario)

    def test_a_budget_draws_on_all_above_it(self) -> None:
        """The tree's limit holds for all of it together; deleting one keeps what it has cost."""

        async def scenario(store: Store) -> None:
            await store.create("leaf")
            await store.limit("root", Amount(100, -1, -1, -1))
            await store.limit("left", NO_LIMITS, parent="root")
            await store.limit("right", Amount(90, -1, -1, -1), parent="root")
            assert await store.reserve("c1", "left", Amount(tokens=60)) is None
            short = await store.reserve("c2", "right", Amount(tokens=50))
            assert short is not None
            assert (short.budget, short.used) == ("root", 60)
            await store.settle("c1", Amount(tokens=30))
            assert await store.reserve("c2", "right", Amount(tokens=70)) is None
            assert [account.id for account in await store.accounts("right")] == ["right", "root"]

        self.run(scenario)

    def test_a_limit_is_raised_and_the_others_stay(self) -> None:
        """What is raised lets the next call through; what is not given stays as it was."""

        async def scenario(store: Store) -> None:
            await store.limit("b", Amount(10, 500, -1, -1))
            await store.limit("b", Amount(50, -1, -1, -1), spent=Amount(tokens=999))
            (account,) = await store.accounts("b")
            assert account.limits == Amount(50, 500, -1, -1)
            assert account.spent == Amount()
            assert await store.reserve("c1", "b", Amount(tokens=50)) is None

        self.run(scenario)
