from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from cave import stream
from cave.events import (
    Delta,
    Fault,
    KernelEnded,
    Output,
    OutputLate,
    StepStarted,
    TurnFinished,
    TurnResumed,
    ValuesDeleted,
    ValuesPut,
    Variable,
)
from cave.history import History
from cave.ports import Message, View

FRAME = Variable("df", "DataFrame", (10_432, 8), summary="region str, amount f64")


def text(view: View) -> str:
    return "\n".join(
        f"--- {m.role}{f' [{m.note}]' if m.note else ''}\n{m.text}" for m in view.messages
    )


def views(events) -> list[View]:
    """The view of every call of the operator."""
    history, made = History(), []
    for event in events:
        history.feed([event])
        if isinstance(event, StepStarted):
            made.append(stream.view(history))
    return made


def starts_with(longer: tuple[Message, ...], shorter: tuple[Message, ...]) -> bool:
    return longer[: len(shorter)] == shorter


@pytest.mark.parametrize("call", range(7))
def test_the_prompt_of_a_fixed_journal_is_fixed(events, golden: Path, call: int) -> None:
    """Every view of a fixed list of events is the text of a golden file, byte for byte."""
    view = views(events)[call]
    file = golden / f"turn{view.turn}-step{view.step}.txt"
    if os.environ.get("GOLDEN_WRITE"):
        file.write_text(text(view) + "\n", "utf-8")
    assert text(view) + "\n" == file.read_text("utf-8")


def test_each_step_begins_with_the_step_before(events) -> None:
    """Within a turn the messages of a call begin with those of the call before."""
    made = views(events)
    pairs = [(a, b) for a, b in itertools.pairwise(made) if a.turn == b.turn]
    assert len(pairs) == 5
    assert all(starts_with(b.messages, a.messages) for a, b in pairs)


def test_a_turn_begins_with_the_turns_before(journal) -> None:
    """From turn to turn the requests and answers of older turns stay as they were."""
    made = []
    for number in range(8):
        journal.run(origin="person", delta=Delta(added=(FRAME,)))
        journal.ask(f"Request {number}.")
        journal.run(outputs=(Output("stream", "1\n2\n", "stdout"),))
        journal.call()
        made.append(stream.view(journal.history).messages)
        journal.finish()
    for at, (before, after) in enumerate(itertools.pairwise(made)):
        asked = 2 * at + 1
        assert starts_with(after, before[:asked])
        assert after[asked] == Message("answer", "Done.")


def test_late_output_changes_no_older_message(journal) -> None:
    """Output of a thread that comes after its cell is told as news, not written into the past."""
    journal.ask()
    journal.run(outputs=(Output("stream", "now\n", "stdout"),))
    journal.call()
    before = stream.view(journal.history).messages
    late = Output("stream", "much later\n", "stdout")
    journal.add(OutputLate(cell=1, outputs=(late,)))
    journal.run("y = 2")
    journal.call()
    after = stream.view(journal.history).messages
    assert starts_with(after, before)
    assert "cell 1 printed after its end: much later" in after[-1].text


def test_the_same_history_gives_the_same_view(events) -> None:
    """A view depends on the events alone: made again, or from a new fold, it is equal."""
    first, second = History(), History()
    first.feed(events)
    assert stream.view(first) == stream.view(first)
    second.feed(events)
    assert stream.view(second) == stream.view(first)


def test_a_dead_kernel_names_every_loss(journal) -> None:
    """After a death between turns each lost name is in the request, with type and cell."""
    many = tuple(Variable(f"v{n}", "int", cell=n or None) for n in range(300))
    journal.ask()
    journal.finish()
    journal.add(KernelEnded(kernel=1, pid=7, reason="died", signal=9, lost=many))
    journal.ask()
    request = stream.view(journal.history).messages[-1].text
    assert "kernel died (signal 9)" in request
    assert all(f"v{n} int" in request for n in range(300))
    assert "v299 int (cell 299)" in request
    assert "The kernel holds no variables" in request


def test_a_kernel_that_dies_in_a_turn_is_told_at_once(journal) -> None:
    """The result of the cell that killed the kernel names the losses, once."""
    journal.add(ValuesPut(variables=(FRAME,)))
    journal.ask()
    fault = Fault("KernelDied", "kernel died (signal 9); lost with it: df (DataFrame)")
    journal.run(status="died", error=fault, kept=False)
    journal.add(KernelEnded(kernel=1, pid=7, reason="died", signal=9, lost=(FRAME,)))
    journal.call()
    view = stream.view(journal.history)
    assert view.messages[-1].role == "result"
    assert view.messages[-1].text.count("lost") == 1
    assert "lost: df DataFrame; they do not exist any more" in view.messages[-1].text
    assert view.error == fault
    assert view.variables == ()


def test_a_call_that_was_cut_is_asked_again(journal) -> None:
    """A kernel that dies while the operator thinks is told at its next call, in order."""
    journal.ask()
    before = stream.view(journal.history).messages
    journal.add(KernelEnded(kernel=1, pid=7, reason="died", lost=(FRAME,)))
    journal.call()
    asked_again = stream.view(journal.history).messages
    assert starts_with(asked_again, before)
    assert "lost: df DataFrame" in asked_again[-1].text
    journal.run()
    journal.call()
    assert starts_with(stream.view(journal.history).messages, asked_again)


def test_a_resumed_turn_knows_what_happened_while_it_waited(journal) -> None:
    """A turn that was interrupted and goes on is one turn, with the news of the time between."""
    journal.ask("Once.")
    journal.run()
    journal.add(TurnFinished(turn=1, status="interrupted"))
    journal.add(ValuesPut(variables=(FRAME,)), TurnResumed(turn=1))
    journal.call()
    messages = stream.view(journal.history).messages
    assert [m.text for m in messages].count("Once.") + messages[0].text.count("Once.") == 1
    assert "the person put: df DataFrame 10,432x8" in messages[-1].text


