"""Compensations: the call that takes an effect back, made from what the ledger has.

A compensation is an effect like any other, with a key of its own; no cell calls it, so its
place is that of the effect that it undoes. It runs in this process, whatever it says of
`runs`: it gets values of the ledger and needs no object of a kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cave.broker.terms import Terms
from cave.errors import ConfigError, SkillError
from cave.ledger import Entry, Ledger
from cave.ports import Caller, SkillCall
from cave.skills import Skill, skill

RESULT = "result"
"""The parameter of a compensation that is given what the effect gave."""


class NoCell:
    """Who calls a compensation: a person, and no cell."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def note(self, text: str) -> None:
        """Tell the person."""
        self._tell(text)

    async def get(self, name: str) -> Any:
        """There is nothing to get."""
        raise SkillError(f"a compensation has no variables to get: {name!r} is of the kernel")

    async def put(self, values: Mapping[str, Any]) -> None:
        """There is nowhere to put anything."""
        raise SkillError(f"a compensation has no variables to put: {', '.join(values)}")


@dataclass(frozen=True, slots=True)
class Undoing:
    """What compensates one effect, and with which arguments."""

    skill: Skill
    given: Mapping[str, Any]
    """The arguments of the effect."""
    result: Any
    """What it gave."""
    caller: Caller

    @property
    def terms(self) -> Terms:
        """Those of an effect that runs here."""
        return replace(Terms.of(self.skill), kind="write", runs="host")

    def call(self, entry: Entry, ledger: Ledger) -> SkillCall:
        """The call: the same one until it has failed, and then the next."""
        earlier = ledger.undoing(entry.id)
        ordinal = 1 + sum(one.state == "failed" for one in earlier)
        for one in earlier:
            if one.state != "failed" and one.intent.skill != self.skill.name:
                raise ConfigError(
                    f"effect {entry.id} is being undone by {one.intent.skill!r} ({one.id}), which "
                    f"is not {self.skill.name!r}; settle that first"
                )
        digest = hashlib.sha256(f"undo {entry.intent.digest}".encode()).hexdigest()
        return SkillCall(
            f"undo {entry.id}.{ordinal}", self.skill.name, self.skill.hash, None,
            f"undo/{entry.id}", ordinal, "call", self._arguments(), digest,
        )  # fmt: skip

    def _arguments(self) -> dict[str, Any]:
        known = {RESULT: self.result, **self.given}
        parameters = self.skill.parameters
        if any(p.kind == "VAR_KEYWORD" for p in parameters):
            return dict(self.given)
        missing = [p.name for p in parameters if p.required and p.name not in known]
        if missing:
            raise SkillError(
                f"{self.skill.where}: compensation {self.skill.name!r} takes {missing[0]!r}, which "
                f"the effect was not given ({', '.join(self.given) or 'nothing'}); it may take "
                f"those, {RESULT!r} and a SkillContext"
            )
        return {p.name: known[p.name] for p in parameters if p.name in known}


def compensation(undo: Any, get: Callable[[str], Any]) -> Skill:
    """The skill that `undo=` names. Raises `SkillError`."""
    if isinstance(undo, Skill):
        return undo
    if callable(undo):
        made: Skill = skill(effect="write", runs="host")(undo)
        return made
    found = get(undo)
    if not isinstance(found, Skill):
        raise SkillError(
            f"the compensation {undo!r} is not in this session; add it with s.skills.add(...)"
        )
    return found
