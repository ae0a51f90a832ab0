"""What a turn may spend: reserved before each call of the model, settled after it.

A turn's own limits are looked at in its journal. Those of the session, and of the sessions
that it was forked from, are sums in the store, which several processes spend from at once: what
a call may cost at most is set aside there in one transaction, so that no sum passes its
limit. What a process that died had set aside counts in full, unless its journal says what
the call has cost.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cave.errors import BudgetExceeded
from cave.events import BudgetPaused, Usage
from cave.facts import Amount
from cave.history import OpenTurn
from cave.journal import Journal
from cave.operators.tokens import estimate_view
from cave.policy.budget import DEFAULT_STEPS, NANO, Budget, forecast, priced, spent
from cave.ports import Operator, Store, View
from cave.shared import NO_LIMITS, Account, Shortfall

REPLY = 4_096
"""Tokens that a reply may have of an operator that does not say how long its replies get."""
LEAST = 256
"""Tokens of a reply below which a call is not worth making."""
FRAME = 2_000
"""Tokens of a prompt beside the view: tools, and what a provider adds."""
TRIES = 5

_UNITS = {"tokens": 1, "nano_usd": NANO, "steps": 1, "millis": 1000}
_NAMES = {"tokens": "tokens", "nano_usd": "usd", "steps": "steps", "millis": "seconds"}


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to call the model once."""

    id: str = ""
    """Of what is reserved for it; empty where nothing is."""
    max_tokens: int | None = None
    """The most that its reply may have; None leaves it to the operator."""
    seconds: float | None = None
    """How long it may take."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the model is not called: what is journaled, and what is told."""

    paused: BudgetPaused
    reason: str


