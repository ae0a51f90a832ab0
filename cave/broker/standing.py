"""Calls of what the world has already: a person is asked before it is done once more."""

from __future__ import annotations

from dataclasses import replace

from cave.broker.pen import Pen
from cave.broker.terms import Work
from cave.events import Fault, Standing
from cave.ports import SkillAnswer


async def ask_first(pen: Pen, work: Work) -> SkillAnswer | None:
    """None for a call that nothing speaks against, a refusal in a fork that may touch nothing.

    Raises `EffectInDoubt`, which a person settles, where the same was done already and the
    namespace went back before it.
    """
    history, name = pen.journal.history, work.terms.name
    if work.terms.kind != "write":
        return None
    opened = history.opened
    if opened is not None and opened.effects == "deny":
        why = (
            f"skill {name!r} was not called: session {pen.journal.session!r} is a fork of "
            f"{opened.forked_from!r} without effects; fork it with effects='allow' or 'ask'"
        )
        return SkillAnswer("error", fault=Fault("PolicyViolation", why))
    found = history.ledger.standing(name, work.call.digest)
    if found is not None:
        intent = replace(pen.intent(work, 1), repeats=f"{found.source}/{found.effect}")
        raise await pen.doubt(intent, _same(found), before=(await pen.whole(intent, work),))
    return None


def _same(found: Standing) -> str:
    of = f" of session {found.source!r}" if found.source else ""
    return (
        f"the same was done already, by effect {found.effect} in cell {found.cell}{of}, and stands "
        f"although the namespace went back before it"
    )