def test_a_malformed_reply_is_shown_with_what_to_mend(journal) -> None:
    """What could not be used comes back clipped, followed by the correction; never empty."""
    journal.ask()
    journal.reply(kind="malformed", raw="", text="Send one block.")
    journal.call()
    journal.reply(kind="malformed", raw="x" * 50_000, text="Only one.")
    journal.call()
    answers = stream.view(journal.history).messages[-4:]
    assert [m.role for m in answers] == ["answer", "user", "answer", "user"]
    assert answers[0].text == "(an empty reply)"
    assert len(answers[2].text) < 2_200
    assert answers[3].text == "Only one."


def test_people_and_values_are_news(journal) -> None:
    """The cells of persons and other clients, values put and deleted stand in the request."""
    journal.ask()
    journal.finish()
    journal.run("df = df.dropna()\ndf", origin="person", delta=Delta(changed=(FRAME,)))
    journal.run("tmp = 1", origin="foreign")
    journal.add(ValuesPut(variables=(FRAME,)), ValuesDeleted(names=("tmp", "old")))
    journal.ask()
    request = stream.view(journal.history).messages[-1].text
    assert "the person ran cell 1 ok 0.1s [df = df.dropna() ... 1 more line]: ~ df" in request
    assert "another client ran cell 2" in request
    assert "the person put: df DataFrame 10,432x8 (region str, amount f64)" in request
    assert "the person deleted: tmp, old" in request


def test_many_events_keep_the_deaths(journal) -> None:
    """Of hundreds of events the latest are told and the number of the others; deaths always."""
    journal.add(KernelEnded(kernel=1, pid=7, reason="died", lost=(FRAME,)))
    for _ in range(100):
        journal.run(origin="person")
    journal.ask()
    request = stream.view(journal.history).messages[-1].text
    assert "lost: df DataFrame" in request
    assert "(70 earlier events are left out)" in request
    assert "cell 100" in request
    assert "cell 70 " not in request


def test_a_long_session_is_shortened_and_says_so(journal) -> None:
    """Old turns become one line each, all variables are listed again, and the size is kept."""
    sizes, changes, before = [], 0, ()
    for number in range(60):
        journal.ask(f"Request {number}: " + "word " * 100)
        journal.run(delta=Delta(added=(Variable(f"v{number}", "int", cell=number + 1),)))
        journal.call()
        view = stream.view(journal.history, context_tokens=8_000)
        changes += not starts_with(view.messages, before[:1])
        before = view.messages
        sizes.append(sum(stream.estimate(m.text) for m in view.messages))
        journal.finish("Done. " * 100)
    assert max(sizes) < 8_000
    assert changes < 15
    assert "Earlier turns, shortened to fit:\n(" in before[0].text
    assert "earlier ones are left out)" in before[0].text
    assert any("Variables in the kernel:\nv" in m.text for m in before[1:])


def test_a_long_turn_is_shortened_and_lists_the_variables(journal) -> None:
    """Old steps become one line each; the list of variables follows where that happened."""
    journal.add(ValuesPut(variables=(FRAME,)))
    journal.ask("Work.")
    before: tuple[Message, ...] = ()
    breaks = 0
    for number in range(40):
        made = Variable(f"v{number}", "int", cell=number + 1)
        output = Output("stream", "line of text\n" * 200, "stdout")
        journal.run(delta=Delta(added=(made,), removed=("df",)), outputs=(output,))
        journal.call()
        messages = stream.view(journal.history, context_tokens=10_000).messages
        breaks += not starts_with(messages, before)
        before = messages
        assert sum(stream.estimate(m.text) for m in messages) < 10_000
        assert messages[0].text.endswith("Work.")
    assert 0 < breaks < 20
    assert before[1].text.startswith("Earlier steps of this request, shortened to fit:")
    digest = [m.text for m in before if m.text.startswith("Variables in the kernel:")]
    assert len(digest) == 1
    assert "df" not in digest[0]


def test_the_prompt_does_not_grow_with_rows(journal) -> None:
    """A frame of ten rows and one of a hundred million cost the same, but for the digits."""
    sizes = []
    for rows in (10, 100_000_000):
        own = type(journal)()
        own.add(ValuesPut(variables=(Variable("df", "DataFrame", (rows, 8), summary="a i64"),)))
        own.ask()
        sizes.append(sum(stream.estimate(m.text) for m in stream.view(own.history).messages))
    assert sizes[1] - sizes[0] <= 5


def test_extra_messages_come_last(journal) -> None:
    """What the loop adds stands after everything else."""
    journal.ask()
    extra = Message("user", "Answer now.")
    assert stream.view(journal.history, extra=[extra]).messages[-1] == extra


def test_a_cell_that_was_not_run_says_so(journal) -> None:
    """A reply whose cell never began has a result that says it was not run."""
    journal.ask()
    journal.reply(kind="cell", source="x = 1")
    journal.call()
    assert stream.view(journal.history).messages[-1].text == "this cell was not run"


def test_what_ended_is_told_once(journal) -> None:
    """The next view of turns that have ended costs less than a fifth of the CPU of the first."""
    for _ in range(25):
        journal.ask()
        for _ in range(4):
            journal.run(outputs=(Output("stream", "x" * 2_000, "stdout"),))
            journal.call()
        journal.finish()
    journal.ask()
    costs = []
    for _ in range(20):
        began = time.process_time()
        stream.view(journal.history)
        costs.append(time.process_time() - began)
    assert 5 * min(costs[1:]) < costs[0]
