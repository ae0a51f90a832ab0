"""Checks: conditions on the namespace that can be verified, for `done_when`, evals, rewards.

    s.ask("rank the regions", done_when=["top in regions", cave.Check.file("ranking.csv")])

They are evaluated in the kernel, in a child where one can be had, and change nothing.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cave.errors import ConfigError
from cave.facts import CheckKind, CheckSpec

Function = Callable[[Mapping[str, Any]], Any]

_READS = frozenset({"select", "with", "values", "table", "from", "show", "describe", "explain"})
"""First words of questions that change nothing."""


class Check:
    """A condition that has to hold: an expression, or a function of the namespace.

    Of arrays and tables all has to be true. An exception is a failure with its message.
    `reward` is what passing it is worth, in any unit. Raises `ConfigError`.
    """

    def __init__(
        self, spec: str | Function, *, name: str | None = None, reward: float = 1.0
    ) -> None:
        self.function: Function | None = None
        if isinstance(spec, str):
            self._tell("expression", _expression(spec), name, reward)
        elif callable(spec):
            self.function = spec
            called = getattr(spec, "__name__", type(spec).__name__)
            first = (inspect.getdoc(spec) or "").partition("\n")[0]
            self._tell("function", first or called, name or called, reward)
        else:
            raise ConfigError(
                f"a check is an expression or a function of the namespace, not {spec!r:.80}"
            )

    @classmethod
    def sql(cls, query: str, *, on: Any, name: str | None = None, reward: float = 1.0) -> Check:
        """A question that must have no rows for its answer; it changes nothing.

        `on` is the variable with the database: a connection, a SQLAlchemy engine; or a resource.
        """
        if not query.strip():
            raise ConfigError("a check asks a query, and this one is empty")
        if (first := query.split(None, 1)[0].lower().strip("(;")) not in _READS:
            raise ConfigError(f"a check only reads, and this begins with {first!r}: {query!r:.80}")
        place = on if isinstance(on, str) else getattr(on, "name", None)
        if not isinstance(place, str) or not place.isidentifier():
            raise ConfigError(f"on={on!r:.80} is neither the name of a variable nor a resource")
        return cls._made("sql", query, name, reward, on=place)

    @classmethod
    def file(cls, path: str, *, name: str | None = None, reward: float = 1.0) -> Check:
        """A file that has to be there; its path begins in `s.workdir`."""
        if not str(path):
            raise ConfigError("a check of a file needs its path")
        return cls._made("file", str(path), name, reward)

    @classmethod
    def _made(
        cls, kind: CheckKind, text: str, name: str | None, reward: float, *, on: str = ""
    ) -> Check:
        check = cls.__new__(cls)
        check.function = None
        check._tell(kind, text, name, reward, on=on)  # noqa: SLF001  its own
        return check

    def _tell(
        self, kind: CheckKind, text: str, name: str | None, reward: float, *, on: str = ""
    ) -> None:
        if not math.isfinite(reward):
            raise ConfigError(f"reward={reward!r} is not a number that can be added")
        if name is not None and not name.strip():
            raise ConfigError(
                "a check has a name that is empty; leave name= out, or say what it is"
            )
        self.spec = CheckSpec(kind, text, name or text, float(reward), on)

    def __repr__(self) -> str:
        return f"<Check {self.spec.name}, {self.spec.reward:g}>"


def _expression(text: str) -> str:
    try:
        compile(text.strip(), "<check>", "eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f'a check is one expression, such as "len(df) > 0", and this is none: {text!r:.80} '
            f"({error})"
        ) from error
    return text.strip()


def checks_of(given: Any) -> tuple[Check, ...]:
    """What `done_when` was given, each with a name of its own. Raises `ConfigError`."""
    alone = isinstance(given, str | Check) or callable(given)
    if not alone and not isinstance(given, Iterable):
        raise ConfigError(f"done_when={given!r:.80} is neither a check nor a list of checks")
    checks = [
        one if isinstance(one, Check) else Check(one) for one in ([given] if alone else given)
    ]
    seen: Counter[str] = Counter()
    named = []
    for check in checks:
        seen[check.spec.name] += 1
        named.append(check if seen[check.spec.name] == 1 else _renamed(check, seen))
    return tuple(named)


def _renamed(check: Check, seen: Counter[str]) -> Check:
    other = Check.__new__(Check)
    other.function = check.function
    other.spec = replace(check.spec, name=f"{check.spec.name} ({seen[check.spec.name]})")
    return other
