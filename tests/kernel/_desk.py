"""Answers calls of skills in tests: what a broker does, without its journal."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from cave.events import Fault
from cave.kernel import values
from cave.ports import Caller, Declared, SkillAnswer, SkillCall
from cave.skills import Skill
from tests.kernel._host import Host


class Desk:
    """Runs host skills as they are called, and gives leave for those of the kernel."""

    def __init__(self, host: Host, *skills: Skill) -> None:
        self.host = host
        self.skills = {skill.name: skill for skill in skills}
        self.calls: list[SkillCall] = []
        self.cancelled: list[str] = []
        self.hold = asyncio.Event()
        """Answers wait for it."""
        self.hold.set()
        self.callers: list[Caller] = []

    def open(self) -> Desk:
        """Answer the host's newest kernel, and define the skills there."""
        self.answer()
        self.define(*self.skills.values())
        return self

    def answer(self) -> None:
        self.host.kernel.on_call = self.on_call
        self.host.kernel.on_cancel = self.cancelled.append

    def define(self, *skills: Skill) -> None:
        self.skills = {skill.name: skill for skill in skills}
        self.host(self.host.kernel.define(declared(*skills), lease=self.host.lease))

    async def on_call(self, call: SkillCall, caller: Caller) -> SkillAnswer:
        self.calls.append(call)
        self.callers.append(caller)
        await self.hold.wait()
        match call.phase:
            case "begin":
                return SkillAnswer("go", key=f"key-{call.ordinal}", attempt=1)
            case "end":
                return SkillAnswer("ok")
        value = self.skills[call.skill].function(**call.arguments)
        if inspect.isawaitable(value):
            value = await value
        return SkillAnswer("ok", values.encode(value, peer=self.host.kernel.facts))

    @property
    def places(self) -> list[tuple[int | None, str, int]]:
        return [(call.cell, call.lane, call.ordinal) for call in self.calls]


def declared(*skills: Skill) -> list[Declared]:
    return [Declared(s.declaration(), s.carried if s.runs == "kernel" else None) for s in skills]


def fault(name: str, message: str) -> Callable[[SkillCall, Caller], Any]:
    """Answers every call with this error."""

    async def on_call(_: SkillCall, __: Caller) -> SkillAnswer:
        return SkillAnswer("error", fault=Fault(name, message))

    return on_call


async def until(ready: Callable[[], Any]) -> None:
    """Wait for what another process brings about."""
    while not ready():  # noqa: ASYNC110 -- a test's view of it has no event
        await asyncio.sleep(0.01)
