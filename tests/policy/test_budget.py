from __future__ import annotations

import pytest

from cave.errors import BudgetExceeded, ConfigError
from cave.facts import Amount, Usage
from cave.policy import Budget
from cave.policy.budget import Stopwatch, forecast, spent


def test_limits_are_whole_units_and_never_more_than_was_allowed() -> None:
    """Sums of units are exact; a limit that is not given is none."""
    assert Budget(usd=0.3, steps=2).limits == Amount(-1, 300_000_000, 2, -1)
    assert Budget(usd=1e-12, seconds=0.0001).limits == Amount(-1, 0, -1, 0)
    assert spent(Usage(output_tokens=1, usd=1e-10, seconds=0.0001)) == Amount(1, 1, 0, 1)
    for wrong in ({"tokens": 0}, {"usd": -1}, {"usd": float("nan")}, {"steps": True}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Budget(**wrong)  # type: ignore[arg-type]


def test_a_model_without_a_price_is_refused_unless_it_is_allowed() -> None:
    """Under a budget in dollars nothing is called whose cost nobody knows."""

    def ask(budget: Budget) -> Amount:
        return forecast(budget, model="m", prompt_tokens=7, max_tokens=5, price=lambda _: None)

    with pytest.raises(BudgetExceeded, match=r"'m' costs.*unpriced=True"):
        ask(Budget(usd=1))
    assert ask(Budget(usd=1, unpriced=True)) == Amount(12, 0, 1, 1)
    assert ask(Budget(tokens=100)).tokens == 12


def test_the_dearest_way_to_read_the_prompt_is_reserved() -> None:
    """Writing a cache may cost more than reading without one."""

    def price(usage: Usage) -> float:
        return usage.input_tokens * 1.0 + usage.cache_write_tokens * 1.25 + usage.output_tokens * 4

    need = forecast(Budget(usd=99), model="m", prompt_tokens=4, max_tokens=1, price=price)
    assert need.nano_usd == 9_000_000_000


def test_waiting_for_people_is_no_work() -> None:
    """The watch stands while anybody is waited for, also when waits nest."""
    now = [0.0]
    watch = Stopwatch(lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    watch.start()
    later(2)
    watch.wait()
    watch.wait()
    later(1000)
    watch.go_on()
    later(1000)
    assert watch.seconds == 2
    watch.go_on()
    later(3)
    assert watch.stop() == 5
