"""Turns: the operator works on live objects until it answers, waits or is stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import psutil
import pytest

import cave
from cave.events import (
    CellFinished,
    Event,
    SnapshotCommitted,
    StepReplied,
    TextDelta,
    TurnFinished,
    TurnStarted,
)
from cave.ports import Message, Reply, View
from cave.testing import Finish, ScriptedOperator

pytestmark = pytest.mark.usefixtures("sessions")


def shown(view: View) -> str:
    """Everything that an operator was shown, as one text."""
    return "\n".join(m.text for m in view.messages)


class Recording:
    """An operator that replies from a list and keeps what it was shown."""

    name = "recording"

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.views: list[View] = []

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        self.views.append(view)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        on_text(reply.text)
        return reply

    async def close(self) -> None:
        pass


def cell(source: str, note: str = "") -> Reply:
    return Reply("cell", source=source, note=note)


def test_a_turn_works_until_it_answers() -> None:
    """The operator's cells run on live objects; the answer, steps and value come back."""
    s = cave.open(
        "turn",
        operator=ScriptedOperator([("double it", "y = x * 2"), "print(y)", Finish("it is 42")]),
    )
    s.put(x=21)
    turn = s.ask("double x", returns="y")
    assert (turn.status, turn.answer, turn.value) == ("done", "it is 42", 42)
    assert [c.source for c in turn.cells] == ["y = x * 2", "print(y)"]
    assert turn.steps[0].note == "double it"
    assert turn.usage.model_calls == 3
    assert turn.usage.cells == 2
    assert turn.usage.estimated
    assert s.turns[1].answer == "it is 42"
    assert s.usage.model_calls == 3
    assert s.pending is None


def test_without_a_model_ask_says_what_to_type() -> None:
    """Everything but ask works without a model, and ask names the three ways to one."""
    s = cave.open("nomodel")
    assert s.run("1").ok
    with pytest.raises(cave.OperatorError) as caught:
        s.ask("hello")
    text = str(caught.value)
    assert "ANTHROPIC_API_KEY" in text
    assert "openai:" in text
    assert "llama:" in text
    assert len(s.turns) == 0


def test_an_error_is_shown_to_the_operator_that_repairs_it() -> None:
    """A failing cell does not end the turn: the operator sees the error and goes on."""
    operator = Recording(cell("total = 1 / 0"), cell("total = 1"), Reply("finish", text="ok"))
    turn = cave.open("repair", operator=operator).ask("go")
    assert turn.status == "done"
    assert [c.status for c in turn.cells] == ["error", "ok"]
    assert "ZeroDivisionError" in shown(operator.views[1])


def test_an_empty_answer_is_the_last_cells_text() -> None:
    """An operator that ends without words answers with what its last cell printed."""
    s = cave.open("last", operator=ScriptedOperator(["print('forty-two')"]))
    assert s.ask("go").answer == "forty-two"


