"""What people decide of a session, for code without a loop. A part of `cave.facade.Session`."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from cave.approval import Approval
from cave.display import InDoubt, leave
from cave.display.waiting import Waiting
from cave.errors import CellError
from cave.events import ApprovalScope, Decision, Recovered
from cave.replay import Plan
from cave.session import AsyncSession
from cave.turn import Cell, Effect, Turn

T = TypeVar("T")


def say(text: str) -> None:
    """Tell the person; stdout is for data."""
    print(text, file=sys.stderr, flush=True)


class Deciding:
    """Answers to what a session waits for."""

    _inner: AsyncSession

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    # -- approvals ---------------------------------------------------------------------------

    @property
    def approvals(self) -> Waiting:
        """What waits to be approved, the oldest first; `approve` and `deny` answer."""
        return self._wait(self._inner.approvals())

    def approve(
        self,
        id: str | None = None,
        *,
        edits: Mapping[str, Any] | None = None,
        scope: ApprovalScope = "once",
        via: str = "python",
    ) -> Approval:
        """Say yes: to the one that waits, or to `id`. `edits` are arguments to take instead;
        `scope="session"` is for all later calls of the kind. It only records the answer.

        Raises `ConfigError` for what does not wait (any more), `SkillError` for edits that the
        skill refuses.
        """
        return self._wait(self._inner.approve(id, edits=edits, scope=scope, via=via))

    def deny(self, id: str | None = None, *, reason: str = "", via: str = "python") -> Approval:
        """Say no: to the one that waits, or to `id`; the operator is told `reason`."""
        return self._wait(self._inner.deny(id, reason=reason, via=via))

    def _answered_here(self, result: object) -> bool:
        """Ask the person who is here about what stopped; whether the work can go on now."""
        match result:
            case Turn(status="needs_approval"):
                stopped = True
            case Cell(error=CellError(name="ApprovalRequired")):
                stopped = True
            case _:
                stopped = False
        if not stopped or leave.place() == "nowhere":
            return False
        return leave.ask_here(self.approvals, self._said)

    def _said(self, asked: Approval, yes: bool, via: str) -> None:  # noqa: FBT001  an answer
        if yes:
            self.approve(asked.id, via=via)
        else:
            self.deny(asked.id, via=via)

    # -- effects in doubt --------------------------------------------------------------------

    @property
    def in_doubt(self) -> InDoubt:
        """Effects of which nobody knows whether they were done; `settle` says it."""
        self._wait(self._inner.refresh())
        return self._inner.in_doubt

    def settle(self, id: str, decision: Decision, *, result: Any = None) -> Effect:
        """Say what became of an effect in doubt: `done` (with its result), `not_done` (it is
        called when its cell is gone on with), `give_up` (it never is)."""
        return self._wait(self._inner.settle(id, decision, result=result))

    def undo(self, id: str) -> Effect:
        """Call what the skill of an effect names as `undo=`: after it the effect does not stand
        any more. Raises `ConfigError`, `EffectInDoubt`, `SkillError`."""
        return self._wait(self._inner.undo(id, tell=say))

    def plan(self) -> Plan:
        """What `recover()` would do with the cells that a death has cut, in words."""
        return self._wait(self._inner.plan())

    def recover(self) -> Recovered:
        """Run again what a death has cut, as far as that is safe."""
        return self._wait(self._inner.recover())
