"""When nobody can do an effect any more that somebody else had begun.

A broker looks at its lease right before each call, and calls within `LAG` of that look. So
an effect that another process began is over for good when that process is known to be dead,
or when `LAG`, the skill's time limit and the drift of clocks have passed since its intent.
A skill without a time limit, in a process that may live, is never known to be over.
"""

from __future__ import annotations

import math

from cave.events import EffectIntent
from cave.ports import Clock, Holder
from cave.store.holders import is_dead, same_boot

LAG = 5.0
"""Seconds after a look at the lease within which a call begins, or does not begin at all."""
DRIFT = 1.0
"""Seconds by which clocks of one machine may differ at most."""
APART = 60.0
"""The same between machines."""


def owner_of(intent: EffectIntent) -> Holder:
    """The process that was to do the effect."""
    host, boot, pid, started = intent.owner
    return Holder(host=host, boot=boot, pid=pid, started=started, token="")


def seconds_until(intent: EffectIntent, me: Holder, clock: Clock) -> float:
    """How long to wait until the effect cannot happen any more: 0 for now, infinity for never."""
    owner = owner_of(intent)
    mine = (owner.host, owner.boot, owner.pid, owner.started) == (
        me.host, me.boot, me.pid, me.started,
    )  # fmt: skip
    if mine or is_dead(owner):
        return 0.0
    if intent.timeout is None:
        return math.inf
    limit = LAG + intent.timeout
    if same_boot(owner.boot):
        return max(0.0, intent.since_boot + limit + DRIFT - clock.monotonic())
    return max(0.0, intent.at + limit + APART - clock.now())
