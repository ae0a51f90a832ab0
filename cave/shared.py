"""What processes share in a store without the lease of a session: answers, and budgets.

A part of the port `cave.ports.Store`. An answer to an approval comes from whoever is asked,
also while another process operates the session; a budget is drawn on by a session and by all
that were forked from it, wherever they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cave.facts import Amount

NOTHING = Amount()
"""An amount of nothing at all."""

NO_LIMITS = Amount(-1, -1, -1, -1)
"""Limits of a budget that has none."""


@dataclass(frozen=True, slots=True)
class Account:
    """A budget as the store keeps it. Amounts of a limit that is none are -1."""

    id: str
    """The uid of the session that it is for."""
    parent: str
    """The budget above it, which it draws on as well; empty for none."""
    limits: Amount
    spent: Amount
    reserved: Amount
    """Set aside for calls that have not ended."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why nothing was reserved: one dimension of one budget. In whole units, as `Amount`."""

    budget: str
    limit: str
    """The dimension: `tokens`, `nano_usd`, `steps` or `millis`."""
    allowed: int
    used: int
    """Spent, and reserved for calls that have not ended."""
    needed: int


class Shared(Protocol):
    """Answers and budgets. Every call may raise `StoreError`."""

    async def answer(
        self, session: str, approval: str, body: bytes, *, until: float | None = None
    ) -> bytes | None:
        """Answer an approval; gives the answer that counts, which is the first, whoever gave
        it. None when the time `until` has passed and there is none: it is not kept then.

        Needs no lease, and is on disk when it returns. Raises `SessionNotFound`.
        """

    async def answers(self, session: str) -> Mapping[str, bytes]:
        """The answers that were given, by approval. Raises `SessionNotFound`."""

    async def limit(
        self, budget: str, limits: Amount, *, parent: str | None = None, spent: Amount = NOTHING
    ) -> None:
        """Set the limits of a budget; a dimension that is -1 stays what it was. One that is not
        there yet begins with `spent`."""

    async def accounts(self, budget: str) -> Sequence[Account]:
        """The budget and those above it, the nearest first; empty when it has none."""

    async def reserve(self, id: str, budget: str, amount: Amount) -> Shortfall | None:
        """Set `amount` aside for the call `id`, in the budget and in all above it.

        Gives what is too little, and sets nothing aside then. The same `id` reserves once. Two
        that reserve at once never pass a limit together.
        """

    async def settle(self, id: str, amount: Amount) -> None:
        """The call `id` has cost `amount`: what it reserved is free again. Done once."""

    async def reserved(self, budget: str) -> Mapping[str, Amount]:
        """What calls of the session of this budget have reserved and not settled, by id."""
