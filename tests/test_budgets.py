"""Budgets through sessions: what a turn, a session and its forks spend together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import cave
from cave.events import BudgetPaused, Usage
from cave.facts import Amount
from cave.operators.tokens import estimate_view
from cave.ports import Reply, View
from cave.testing import Finish, ScriptedOperator

from ._cli import cave as command


class Priced:
    """A model of 1 dollar for 1,000 tokens, which heeds how long its reply may be."""

    name = "priced"
    max_tokens = 10_000
    heeds_max_tokens = True

    def __init__(self, price: float | None = 0.001) -> None:
        self.seen: list[int | None] = []
        self._each = price

    def price(self, usage: Usage) -> float | None:
        if self._each is None:
            return None
        return self._each * (usage.input_tokens + usage.cache_write_tokens + usage.output_tokens)

    def prompt_tokens(self, view: View) -> int:
        return 100

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        self.seen.append(view.max_tokens)
        usage = Usage(100, min(400, view.max_tokens or 400), model_calls=1)
        usage = replace(usage, usd=self.price(usage))
        return Reply("cell", source="x = 1", usage=usage)

    async def close(self) -> None:
        """Nothing is held."""


def paused(s: cave.Session) -> BudgetPaused:
    found = [event for event in s.events() if isinstance(event, BudgetPaused)]
    return found[-1]


def resumed(s: cave.Session, **limits: Any) -> cave.Turn:
    turn = s.resume(budget=cave.Budget(**limits) if limits else None)
    assert isinstance(turn, cave.Turn)
    return turn


def test_a_turn_stops_before_the_call_that_would_pass_its_limit(sessions: None) -> None:
    """In dollars and in tokens; the reply may be as long as the rest allows. It goes on when
    the limit is raised, and holds it when it is not."""
    model = Priced()
    s = cave.open("q3", operator=model)
    turn = s.ask("go", budget=cave.Budget(usd=1.9))
    assert (turn.status, len(turn.steps)) == ("over_budget", 4)
    assert turn.usage.usd == pytest.approx(1.9)
    assert model.seen == [1_800, 1_300, 800, 300]
    assert (paused(s).budget, paused(s).limit, paused(s).allowed) == ("turn", "usd", 1.9)
    assert "s.resume(budget=cave.Budget(usd=...))" in turn.reason
    assert len(resumed(s).steps) == 4
    turn = resumed(s, usd=50, tokens=2_400)
    assert (turn.status, len(turn.steps)) == ("over_budget", 5)
    assert paused(s).limit == "tokens"
    shown = command("show", "q3").stdout
    assert "$2.4000" in shown


def test_a_model_without_a_price_is_refused_unless_that_is_allowed(sessions: None) -> None:
    """Nothing is called under a budget in dollars; the reason says what to type."""
    model = Priced(None)
    s = cave.open("q3", operator=model)
    turn = s.ask("go", budget=cave.Budget(usd=1.0))
    assert (turn.status, model.seen) == ("over_budget", [])
    assert "unpriced=True" in turn.reason
    turn = resumed(s, steps=2, unpriced=True)
    assert (turn.status, len(turn.steps)) == ("over_budget", 2)


def test_a_session_and_its_forks_spend_from_one_budget(sessions: None) -> None:
    """All turns and forks together never pass it; what is left is what the store says; raised,
    they go on. A process without the option is held to it as well."""
    s = cave.open("q3", operator=Priced(), budget=cave.Budget(tokens=2_000))
    assert s.run("x = 0").ok
    first = s.ask("one", budget=cave.Budget(steps=1))
    assert (first.status, paused(s).budget) == ("over_budget", "turn")
    t = s.fork("what-if")
    there = t.ask("two", budget=cave.Budget(steps=2))
    assert (len(there.steps), paused(t).budget) == (2, "turn")
    last = t.ask("three")
    assert (last.status, len(last.steps), paused(t).budget) == ("over_budget", 1, "tree")
    assert "cave.open('q3', budget=cave.Budget(tokens=...))" in last.reason
    own = s.ask("four")
    assert (own.status, own.steps, paused(s).budget) == ("over_budget", (), "session")
    assert "2,000 of 2,000 tokens" in own.reason
    assert "2,000 of 2,000 tokens" in command("show", "q3").stdout
    s = cave.open("q3", operator=Priced())
    assert resumed(s).status == "over_budget"
    more = resumed(s, tokens=2_600)
    assert (more.status, len(more.steps), paused(s).budget) == ("over_budget", 1, "session")


def test_what_a_dead_host_had_set_aside_counts_until_the_next_turn(sessions: None) -> None:
    """Of a call whose reply is journaled what it has cost, of another all that it had set
    aside; neither is counted twice."""
    s = cave.open("q3", operator=Priced(), budget=cave.Budget(tokens=100_000))
    s.ask("one", budget=cave.Budget(steps=1))
    store = s._inner.home.store
    uid = s._inner._spending._uid

    async def leave() -> None:
        for call, amount in ((1, 9_000), (2, 700)):
            await store.reserve(f"{uid}/1/{call}/dead", uid, Amount(tokens=amount, steps=1))

    async def accounts() -> Any:
        return await store.accounts(uid)

    s._wait(leave())
    s.resume(budget=cave.Budget(steps=2))
    (account,) = s._wait(accounts())
    assert account.reserved == Amount()
    assert account.spent.tokens == 500 + 500 + 700 + 500


def test_seconds_of_work_are_limited(sessions: None) -> None:
    """A cell is stopped when they are over, and what it made is kept; the next call is not
    made."""
    steps = ScriptedOperator(["y = 5", "import time\nwhile True: time.sleep(0.01)", Finish("no")])
    s = cave.open("q3", operator=steps)
    turn = s.ask("go", budget=cave.Budget(seconds=1.5))
    assert (turn.status, paused(s).limit) == ("over_budget", "seconds")
    assert [(s.history[n].status, s.history[n].kept) for n in (1, 2)] == [
        ("ok", True),
        ("timeout", True),
    ]
    assert s["y"] == 5


def test_without_limits_nothing_is_kept(sessions: None) -> None:
    """A session without a budget has no account, and scripted replies count as they report."""
    seen: list[View] = []

    def step(view: View) -> Finish:
        seen.append(view)
        return Finish("done")

    s = cave.open("q3", operator=ScriptedOperator([step]))
    turn = s.ask("go")
    assert turn.usage.input_tokens == estimate_view(seen[0])
    assert s._wait(s._inner.home.store.accounts(s._inner._spending._uid)) == []
