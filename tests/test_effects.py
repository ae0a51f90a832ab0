"""Skills and effects as people use them: through sessions, real kernels and the command line."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cave
from cave import facade
from cave.cli import cave as command
from cave.portal import portal
from cave.skills import SkillContext
from cave.testing import Finish, ScriptedOperator

posted: list[str] = []


@cave.skill(effect="write", runs="host")
def post(entry: str, amount: float = 1.0) -> dict[str, Any]:
    """Post one entry."""
    posted.append(entry)
    return {"entry": entry, "amount": amount}


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is posted yet."""
    posted.clear()


def test_an_effect_is_told_of(sessions: None) -> None:
    """The cell has the value and lists the effect, with its arguments and what it gave."""
    s = cave.open("q3", skills=[post])
    cell = s.run("r = post('rent', amount=3)").raise_for_error()
    (effect,) = cell.effects
    assert (effect.id, effect.skill, effect.state, effect.cell) == ("e1", "post", "done", cell.n)
    assert effect.result == s["r"] == {"entry": "rent", "amount": 3.0}
    assert repr(effect).startswith("<Effect e1 done: post(")
    assert posted == ["rent"]
    assert "post" not in {v.name for v in s.vars}


def test_bad_arguments_call_nothing(sessions: None) -> None:
    """They are refused before anything is journaled, by the name of the argument."""
    s = cave.open("q3", skills=[post])
    error = s.run("post(3.5, 'much')").error
    assert error is not None
    assert error.name == "SkillError"
    assert "argument 'entry' is 3.5" in error.message
    assert "argument 'amount' is 'much'" in error.message
    missing = s.run("post()").error
    assert missing is not None
    assert missing.name == "TypeError"
    assert (posted, s.history[-1].effects) == ([], ())


def test_a_tool_that_did_its_work_and_timed_out_is_not_run_again(
    sessions: None, tmp_path: Path
) -> None:
    """One line in its file; the effect is in doubt, the session waits, a person settles it, and
    the cell goes on with the given result."""
    file = tmp_path / "log.txt"

    @cave.skill(effect="write", runs="host", timeout=0.5, retries=3, in_doubt="retry")
    def append(line: str) -> str:
        """Append a line, and hang."""
        with file.open("a") as out:
            out.write(line)
        time.sleep(5)
        return line

    s = cave.open("q3", skills=[append])
    cell = s.run("done = append('x')\nmore = done * 2")
    assert cell.error is not None
    assert cell.error.name == "EffectInDoubt"
    assert file.read_text() == "x"
    (effect,) = s.in_doubt
    with pytest.raises(cave.EffectInDoubt, match=r"s\.settle"):
        s.run("1")
    with pytest.raises(cave.ConfigError, match="in doubt: e1"):
        s.settle("e9", "done")
    settled = s.settle(effect.id, "done", result="y")
    assert (settled.state, settled.result) == ("done", "y")
    again = s.resume()
    assert isinstance(again, cave.Cell)
    assert again.ok
    assert s["more"] == "yy"
    assert file.read_text() == "x"


def test_what_a_skill_raises_is_the_cells_error(sessions: None) -> None:
    """A builtin exception is raised as itself, one of the skill's own as a SkillError."""

    class Closed(Exception):
        pass

    @cave.skill(effect="write", runs="host")
    def pay(how: str) -> None:
        """Pay."""
        raise LookupError("no such account") if how == "builtin" else Closed("the bank is shut")

    s = cave.open("q3", skills=[pay])
    caught = s.run("try:\n    pay('builtin')\nexcept LookupError as e:\n    print('caught', e)")
    assert caught.text.strip() == "caught no such account"
    own = s.run("pay('own')").error
    assert own is not None
    assert own.name == "SkillError"
    assert "the bank is shut" in own.message
    assert [e.state for cell in s.history for e in cell.effects] == ["failed", "failed"]


def test_a_skill_redefined_while_it_runs_ends_as_it_began(sessions: None) -> None:
    """The running call is the old one's; the next cell has the new one."""
    began, go = threading.Event(), threading.Event()

    @cave.skill(runs="host")
    def rate() -> int:
        """The old rate."""
        began.set()
        go.wait(60)
        return 1

    old = rate
    s = cave.open("q3", skills=[old])
    cells: list[cave.Cell] = []
    work = threading.Thread(target=lambda: cells.append(s.run("a = rate()")))
    work.start()
    assert began.wait(60)

    @cave.skill(runs="host")  # type: ignore[no-redef]
    def rate() -> int:
        """The new rate."""
        return 2

    s.skills.add(rate)
    go.set()
    work.join(60)
    s.run("b = rate()").raise_for_error()
    assert (s["a"], s["b"]) == (1, 2)