def test_a_kernel_that_dies_in_a_turn_is_told_with_every_lost_name() -> None:
    """The operator learns before its next step how the kernel died, what is gone and what has
    come back."""
    operator = Recording(
        cell("kept = 1\ndf = (i for i in 'ab')\nother = (i for i in 'ab')"),
        cell("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
        cell("df = [1, 2, 3]"),
        Reply("finish", text="made again"),
    )
    s = cave.open("dying", operator=operator)
    turn = s.ask("go")
    assert turn.status == "done"
    assert [c.status for c in turn.cells] == ["ok", "died", "ok"]
    died = turn.cells[1]
    assert "signal 9" in str(died.error)
    assert not died.kept
    told = shown(operator.views[2])
    assert "signal 9" in told
    assert "df" in told.split("signal 9")[-1]
    assert "other" in told.split("signal 9")[-1]
    assert "1 restored" in told.split("signal 9")[-1]
    assert s["kept"] == 1
    assert s["df"] == [1, 2, 3]


def test_a_kernel_that_dies_between_turns_is_told_at_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A death while nothing runs reaches the person and the operator with every lost name."""
    import os
    import signal

    operator = Recording(Reply("finish", text="ok"))
    s = cave.open("between", operator=operator)
    s.run("alpha = (i for i in 'a')\nbeta = (i for i in 'b')")
    pid = s.kernel.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)], timeout=10)
    s.ask("go on")
    told = shown(operator.views[0])
    assert "alpha" in told
    assert "beta" in told
    err = capsys.readouterr().err
    assert "alpha (generator), beta (generator)" in err
    assert "signal 9" in err


def test_what_a_person_did_between_turns_is_shown() -> None:
    """The operator sees the cells a person ran and the values that were put meanwhile."""
    operator = Recording(Reply("finish", text="ok"))
    s = cave.open("person", operator=operator)
    s.run("answer = 42")
    s.put(given=[1, 2, 3])
    s.ask("go")
    assert "answer" in shown(operator.views[0])
    assert "given" in shown(operator.views[0])


def test_malformed_replies_never_run_and_stop_after_three() -> None:
    """A reply that cannot be used is journaled and told to the operator; three end the turn."""
    bad = [
        Reply("malformed", text="two blocks; give one", raw="```python\nx=1\n```") for _ in "123"
    ]
    operator = Recording(*bad)
    s = cave.open("nonsense", operator=operator)
    turn = s.ask("go")
    assert turn.status == "needs_attention"
    assert "two blocks" in turn.reason
    assert not turn.cells
    assert "x" not in s
    assert "two blocks; give one" in shown(operator.views[1])
    assert [e.kind for e in s.events() if isinstance(e, StepReplied)] == ["malformed"] * 3
    operator.replies = [Reply("finish", text="now I can")]
    resumed = s.resume()
    assert isinstance(resumed, cave.Turn)
    assert (resumed.n, resumed.status, resumed.answer) == (1, "done", "now I can")


def test_a_turn_that_never_finishes_is_over_budget_and_resumes() -> None:
    """The steps of a budget bind; the turn waits and goes on with a larger one."""
    s = cave.open("endless", operator=ScriptedOperator(lambda view: f"i = {view.step}"))
    turn = s.ask("go", budget=cave.Budget(steps=3))
    assert turn.status == "over_budget"
    assert len(turn.cells) == 3
    assert s.pending is not None
    more = s.resume(budget=cave.Budget(steps=5))
    assert isinstance(more, cave.Turn)
    assert (more.n, more.status, len(more.steps)) == (1, "over_budget", 5)
    assert s["i"] == 5


def test_a_provider_that_fails_leaves_a_turn_to_resume() -> None:
    """An OperatorError is raised, journaled as failed, and the turn goes on by resume."""
    operator = Recording(
        cell("x = 1"), cave.OperatorError("the provider is down"), Reply("finish", text="done")
    )
    s = cave.open("provider", operator=operator)
    with pytest.raises(cave.OperatorError, match="down"):
        s.ask("go")
    assert s.pending is not None
    assert s.pending.status == "failed"
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert (turn.status, turn.answer, len(turn.cells)) == ("done", "done", 1)


def test_an_interrupt_reaches_the_model_call() -> None:
    """interrupt gives up a call of the model; the turn waits as interrupted."""

    async def slow(view: View) -> str:
        await asyncio.sleep(60)
        return "x = 1"

    s = cave.open("hang", operator=ScriptedOperator([slow, Finish("later")]))
    turns: list[cave.Turn] = []
    thread = threading.Thread(target=lambda: turns.append(s.ask("go")))
    thread.start()
    deadline = time.monotonic() + 20
    while (s._inner._fold.turn is None or not s._inner._fold.turn.asked) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert s.interrupt()
    thread.join(20)
    assert turns[0].status == "interrupted"
    assert s.pending is not None


def test_an_interrupted_cell_interrupts_the_turn() -> None:
    """interrupt in a cell ends the turn as interrupted, and resume goes on with it."""
    s = cave.open(
        "cut", operator=ScriptedOperator(["import time\ntime.sleep(60)", Finish("went on")])
    )
    turns: list[cave.Turn] = []
    thread = threading.Thread(target=lambda: turns.append(s.ask("go")))
    thread.start()
    deadline = time.monotonic() + 20
    while s._inner._fold.running is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert s.interrupt()
    thread.join(20)
    assert turns[0].status == "interrupted"
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert turn.answer == "went on"


def test_events_come_in_the_callers_thread_in_order() -> None:
    """on_event gets every event of the turn where ask was called; text streams provisionally."""
    s = cave.open("events", operator=Recording(cell("print('hi')"), Reply("finish", text="bye")))
    seen: list[Event] = []
    threads: set[int] = set()

    def on_event(event: Event) -> None:
        seen.append(event)
        threads.add(threading.get_ident())

    s.ask("go", on_event=on_event)
    assert threads == {threading.get_ident()}
    durable = [e for e in seen if e.seq]
    assert [e.seq for e in durable] == sorted(e.seq for e in durable)
    # a snapshot that was under way may end at any time
    kinds = [type(e) for e in durable if not isinstance(e, SnapshotCommitted)]
    assert kinds[0] is TurnStarted
    assert kinds[-1] is TurnFinished
    assert CellFinished in kinds
    assert any(isinstance(e, TextDelta) and e.seq == 0 for e in seen)


def test_the_async_stream_ends_with_the_turn() -> None:
    """async for over stream gives the turn's events and stops after TurnFinished."""

    async def work() -> list[str]:
        async with cave.open_async("astream", operator=["x = 1", Finish("ok")]) as s:
            return [type(e).__name__ async for e in s.stream("go")]

    names = asyncio.run(work())
    assert names[-1] == "TurnFinished"
    assert names.index("CellStarted") < names.index("CellFinished")


def test_a_flood_does_not_reach_the_prompt() -> None:
    """5 MB of output reach the operator as head and tail with the size named."""
    operator = Recording(
        cell("print('x' * 5_000_000)\nprint('the end')"), Reply("finish", text="ok")
    )
    s = cave.open("flood", operator=operator)
    turn = s.ask("go")
    told = shown(operator.views[1])
    assert len(told) < 20_000
    assert "5,000," in told
    assert "the end" in told
    assert len(turn.cells[0].text) < 1_100_000
    assert turn.cells[0].full_text().endswith("the end")
    assert len(turn.cells[0].full_text()) > 5_000_000
    bound = [m for m in told.split() if "_output_" in m]
    assert bound
    assert s.run("len(_output_1)").text.startswith("50000")


def test_messages_only_grow_within_a_turn() -> None:
    """Each step's messages begin with those of the step before, so that prompts are cached."""
    operator = Recording(cell("a = 1"), cell("b = 2"), cell("c = 3"), Reply("finish", text="ok"))
    cave.open("prefix", operator=operator).ask("go")
    before: tuple[Message, ...] = ()
    for view in operator.views:
        assert view.messages[: len(before)] == before
        assert view.system == operator.views[0].system
        before = view.messages
