"""One case in a session that is killed wherever the plan says, and what is wrong with it then."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from worlds.client import Tool, ask
from worlds.host import Host

Victim = Literal["host", "kernel", "both"]
VICTIMS: tuple[Victim, ...] = ("host", "kernel", "both")
AFTER_A_CALL = ("effect.after_call", "effect.before_result", "effect.after_result")
"""Failpoints where a call was made: nothing is kept of it; its result is journaled next; is."""

Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kill:
    """Who dies at a place; inside a cell also at which failpoint of which call."""

    victim: Victim
    point: str
    call: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is killed, and where."""

    kill: Literal["host", "kernel", "both", "any", "none"]
    at: Literal["boundary", "call", "all"]
    most: int | None
    """Places of a case, drawn; None: all of them."""
    seed: int

    def kills(self, case: str, calls: Sequence[int]) -> dict[tuple[int, str], Kill]:
        """What happens in a case whose cells make that many calls, by cell and moment; the
        same whichever other cases run."""
        chance = random.Random(f"{self.seed}/{case}")
        found = {}
        for cell, n in enumerate(calls):
            for at in ("call", "boundary"):
                victim, point = chance.choice(VICTIMS), chance.choice(AFTER_A_CALL)
                kill = Kill(victim if self.kill == "any" else self.kill, point,  # type: ignore[arg-type]
                            chance.randint(1, max(n, 1)))  # fmt: skip
                if self.kill != "none" and self.at in {at, "all"} and (n or at == "boundary"):
                    found[cell, at] = kill
        if self.most is None or self.most >= len(found):
            return found
        return {place: found[place] for place in chance.sample(list(found), self.most)}


@dataclass(slots=True)
class Tally:
    """Numbers of one suite."""

    cases: int = 0
    cells: int = 0
    hosts: int = 0
    kernels: int = 0
    reads: int = 0
    writes: int = 0
    doubled: int = 0
    lost: int = 0
    different: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    """Each difference, in words."""

    def add(self, other: Tally) -> None:
        """Take in the numbers of a case."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Driver:
    """Takes cases through a session, with a host for as long as it lives."""

    def __init__(self, session: str, tools: Sequence[Tool], plan: Plan) -> None:
        self._session = session
        self._tools = tools
        self._plan = plan
        self._host: Host | None = None
        self._world = ""
        self.tally = Tally()

    def case(self, name: str, case: Case, world: str, plain: Mapping[str, Any]) -> Tally:
        """Run one case; what differs from the plain run is in the tally."""
        self._world, self.tally = world, Tally(cases=1, cells=len(case["cells"]))
        kills = self._plan.kills(name, [len(calls) for calls in plain["calls"]])
        first = last = int(self.host.ask(op="begin", world=world))
        for n, source in enumerate(case["cells"]):
            last = self._cell(source, last, kills.get((n, "call")))
            if (kill := kills.get((n, "boundary"))) is not None:
                self._kill(kill.victim)
                self.host.ask(op="go_on", after=last, source=None)
        found = self.host.ask(op="result", after=first)
        compare(self.tally, found, ask(world, op="told"), plain)
        return self.tally

    @property
    def host(self) -> Host:
        """The host that lives; another one when the last was killed."""
        if self._host is None:
            self._host = Host(self._session, self._tools, self._world)
        return self._host

    def _cell(self, source: str, last: int, kill: Kill | None) -> int:
        """Run a cell, killed after one of its calls if that is planned; gives its number."""
        stop = None if kill is None else (kill.point, kill.call)
        self.host.send(op="run", source=source, stop=stop)
        if kill is None:
            return int(self.host.answer()["n"])
        if (answer := self.host.poll(stops=True)) is not None:
            raise RuntimeError(f"{kill} does not stop {source!r}: {answer}")
        self._kill(kill.victim, stands=True)
        return int(self.host.ask(op="go_on", after=last, source=source)["n"])

    def _kill(self, victim: Victim, *, stands: bool = False) -> None:
        """Kill between cells, or where the host stands still."""
        host = self.host
        if victim != "host":
            host.kill_kernel()
            self.tally.kernels += 1
        if victim != "kernel":
            host.kill()
            self._host = None
            self.tally.hosts += 1
        elif stands:
            host.go_on()
            host.answer()  # the cell has died: its host says so

    def close(self) -> None:
        """End the session's kernel and the host."""
        self.host.end()
        self._host = None

    def give_up(self) -> None:
        """End the host alone, which may be dead already."""
        if self._host is not None:
            self._host.kill()
            self._host = None


# -- comparing -------------------------------------------------------------------------------


def compare(
    tally: Tally, found: Mapping[str, Any], told: Mapping[str, Any], plain: Mapping[str, Any]
) -> None:
    """Note all that is not as in the plain run."""
    faults = tally.faults
    cells, wanted = found["cells"], plain["calls"]
    if len(cells) != len(wanted):
        faults.append(f"{len(cells)} cells instead of {len(wanted)}")
    for cell, calls, fault in zip(cells, wanted, plain["faults"], strict=False):
        _compare_cell(tally, cell, calls, fault)
    keys = {effect["key"]: effect for cell in cells for effect in cell["effects"]}
    _count(tally, keys, told)
    for what, theirs, ours in (
        ("the tools' state", plain["state"], told["state"]),
        ("the variables", plain["values"], found["values"]),
    ):
        if (place := difference(theirs, ours)) is not None:
            tally.different += 1
            faults.append(f"{what}: {place}")


def _compare_cell(
    tally: Tally, cell: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], fault: Any
) -> None:
    where = f"cell {cell['n']}"
    if cell["error"] != fault:
        tally.different += 1
        tally.faults.append(f"{where}: {cell['status']} {cell['error']} instead of {fault}")
    effects = cell["effects"]
    if missing := Counter(c["tool"] for c in calls) - Counter(e["tool"] for e in effects):
        tally.lost += missing.total()
        tally.faults.append(f"{where}: not called: {', '.join(missing.elements())}")
    for effect, call in zip(effects, calls, strict=False):
        wanted = ("done", call["value"]) if "value" in call else ("failed", None)
        if (effect["tool"], effect["state"], effect["value"]) != (call["tool"], *wanted):
            tally.different += 1
            tally.faults.append(f"{where}: {effect} instead of {call}")


def _count(tally: Tally, effects: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Each effect that wrote was executed once, and nothing that no effect stands for."""
    for key, effect in effects.items():
        writes, times = effect["kind"] == "write", told["done"].get(key, 0)
        tally.writes += writes
        tally.reads += not writes
        if effect["state"] != "done":
            continue
        if times == 0:
            tally.lost += 1
            tally.faults.append(f"{effect['tool']} is done, and was never executed")
        elif writes and times > 1:
            tally.doubled += times - 1
            tally.faults.append(f"{effect['tool']} was executed {times} times with one key")
    for key in told["done"].keys() - effects.keys():
        tally.doubled += told["done"][key]
        tally.faults.append(f"{told['tools'][key]} was executed with a key of no effect")


def difference(wanted: Any, found: Any, at: str = "") -> str | None:
    """The first place where two JSON values are not the same; None when there is none."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in sorted(wanted.keys() | found.keys()):
            if name not in wanted or name not in found:
                return f"{at}.{name} is {'missing' if name in wanted else 'too many'}"
            if (place := difference(wanted[name], found[name], f"{at}.{name}")) is not None:
                return place
        return None
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        places = (difference(a, b, f"{at}[{n}]") for n, (a, b) in pairs)
        return next((place for place in places if place is not None), None)
    return None if wanted == found else f"{at} is {found!r:.200} instead of {wanted!r:.200}"
