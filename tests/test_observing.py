"""What a session tells code of its user, and asks it; how a turn is steered from outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import cave
from cave.events import CellFinished, TurnFinished
from cave.observing import Inspection
from cave.ports import Reply, View
from cave.testing import Finish, ScriptedOperator

pytestmark = pytest.mark.usefixtures("sessions")
PATIENCE = 60


def test_hooks_hear_events_in_their_order() -> None:
    """`s.on` calls back with each event of a type before `run` returns; a hook may block and use
    the session; one that raises costs the others nothing and is told of."""
    heard: list[tuple[int, str]] = []
    with cave.open("q3") as s:
        faults: list[str] = []
        portal_loop = cave.portal.portal()._loop
        portal_loop.set_exception_handler(lambda _, told: faults.append(str(told["message"])))

        @s.on(CellFinished)
        def note(event: CellFinished) -> None:
            heard.append((event.cell, str(s["x"])))

        @s.on(CellFinished)
        async def broken(event: CellFinished) -> None:
            raise LookupError(event.cell)

        try:
            s.run("x = 1")
            s.run("x = 2")
        finally:
            portal_loop.set_exception_handler(None)
        assert heard == [(1, "1"), (2, "2")]
        assert faults == ["the hook broken of session 'q3' failed"] * 2
        with pytest.raises(cave.ConfigError, match="no type of event"):
            s.on("CellFinished")  # type: ignore[arg-type]


def test_inspectors_see_what_a_cell_does() -> None:
    """At each trigger an inspector has the cell, what differs and the variables; it cannot use
    the session that waits for it, and can be detached."""
    seen: list[Inspection] = []
    with cave.open("q3") as s:
        for trigger in ("pre_execute", "snapshot", "restore"):
            s.attach_inspector(trigger, seen.append)
        detach = s.attach_inspector("post_execute", seen.append)
        s.run("a = 1; b = [2]")
        detach()
        before, after, snapshot = seen
        assert (before.trigger, before.cell and before.cell.source) == (
            "pre_execute",
            "a = 1; b = [2]",
        )
        assert (after.trigger, after.diff.added) == ("post_execute", ("a", "b"))
        assert [row.name for row in after.vars] == ["a", "b"]
        assert (snapshot.trigger, snapshot.diff.added) == ("snapshot", ("a", "b"))
        s.run("b.append(3); del a")
        assert [i.trigger for i in seen[3:]] == ["pre_execute", "snapshot"]
        assert (seen[4].diff.changed, seen[4].diff.removed) == (("b",), ("a",))
        s.restore(at=1)
        assert seen[-1].trigger == "restore"
        assert (seen[-1].diff.added, seen[-1].diff.changed) == (("a",), ("b",))
        s.attach_inspector("pre_execute", lambda _: s["a"])
        denied = s.run("c = 1")
        assert denied.status == "denied"
        assert "inspector" in str(denied.error)
        with pytest.raises(cave.ConfigError, match="choose one of pre_execute"):
            s.attach_inspector("before", seen.append)  # type: ignore[arg-type]


def test_an_inspector_denies_a_cell() -> None:
    """What it raises before a cell is the cell's end: nothing ran, and the operator is told."""

    def guard(inspection: Inspection) -> None:
        if inspection.cell is not None and "drop" in inspection.cell.source:
            raise cave.PolicyViolation("tables are not dropped here")

    operator = ScriptedOperator(["dropped = 1", "kept = 1", Finish("done")])
    with cave.open("q3", operator=operator) as s:
        s.attach_inspector("pre_execute", guard)
        turn = s.ask("clean up")
        assert [cell.status for cell in turn.cells] == ["denied", "ok"]
        assert "tables are not dropped here" in turn.cells[0].text
        assert sorted(s) == ["kept"]


