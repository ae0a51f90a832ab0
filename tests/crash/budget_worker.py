"""A session that spends from a budget which it shares, without a kernel: `spend(home, session)`.

It calls its model until the budget is spent, as the turn loop does; each call is noted outside
when it is made, with what it costs. It may be killed at any moment, and goes on when it is
started again.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from cave import failpoints
from cave.events import SessionOpened, StepReplied, StepStarted, TurnStarted, Usage
from cave.history import History
from cave.journal import Journal
from cave.policy.budget import Budget
from cave.ports import SystemClock, View
from cave.shared import NO_LIMITS
from cave.spending import Refused, Spending, uid_of
from cave.store import SQLStore, this_process

LEASE = 0.4
"""Seconds that a lease holds."""
ROOT = "root"
PROMPT = 100
LEAST = PROMPT + 256
"""Tokens of the smallest call that is made."""


class Model:
    """Costs what its reply is long, and never tells beforehand."""

    name = "model"
    max_tokens = 900
    heeds_max_tokens = True

    def prompt_tokens(self, view: View) -> int:
        return PROMPT

    def call(self, outside: Path, most: int | None) -> Usage:
        usage = Usage(PROMPT, random.randint(1, most or self.max_tokens), model_calls=1)
        tokens = usage.input_tokens + usage.output_tokens
        note = os.open(outside, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(note, b"%d\n" % tokens)
        os.close(note)
        return usage


def made(outside: Path) -> list[int]:
    """What each call has cost, by who was called."""
    return [int(line) for line in outside.read_text("ascii").split()] if outside.exists() else []


async def begin(home: Path, tokens: int) -> None:
    """A budget that sessions may draw on."""
    store = SQLStore(home / "cave.db")
    await store.limit(ROOT, replace(NO_LIMITS, tokens=tokens))
    await store.close()


def spend(home: str, session: str) -> None:
    """Call the model until the budget is spent."""
    asyncio.run(_spend(Path(home), session))


async def _spend(home: Path, session: str) -> None:
    store = SQLStore(home / "cave.db", lease_ttl=LEASE)
    journal = Journal(store, session, this_process(), History(), SystemClock())
    await store.create(session)
    async with journal.operation(wait=20.0):
        if journal.history.opened is None:
            await journal.append(SessionOpened(version="0", uid=session))
        if journal.history.turn is None:
            await journal.append(TurnStarted(turn=1, prompt="go"))
        await store.limit(await uid_of(store, session), NO_LIMITS, parent=ROOT)
        await _until_spent(journal, Spending(journal), home / "calls")
    print("spent", flush=True)
    await store.close()


async def _until_spent(journal: Journal, spending: Spending, outside: Path) -> None:
    model: Any = Model()
    view = View(system="", messages=(), turn=1, step=1)
    await spending.begin(Budget(steps=100_000), None)
    while True:
        granted = await spending.call(model, lambda: view)
        if isinstance(granted, Refused):
            return
        assert journal.history.turn is not None
        step = journal.history.turn.asked + 1
        await journal.append(StepStarted(turn=1, step=step))
        usage = model.call(outside, granted.max_tokens)
        await asyncio.sleep(0.002)
        failpoints.hit("step.before_row")
        await journal.append(StepReplied(turn=1, step=step, kind="malformed", usage=usage))
        failpoints.hit("step.before_settle")
        await spending.called(granted, usage)