def test_a_skill_that_is_gone_says_where_it_came_from(sessions: None) -> None:
    """Reopened without it, its name is there and its call names the module."""
    s = cave.open("q3", skills=[post])
    s.run("post('rent')").raise_for_error()
    s.close()
    s = cave.open("q3")
    error = s.run("post('rent')").error
    assert error is not None
    assert error.name == "SkillError"
    assert f"module {__name__!r}" in error.message
    assert posted == ["rent"]


def test_a_context_reaches_the_sessions_variables(sessions: None) -> None:
    """`ctx.runtime` gets and puts them while the cell waits, `ctx.log` shows what goes on."""

    @cave.skill(runs="host")
    def double(ctx: SkillContext) -> int:
        """Double x."""
        ctx.log("looking at x")
        ctx.runtime.put(y=ctx.runtime.get("x") * 2)
        return ctx.attempt

    s = cave.open("q3", skills=[double])
    cell = s.run("x = 21\nn = double()\nprint(y)").raise_for_error()
    assert cell.text.split("\n")[:2] == ["looking at x", "42"]
    assert s["n"] == 1


def test_two_people_send_cells_to_one_session_at_once(sessions: None) -> None:
    """Every reply belongs to its sender, and nothing is lost or mixed."""
    s = cave.open("q3", skills=[post])
    told: dict[str, list[str]] = {"a": [], "b": []}

    def send(who: str) -> None:
        for n in range(20):
            told[who].append(s.run(f"print(post('{who}{n}')['entry'])").text.strip())

    threads = [threading.Thread(target=send, args=(who,)) for who in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert told == {who: [f"{who}{n}" for n in range(20)] for who in told}
    assert sorted(posted) == sorted(told["a"] + told["b"])


def test_effects_stand_when_the_namespace_goes_back(sessions: None) -> None:
    """The report of a step back lists what later cells have done to the world."""
    s = cave.open("q3", skills=[post])
    s.run("a = post('rent')").raise_for_error()
    s.run("b = post('fuel')").raise_for_error()
    report = s.restore(at=1)
    (entry,) = report.effects_after
    assert (entry.name, entry.type) == ("e2", "post")
    assert "entry='fuel'" in entry.reason
    assert "stands: " in str(report)
    assert "cell 2" in str(report)
    assert posted == ["rent", "fuel"]


def test_what_stands_is_asked_about_before_it_is_done_once_more(
    sessions: None,
) -> None:
    """After a step back the same call waits for a person, who lets it happen, or takes what was
    done; a call with other arguments goes through; a fork asks, denies or allows."""
    s = cave.open("q3", skills=[post])
    s.run("a = post('rent')").raise_for_error()
    s.run("b = post('fuel')\nc = post('toll')").raise_for_error()
    s.restore(at=1)
    s.run("post('food')").raise_for_error()
    cell = s.run("b = post('fuel')")
    assert cell.error is not None
    assert cell.error.name == "EffectInDoubt"
    assert "by effect e2 in cell 2" in cell.error.message
    (waiting,) = s.in_doubt
    s.settle(waiting.id, "not_done")
    s.resume()
    assert posted == ["rent", "fuel", "toll", "food", "fuel"]
    assert s.run("c = post('toll')").effects[0].state == "in_doubt"
    s.settle(s.in_doubt[0].id, "done")
    s.resume()
    assert s["c"] == {"entry": "toll", "amount": 1.0}
    assert posted[5:] == []
    s.run("post('toll')").raise_for_error()  # one answer was for one call, and so is this
    asks = s.fork("asks", at=1)
    assert "of session 'q3'" in str(asks.run("post('food')").error)
    denies = s.fork("denies", at=1, effects="deny")
    error = denies.run("post('new')").error
    assert error is not None
    assert error.name == "PolicyViolation"
    s.fork("allows", at=1, effects="allow").run("post('food')").raise_for_error()
    assert posted[5:] == ["toll", "food"]


taken: list[tuple[str, Any, str]] = []


@cave.skill(effect="write", runs="host")
def unbook(entry: str, result: str, ctx: SkillContext) -> None:
    """Take a booking back."""
    if entry == "stuck":
        raise ValueError("the books are closed")
    taken.append((entry, result, ctx.idempotency_key))


@cave.skill(effect="write", runs="host", undo=unbook)
def book(entry: str) -> str:
    """Book one entry."""
    return f"booked {entry}"


def test_what_stands_can_be_undone_once(sessions: None) -> None:
    """The report says what to type; the compensation gets arguments and result, has a key of its
    own and is in the ledger; then the effect does not stand, and is not undone twice."""
    taken.clear()
    s = cave.open("q3", skills=[book, post])
    s.run("1")
    s.run("a = book('rent')\nb = book('stuck')\npost('x')").raise_for_error()
    report = s.restore(at=1)
    assert [entry.name for entry in report.effects_after] == ["e1", "e2", "e3"]
    assert "s.undo('e1') calls unbook" in report.effects_after[0].reason
    listed = CliRunner().invoke(command, ["undo"])
    assert "q3/e1  book(entry='rent')  cell 2  cave undo q3/e1" in listed.stdout
    undone = s.undo("e1")
    assert undone.undone == "e4"
    ((entry, result, key),) = taken
    assert (entry, result) == ("rent", "booked rent")
    assert key != undone.key
    assert s.last_restore is not None
    assert [entry.name for entry in s.last_restore.effects_after] == ["e2", "e3"]
    with pytest.raises(cave.ConfigError, match="undone already, by e4"):
        s.undo("e1")
    with pytest.raises(cave.ConfigError, match="'post' has no undo="):
        s.undo("e3")
    for _ in range(2):  # what it raised is told, and it may be tried again
        with pytest.raises(cave.SkillError, match=r"e2 still stands.*the books are closed"):
            s.undo("e2")
    s.run("a = book('rent')").raise_for_error()  # it is no repetition any more
    assert len(taken) == 1
    seen: list[str] = []

    def look(view: Any) -> Finish:
        seen.append(str(view.messages))
        return Finish("seen")

    cave.open("q3", operator=ScriptedOperator([look])).ask("what stands?")
    assert "stands: e2 (book, cell 2)" in seen[0]
    assert "undone by unbook: it does not stand any more" in seen[0]


def test_a_session_says_when_its_skills_are_others(
    sessions: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opened again with another version of a skill, or the same with other code, the person and
    the operator are told; the same ones are no news."""

    def rate(version: str, value: int) -> Any:
        code = f"def rate() -> int:\n    'The rate.'\n    return {value}\n"
        exec(code, made := {"__name__": __name__})
        return cave.skill(version=version, runs="host")(made["rate"])

    for version, value in (("1.0.0", 1), ("1.0.0", 1), ("1.1.0", 2), ("1.1.0", 3)):
        s = cave.open("q3", skills=[rate(version, value)])
        assert s.run("print(rate())").text.strip() == str(value)
        s.close()
    told = [line for line in capsys.readouterr().err.splitlines() if "skill" in line]
    assert told == [
        "cave: 'q3': skill 'rate' was version 1.0.0 and is 1.1.0 now",
        "cave: 'q3': skill 'rate' has other code than before, and is still version 1.1.0",
    ]
    seen: list[str] = []

    def look(view: Any) -> Finish:
        seen.append(str(view.messages))
        return Finish("seen")

    with cave.open("q3", skills=[rate("2.0.0", 3)], operator=ScriptedOperator([look])) as s:
        s.ask("what is new?")
    assert "skill 'rate' was version 1.1.0 and is 2.0.0 now" in seen[0]


def test_what_was_done_and_cannot_be_told_of_is_done(sessions: None) -> None:
    """A result that cannot be sent is an error of the cell that names skill and type, and the
    effect is recorded as done; what a skill raises has its own text."""

    @cave.skill(effect="write", runs="host")
    def lock_up(what: str) -> Any:
        """Lock."""
        if what == "x":
            raise KeyError("no door 'x'")
        return threading.Lock()

    @cave.skill(effect="write")
    def lock_in(what: str) -> Any:
        """Lock."""
        import threading

        if what == "x":
            raise KeyError("no door 'x'")
        return threading.Lock()

    s = cave.open("q3", skills=[lock_up, lock_in])
    for name in ("lock_up", "lock_in"):
        cell = s.run(f"{name}('a')")
        assert cell.error is not None
        assert cell.error.name == "SkillError"
        assert name in cell.error.message
        assert "lock" in cell.error.message
        assert [effect.state for effect in cell.effects] == ["done"]
        raised = s.run(f"{name}('x')")
        assert str(raised.error) == "KeyError: \"no door 'x'\""
        assert [(e.state, e.reason) for e in raised.effects] == [
            ("failed", "KeyError: no door 'x'")
        ]


def test_what_a_skill_folder_brings_can_be_called_from_the_next_cell_on(sessions: None) -> None:
    """Once an operator has read it, also after a death in the same turn, and in the next
    process; before that a cell is told what to type."""
    look = "int(profile_table(pd.DataFrame({'a': [1, None]})).missing.iloc[0])"
    steps: list[Any] = ["use_skill('dataframes')", f"import pandas as pd\n{look}",
             "import os; os.kill(os.getpid(), 9)", look, Finish("looked")]  # fmt: skip
    s = cave.open("q3", operator=ScriptedOperator(steps))
    early = s.run("import cave\ncave.use_skill('sql')").error
    assert early is not None
    assert "s.use_skill('sql')" in early.message
    cells = s.ask("look").cells
    assert "profile_table(" in cells[0].text
    assert [cell.text for cell in (cells[1], cells[3])] == ["1", "1"]
    portal().call(facade.leave_all())
    s = cave.open("q3")
    assert s.run(look).text == "1"
    assert "run_query(" in s.run("cave.use_skill('sql')").text
    assert "run_query" in s.run("run_query").text
