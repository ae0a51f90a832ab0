"""Which test covers which point of failure, and for which kinds of skill.

Kinds: `retry` (same key again), `probe`, `ask` (a person; async), `read`; and beside the objects
`kernel` (a person is asked) and `async` (same key again). The tables are checked: a test that is
named here exists, and every failpoint of the code is armed somewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from cave import failpoints

from . import world

TESTS = Path(__file__).parents[1]

ALL = "retry probe ask kernel async read"
WHEREVER = "crash/test_effects.py::test_effects_happen_once_wherever_it_dies"
ALIKE = "crash/test_alike.py::test_killed_sessions_end_as_those_left_alone"
OWNERS = "crash/test_ledger.py::test_killed_owners_do_everything_once"
HOST = "crash/test_deaths.py::test_a_host_killed_at_a_failpoint_leaves_a_session_that_works"
SLOW = "crash/test_ledger.py::test_an_owner_that_is_too_slow_is_waited_for"
PAUSED = "crash/test_ledger.py::test_a_paused_owner_doubles_nothing"
BUSY = "crash/test_effects.py::test_a_fork_beside_a_running_cell_calls_with_keys_of_its_own"

COVERED: dict[str, tuple[str, tuple[str, ...]]] = {
    "1 before the turn's row": ("", (HOST,)),
    "2 after the model's reply, before it is journaled": ("", (HOST,)),
    "3 after the cell is journaled, before it is sent": (ALL, (WHEREVER, HOST)),
    "4 at the cell's start": (ALL, (WHEREVER,)),
    "5 before the intent": ("retry probe ask kernel async", (WHEREVER, OWNERS)),
    "6 after the intent, before the call": ("retry probe ask kernel async", (WHEREVER, OWNERS)),
    "7 in the call": ("retry probe ask kernel async", (WHEREVER, SLOW, PAUSED)),
    "8 after the call, before the result": (ALL, (WHEREVER, OWNERS)),
    "9 after the result, before the kernel has it": (ALL, (WHEREVER, OWNERS)),
    "10 between two calls of a cell": (ALL, (ALIKE, OWNERS)),
    "11 parallel calls": ("retry probe ask", (ALIKE, OWNERS)),
    "12 after the last result, before the cell's end": (ALL, (WHEREVER, ALIKE)),
    "13 the kernel dies, its host lives": (ALL, (WHEREVER,)),
    "14 the host dies, the kernel calls on": (
        ALL,
        (WHEREVER, "kernel/test_call_owners.py::test_the_next_owner_gets_a_waiting_call_once"),
    ),
    "15 in the snapshot's write": (ALL, (WHEREVER,)),
    "16 after it, before it has its name": (
        "",
        ("snapshot/test_deaths.py::test_killed_at_each_point",),
    ),
    "17 after the data, before the row": (ALL, (WHEREVER,)),
    "18 after the row, before the caller knows": ("retry probe ask read", (OWNERS, HOST)),
    "19 while a lease is renewed, or as it ends": ("retry probe ask read", (SLOW, PAUSED)),
    "20 in the recovery itself": (
        "retry probe ask read",
        ("crash/test_effects.py::test_a_death_in_the_recovery_changes_nothing", OWNERS),
    ),
    "22 a fork while a cell runs": ("retry", (BUSY,)),
}
"""By point: kinds of skill, and tests. Approvals (point 21) are of test_leave."""


def test_every_point_of_failure_has_its_tests() -> None:
    """The points are all there, and each names tests that exist and kinds that the world has."""
    numbers = [int(point.split()[0]) for point in COVERED]
    assert numbers == [n for n in range(1, 23) if n != 21]
    missing = [name for _, names in COVERED.values() for name in names if not exists(name)]
    assert missing == []
    assert {kind for kinds, _ in COVERED.values() for kind in kinds.split()} == set(ALL.split())
    assert len(world.KINDS) == len(ALL.split())


def exists(name: str) -> bool:
    """Whether there is a test of that name."""
    file, _, function = name.partition("::")
    return f"def {function}(" in (TESTS / file).read_text()


def test_every_failpoint_is_hit_by_a_test() -> None:
    """A failpoint that no test arms shows nothing."""
    texts = "".join(
        path.read_text() for path in TESTS.rglob("*.py") if path.name != Path(__file__).name
    )
    armed = set(re.findall(r"[\"'=]((?:[a-z]+)\.[a-z_]+)[@\"'=]", texts))
    assert failpoints.POINTS.keys() <= armed
