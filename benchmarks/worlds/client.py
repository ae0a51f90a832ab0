"""Asking a world, and the skills that are thin clients of its tools."""

from __future__ import annotations

import builtins
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import cave
from cave import SkillContext

Effect = Literal["read", "write"]
Doubt = Literal["retry", "probe", "ask"]


def ask(path: str, **request: Any) -> Any:
    """One question, one answer, as JSON."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a world, as a session is to have it."""

    name: str
    parameters: Sequence[tuple[str, str]]
    """Names, and the text of each default (empty: none)."""
    effect: Effect
    doubt: Doubt
    """What follows a call of which nobody knows whether it was done."""


class Tools:
    """Skills that call the tools of whichever case is on."""

    def __init__(self, tools: Sequence[Tool], socket: str, before: Callable[[], None]) -> None:
        self.socket = socket
        """Where the world of the present case is asked."""
        self._before = before
        self.skills = [self._skill(tool) for tool in tools]

    def _skill(self, tool: Tool) -> cave.Skill:
        given = "".join(f"{n}={d}, " if d else f"{n}, " for n, d in tool.parameters)
        sent = "".join(f"{name!r}: {name}, " for name, _ in tool.parameters)
        source = (
            f"def {tool.name}({given}*, ctx: SkillContext):\n"
            f"    'A tool of another benchmark.'\n"
            f"    return call({tool.name!r}, {{{sent}}}, ctx.idempotency_key)\n"
        )
        call = self._caller(once=tool.doubt == "retry")
        space = {"__name__": __name__, "SkillContext": SkillContext, "call": call}
        exec(source, space)
        in_doubt: Any = self._probe if tool.doubt == "probe" else tool.doubt
        made = cave.skill(effect=tool.effect, runs="host", in_doubt=in_doubt)
        return made(cast("Callable[..., Any]", space[tool.name]))

    def _caller(self, *, once: bool) -> Callable[..., Any]:
        def call(tool: str, arguments: dict[str, Any], key: str) -> Any:
            self._before()
            path = self.socket
            answer = ask(path, op="call", key=key, tool=tool, arguments=arguments, once=once)
            if "error" in answer:
                name, message = answer["error"]
                raise getattr(builtins, name)(message)
            return answer["value"]

        return call

    def seen(self, key: str) -> dict[str, Any] | None:
        """What the world answered to a key; None when it never was asked."""
        answer: dict[str, Any] | None = ask(self.socket, op="seen", key=key)
        return answer

    def _probe(self, call: Any) -> Any:
        return (self.seen(call.idempotency_key) or {}).get("value")