class Spending:
    """The budgets of one session, for one turn after the other."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._session = Budget()
        self._turn = Budget()
        self._uid = ""
        self._shared = False
        """Whether the session draws on sums in the store."""

    @property
    def _open(self) -> OpenTurn:
        turn = self._journal.history.turn
        assert turn is not None
        return turn

    async def begin(self, turn: Budget | None, session: Budget | None) -> None:
        """A turn begins or goes on: under its own limits and the session's.

        The caller holds the lease, so that what the session has reserved is of calls that
        nobody makes any more.
        """
        self._session = session or Budget()
        stored = self._open.limits or NO_LIMITS
        self._turn = (turn or Budget()).over(_budget(stored))
        store = self._journal.store
        uid = self._uid = self._uid or await uid_of(store, self._journal.session)
        accounts = await store.accounts(uid)
        wanted = self._session.limits
        own = accounts[0].limits if accounts else NO_LIMITS
        if any(w not in {-1, o} for w, o in _pairs(wanted, own)):
            await store.limit(uid, wanted, spent=self._so_far())
            accounts = await store.accounts(uid)
        self._shared = bool(accounts)
        if self._shared:
            for id, amount in (await store.reserved(uid)).items():
                await store.settle(id, self._found(id) or amount)

    def _so_far(self) -> Amount:
        """What the session has spent before it had a budget."""
        history = self._journal.history
        steps = sum(len(turn.steps) for turn in history.turns.values())
        open = history.turn
        return _cost(history.usage, steps + (len(open.steps) if open is not None else 0))

    def _found(self, id: str) -> Amount | None:
        """What a call has cost whose host died before that was settled, if its reply is known."""
        _, turn, call, _ = id.split("/")
        history = self._journal.history
        for open in (history.turn, history.past.get(int(turn))):
            if open is not None and open.n == int(turn) and int(call) in open.replied:
                return _cost(open.steps[open.replied.index(int(call))].usage, 1)
        return None

    # -- calls of the model ------------------------------------------------------------------

    async def call(self, operator: Operator, view: Callable[[], View]) -> Grant | Refused:
        """Set aside what the next call may cost, or say why it is not made."""
        steps = self._turn.steps or (DEFAULT_STEPS if self._session.steps is None else None)
        own = replace(self._turn, steps=steps)
        turn = Account("turn", "", own.limits, self._spent(), Amount())
        if not self._shared and own.limits == replace(NO_LIMITS, steps=own.limits.steps):
            short = _short([turn], Amount(steps=1))
            return Grant() if short is None else self._refused(short)
        terms = _Terms(operator, view(), self._budget_in_usd)
        for _ in range(TRIES):
            accounts = await self._journal.store.accounts(self._uid) if self._shared else ()
            decided = await self._try([turn, *accounts], terms)
            if decided is not None:
                return decided
        return self._refused(Shortfall(self._uid, "tokens", 0, 0, terms.prompt))

    async def _try(self, accounts: list[Account], terms: _Terms) -> Grant | Refused | None:
        """None when somebody else has spent meanwhile what was there."""
        try:
            reply = terms.reply(accounts)
            amount = terms.amount(reply)
        except BudgetExceeded as error:
            return self._refused(Shortfall("turn", "nano_usd", 0, 0, 0), str(error))
        if (short := _short(accounts, amount)) is not None:
            return self._refused(short)
        left = [a.limits.millis - a.spent.millis for a in accounts if a.limits.millis >= 0]
        seconds = min(left) / 1000 if left else None
        limit = reply if reply < terms.longest or terms.unbounded else None
        if not self._shared:
            return Grant(max_tokens=limit, seconds=seconds)
        id = f"{self._uid}/{self._open.n}/{self._open.calls + 1}/{secrets.token_hex(4)}"
        if await self._journal.store.reserve(id, self._uid, amount) is not None:
            return None
        return Grant(id, limit, seconds)

    @property
    def _budget_in_usd(self) -> Budget:
        """The tighter budget in dollars, for what is said of models without a price."""
        usd = [b.usd for b in (self._turn, self._session) if b.usd is not None]
        unpriced = self._turn.unpriced or self._session.unpriced
        return Budget(usd=min(usd, default=None), unpriced=unpriced)

    async def called(self, grant: Grant, usage: Usage) -> None:
        """The call has ended, and its reply is journaled."""
        if grant.id:
            await self._journal.store.settle(grant.id, _cost(usage, 1))

    def late(self) -> Refused:
        """What is said of a call that was given up when the seconds were over."""
        spent = self._spent().millis
        return self._refused(Shortfall("turn", "millis", spent, spent, 1))

    # -- cells -------------------------------------------------------------------------------

    async def seconds_left(self) -> float | None:
        """How long the next cell may run; None where no budget says."""
        limits = [(self._turn.limits.millis, self._spent().millis)]
        if self._shared:
            accounts = await self._journal.store.accounts(self._uid)
            limits += [(a.limits.millis, a.spent.millis) for a in accounts]
        left = [allowed - used for allowed, used in limits if allowed >= 0]
        return max(0.001, min(left) / 1000) if left else None

    async def ran(self, cell: int, seconds: float) -> None:
        """A cell of the turn has run for so long."""
        if self._shared:
            store, millis = self._journal.store, math.ceil(seconds * 1000)
            id = f"{self._uid}/{self._open.n}/0/cell-{cell}-{secrets.token_hex(4)}"
            await store.reserve(id, self._uid, Amount())
            await store.settle(id, Amount(millis=millis))

    def _spent(self) -> Amount:
        """What the turn has spent."""
        turn, cells = self._open, self._journal.history.cells
        usage = sum((step.usage for step in turn.steps), Usage())
        seconds = sum(cells[n].seconds for n in turn.cells.values() if n in cells)
        return _cost(usage + Usage(seconds=seconds), len(turn.steps))

    # -- refusals ----------------------------------------------------------------------------

    def _refused(self, short: Shortfall, why: str = "") -> Refused:
        unit, name = _UNITS[short.limit], _NAMES[short.limit]
        whose = {"turn": "turn", self._uid: "session"}.get(short.budget, "tree")
        paused = BudgetPaused(
            budget=whose,
            limit=name,
            allowed=short.allowed / unit,
            spent=short.used / unit,
            needed=short.needed / unit,
            turn=self._open.n,
        )
        return Refused(paused, why or self._told(paused))

    def _told(self, paused: BudgetPaused) -> str:
        name, raised = paused.limit, f"cave.Budget({paused.limit}=...)"
        if paused.budget == "turn" and name == "steps":
            return (
                f"{paused.allowed:.0f} steps are spent; go on with "
                f"s.resume(budget=cave.Budget(steps=...))"
            )
        told = (
            f"{_of(paused.spent, paused.allowed, name)} are spent, and the next call may cost "
            f"{_amount(paused.needed, name)}"
        )
        if paused.budget == "tree":
            opened = self._journal.history.opened
            above = opened.forked_from if opened is not None else ""
            return (
                f"of the budget of {above!r}, which this session was forked from, {told}; raise it "
                f"with cave.open({above!r}, budget={raised}), then s.resume()"
            )
        return f"of the {paused.budget}'s budget {told}; go on with s.resume(budget={raised})"


async def uid_of(store: Store, session: str) -> str:
    """Under what the budget of a session is kept."""
    return (await store.info(session)).uid or session


class _Terms:
    """What a call of this operator may cost."""

    def __init__(self, operator: Operator, view: View, usd: Budget) -> None:
        self._operator = operator
        self._usd = usd
        person = getattr(operator, "is_person", False)
        known = getattr(operator, "prompt_tokens", None)
        self.prompt: int = known(view) if known is not None else 2 * estimate_view(view) + FRAME
        longest = getattr(operator, "max_tokens", None)
        self._free = person or bool(getattr(operator, "free", False))
        if person:
            self.prompt = longest = 0
        self.longest: int = REPLY if longest is None else longest
        self._heeds = bool(getattr(operator, "heeds_max_tokens", False))
        self.unbounded = longest is None and self._heeds

    def price(self, usage: Usage) -> float | None:
        """US dollars, where anybody knows."""
        if self._free:
            return 0.0
        of: Callable[[Usage], float | None] | None = getattr(self._operator, "price", None)
        return None if of is None else of(usage)

    def reply(self, accounts: list[Account]) -> int:
        """Tokens that the reply may have: as many as the budgets leave, where that is heeded."""
        if not self._heeds:
            return self.longest
        left = [n for account in accounts for n in self._left(account)]
        return max(min([self.longest, *left]), min(LEAST, self.longest))

    def _left(self, account: Account) -> Iterator[int]:
        used = account.spent + account.reserved
        if account.limits.tokens >= 0:
            yield account.limits.tokens - used.tokens - self.prompt
        if account.limits.nano_usd >= 0:
            many = 1_000_000
            whole = self._priced(Usage(output_tokens=many))
            prompt = self.amount(0).nano_usd
            if whole > 0:
                yield int((account.limits.nano_usd - used.nano_usd - prompt) * many / whole / NANO)

    def _priced(self, usage: Usage) -> float:
        return priced(self._usd, self.price(usage), self._operator.name)

    def amount(self, reply: int) -> Amount:
        """The most that a call costs whose reply has so many tokens. Raises `BudgetExceeded`."""
        return forecast(
            self._usd,
            model=self._operator.name,
            prompt_tokens=self.prompt,
            max_tokens=reply,
            price=self.price,
        )


def _short(accounts: list[Account], amount: Amount) -> Shortfall | None:
    for account in accounts:
        for name in _UNITS:
            needed, allowed = getattr(amount, name), getattr(account.limits, name)
            used = getattr(account.spent + account.reserved, name)
            if needed > 0 and allowed >= 0 and used + needed > allowed:
                return Shortfall(account.id, name, allowed, used, needed)
    return None


def _cost(usage: Usage, steps: int) -> Amount:
    """What was spent; where nobody knows the price, that is nothing."""
    return spent(replace(usage, usd=usage.usd or 0.0), steps=steps)


def _pairs(one: Amount, other: Amount) -> list[tuple[int, int]]:
    return [(getattr(one, name), getattr(other, name)) for name in _UNITS]


def _budget(limits: Amount) -> Budget:
    """The budget of these limits."""
    found: dict[str, Any] = {
        _NAMES[name]: getattr(limits, name) / unit if unit > 1 else getattr(limits, name)
        for name, unit in _UNITS.items()
        if getattr(limits, name) > 0
    }
    return Budget(**found)


def raised(limits: Amount | None, budget: Budget) -> Amount:
    """The limits of a turn with those of `budget` in their place, where it gives any."""
    return budget.over(_budget(limits or NO_LIMITS)).limits


def spent_of(account: Account) -> list[str]:
    """What is spent of each limit of a budget, in words."""
    used = account.spent + account.reserved
    return [
        _of(getattr(used, name) / unit, getattr(account.limits, name) / unit, _NAMES[name])
        for name, unit in _UNITS.items()
        if getattr(account.limits, name) >= 0
    ]


def _of(used: float, allowed: float, name: str) -> str:
    """`$0.1200 of $1.0000`, `1,200 of 2,000 tokens`."""
    return f"{_amount(used, name).removesuffix(f' {name}')} of {_amount(allowed, name)}"


def _amount(value: float, name: str) -> str:
    match name:
        case "usd":
            return f"${value:.4f}"
        case "seconds":
            return f"{value:.1f} s"
        case _:
            return f"{value:,.0f} {name}"
