"""Budgets: limits, what is reserved before a model call, and what is settled after.

A `Budget` is what a person sets; an `Amount` is what a call may cost or has cost, in whole
units (tokens, billionths of a dollar, steps, milliseconds of work), so that sums are exact.
Whoever keeps the sums must reserve in one transaction. Waiting for
people is no work and is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cave.errors import BudgetExceeded, ConfigError
from cave.facts import Amount, Usage

DEFAULT_STEPS = 40
"""Steps that a turn may take where no budget says otherwise."""

NANO = 1_000_000_000
"""Units of an `Amount` in one US dollar."""

Price = Callable[[Usage], float | None]
"""US dollars for tokens; None where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits; what is spent pauses the session and never destroys it. None means no limit."""

    tokens: int | None = None
    """Read and written, cached ones included."""
    usd: float | None = None
    steps: int | None = None
    """Calls of the operator; where no budget says otherwise a turn has 40."""
    seconds: float | None = None
    """Of work: model calls and cells. Waiting for people does not count."""
    unpriced: bool = False
    """Whether a model whose price is not known may be called under `usd`; it counts as 0."""

    def __post_init__(self) -> None:
        for name in ("tokens", "steps"):
            value: object = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and not whole:
                raise ConfigError(f"budget {name} is {value!r}, not a number of 1 or more")
        for name in ("usd", "seconds"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < float(str(value)) < math.inf):
                raise ConfigError(f"budget {name} is {value!r}, not a number above 0")
        if not isinstance(self.unpriced, bool):
            raise ConfigError(f"budget unpriced is {self.unpriced!r}, not True or False")

    @property
    def limits(self) -> Amount:
        """The limits in units; -1 where there is none. Fractions of a unit are cut off."""
        return Amount(
            tokens=-1 if self.tokens is None else self.tokens,
            nano_usd=-1 if self.usd is None else math.floor(self.usd * NANO + 1e-3),
            steps=-1 if self.steps is None else self.steps,
            millis=-1 if self.seconds is None else math.floor(self.seconds * 1000 + 1e-6),
        )

    def over(self, older: Budget | None) -> Budget:
        """This budget, with `older` where it says nothing."""
        if older is None:
            return self
        return Budget(
            tokens=older.tokens if self.tokens is None else self.tokens,
            usd=older.usd if self.usd is None else self.usd,
            steps=older.steps if self.steps is None else self.steps,
            seconds=older.seconds if self.seconds is None else self.seconds,
            unpriced=self.unpriced or older.unpriced,
        )


def spent(usage: Usage, *, steps: int = 0) -> Amount:
    """What a call has cost. Raises `BudgetExceeded` when its price is not known."""
    if usage.usd is None:
        raise BudgetExceeded("the price of this call is not known; allow it with unpriced=True")
    return _amount(usage, usage.usd, steps)


def _amount(usage: Usage, usd: float, steps: int) -> Amount:
    tokens = (
        usage.input_tokens
        + usage.output_tokens
        + usage.cache_read_tokens
        + usage.cache_write_tokens
    )
    return Amount(
        tokens=tokens,
        nano_usd=math.ceil(usd * NANO - 1e-3),
        steps=steps,
        millis=math.ceil(usage.seconds * 1000 - 1e-6),
    )


def forecast(  # the most that the next call can cost
    budget: Budget,
    *,
    model: str,
    prompt_tokens: int,
    max_tokens: int,
    price: Price,
    seconds: float = 0.001,
) -> Amount:
    """What to reserve before a model call: all its prompt uncached and all that it may write.

    `seconds` is how long the call may take at most. Raises `BudgetExceeded` for a model
    without a known price, where the budget is in dollars and does not allow it.
    """
    usage = Usage(input_tokens=prompt_tokens, output_tokens=max_tokens, seconds=seconds)
    dear = Usage(cache_write_tokens=prompt_tokens, output_tokens=max_tokens)
    known = [usd for tokens in (usage, dear) if (usd := price(tokens)) is not None]
    return _amount(usage, priced(budget, max(known, default=None), model), 1)


def priced(budget: Budget, usd: float | None, model: str) -> float:
    """The price, or 0 where it is unknown and that is allowed. Raises `BudgetExceeded`."""
    if usd is not None:
        return usd
    if budget.usd is None or budget.unpriced:
        return 0.0
    raise BudgetExceeded(
        f"nobody knows what model {model!r} costs, and the budget is {budget.usd} USD: nothing "
        f"was called; allow it with cave.Budget(usd={budget.usd}, unpriced=True)"
    )


class Stopwatch:
    """Seconds of work: runs while something works, stands while a person is waited for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._done = 0.0
        self._since: float | None = None
        self._waits = 0

    @property
    def seconds(self) -> float:
        """Of work, until now."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._done + max(0.0, running)

    def start(self) -> None:
        """Work begins."""
        if self._since is None and not self._waits:
            self._since = self._clock()

    def stop(self) -> float:
        """Work has ended; gives the seconds in all."""
        self._done, self._since = self.seconds, None
        return self._done

    def wait(self) -> None:
        """A person is waited for; calls nest."""
        self._waits += 1
        self.stop()

    def go_on(self) -> None:
        """The person has answered."""
        if not self._waits:
            raise ValueError("go_on() without wait()")
        self._waits -= 1
        self.start()
