"""What a skill may know of its call: `SkillContext`, and the one it has outside of sessions."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cave.errors import UnknownName


class Runtime(Protocol):
    """The variables of the session that calls; skills of the host reach the kernel's through it."""

    def get(self, name: str) -> Any:
        """The object called `name`. Raises `UnknownName`."""
        ...

    def put(self, **values: Any) -> Any:
        """Bind objects to names."""
        ...


class LocalRuntime:
    """Variables of a skill that is called outside of any session."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        """The object called `name`. Raises `UnknownName`."""
        try:
            return self._values[name]
        except KeyError:
            raise UnknownName(
                f"no variable {name!r}; outside of a session, give it to the context: "
                f"SkillContext.local({name}=...)"
            ) from None

    def put(self, **values: Any) -> None:
        """Bind objects to names."""
        self._values.update(values)


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillContext:
    """The parameter `ctx` of a skill: hidden from the operator, given with each call."""

    idempotency_key: str
    """The same for every attempt of this call, on every machine; another after a fork."""
    session: str = ""
    """Name of the session; empty outside of one."""
    attempt: int = 1
    """1 for the first call, one more for each retry with the same key."""
    runtime: Runtime = field(default_factory=LocalRuntime)
    note: Callable[[str], None] = _tell
    """Where `log` goes."""

    def log(self, text: object) -> None:
        """Say how far it is; shown as output of the cell that called."""
        self.note(str(text))

    @classmethod
    def local(cls, **variables: Any) -> SkillContext:
        """A context for calling or testing a skill outside of any session."""
        return cls(idempotency_key=uuid.uuid4().hex, runtime=LocalRuntime(**variables))
