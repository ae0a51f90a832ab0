"""The broker: what becomes of a skill's call that a cell makes.

A call that touches the world is journaled as an intent before it happens and as a result
after. A call at a place that the ledger knows (a cell that runs again, a host that took
over) is answered from there and never happens twice; where a death has left open whether it
happened, the skill's own declaration decides, or a person.

`broker` decides, and `asking` has people's leave; `host` calls what runs in this process and
`kernel` leaves the rest to the kernel; `pen` writes intents and results; `quiescence` knows when
an effect is over; `standing` asks before the world gets once more what it has, `undoing` makes
the call that takes it back.
"""

from __future__ import annotations

from cave.broker.asking import Asking, Codec, Rules
from cave.broker.broker import Broker
from cave.broker.storing import load, store
from cave.broker.undoing import NoCell, Undoing, compensation

__all__ = [
    "Asking",
    "Broker",
    "Codec",
    "NoCell",
    "Rules",
    "Undoing",
    "compensation",
    "load",
    "store",
]