def test_answers_are_rewritten_before_they_are_journaled() -> None:
    """Each function has the answer of the one before; one that fails leaves it, and says so."""
    with cave.open("q3", operator=ScriptedOperator([Finish("north grew"), Finish("again")])) as s:

        @s.post_process
        def louder(answer: str) -> str:
            return answer.upper()

        @s.post_process
        async def silent(_: str) -> None:
            await asyncio.sleep(0)

        assert s.ask("?").answer == "NORTH GREW"
        assert [e.answer for e in s.events() if isinstance(e, TurnFinished)] == ["NORTH GREW"]
        s.post_process(lambda _: 1 / 0)
        turn = s.ask("and now?")
        assert (turn.status, turn.answer) == ("done", "AGAIN")
        assert "<lambda> raised ZeroDivisionError" in turn.reason


class Slow:
    """An operator whose second reply waits until it may come."""

    name = "slow"

    def __init__(self, *sources: str) -> None:
        self.sources = list(sources)
        self.asked, self.go = threading.Event(), threading.Event()

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        if len(self.sources) == 2:
            self.asked.set()
            await asyncio.to_thread(self.go.wait, PATIENCE)
        if not self.sources:
            return Reply("finish", text="counted")
        return Reply("cell", source=self.sources.pop(0))

    async def close(self) -> None:
        self.go.set()


def steered(s: cave.Session, steer: Callable[[], object]) -> cave.Turn:
    """A turn that is steered while the model thinks about its second step."""
    operator = Slow("a = 1", "b = a + 1", "c = b + 1")
    cave.open(s.name, operator=operator)
    turns: list[cave.Turn] = []
    thread = threading.Thread(target=lambda: turns.append(s.ask("count")))
    thread.start()
    try:
        assert operator.asked.wait(PATIENCE)
        steer()
    finally:
        operator.go.set()
        thread.join(PATIENCE)
    return turns[0]


def test_a_turn_is_paused_and_gone_on_with() -> None:
    """It ends after its step, waits, and goes on from there."""
    with cave.open("q3") as s:
        turn = steered(s, lambda: s.pause("lunch"))
        assert turn.status == "interrupted"
        assert turn.reason.startswith("paused: lunch")
        assert "b" in s
        assert "c" not in s
        done = s.resume()
        assert isinstance(done, cave.Turn)
        assert (done.status, done.answer, s["c"]) == ("done", "counted", 3)


def test_a_turn_is_handed_to_a_person_and_back() -> None:
    """A person works in between; the operator is told what was done."""
    with cave.open("q3") as s:
        turn = steered(s, lambda: s.hand_to("human", "look at b"))
        assert (turn.status, "look at b" in turn.reason) == ("needs_attention", True)
        s.run("b = 40")
        done = s.resume()
        assert isinstance(done, cave.Turn)
        assert (done.status, s["c"]) == ("done", 41)
        with pytest.raises(cave.ConfigError, match="'human'"):
            s.hand_to("robot")


def test_a_cancelled_turn_is_over() -> None:
    """The one that runs ends at once, the one that waits as well; nothing is left to resume."""
    with cave.open("q3") as s:
        turn = steered(s, lambda: s.cancel("wrong question"))
        assert (turn.status, turn.reason) == ("interrupted", "cancelled: wrong question")
        assert s.resume() is None
        assert steered(s, s.pause).status == "interrupted"
        waiting = s.pending
        assert waiting is not None
        assert s.cancel("changed my mind")
        assert s.pending is None
        assert s.turns[waiting.n].reason == "cancelled: changed my mind"


def test_another_process_pauses_a_turn() -> None:
    """The wish reaches the process that operates."""
    with cave.open("q3") as s:
        code = "import cave; print(bool(cave.open('q3').pause('from afar')))"
        called: list[str] = []

        def elsewhere() -> None:
            command = [sys.executable, "-c", code]
            called.append(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )

        turn = steered(s, elsewhere)
        assert called == ["True\n"]
        assert (turn.status, "from afar" in turn.reason) == ("interrupted", True)
