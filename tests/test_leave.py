"""What people approve, through sessions and real kernels: asked, answered, gone on with."""

from __future__ import annotations

import io
import json
import sys
import threading
from typing import Any

import pytest

import cave
from cave.display import leave
from cave.events import ApprovalSettled
from cave.skills import SkillContext
from cave.testing import Finish, ScriptedOperator

from ._cli import cave as command

posted: list[Any] = []


def fault(cell: object) -> cave.CellError:
    """The error of a cell, which has one."""
    assert isinstance(cell, cave.Cell)
    assert cell.error is not None
    return cell.error


def resumed(s: cave.Session) -> cave.Turn:
    """The turn that goes on."""
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    return turn


def again(s: cave.Session) -> cave.Cell:
    """The cell that runs again."""
    cell = s.resume()
    assert isinstance(cell, cave.Cell)
    return cell


@cave.skill(effect="write", approval="always", runs="host")
def post(n: int) -> int:
    """Post a number."""
    posted.append(n)
    return n + 1


@cave.skill(approval=lambda call: call.arguments["n"] > 10)
def weigh(n: int) -> int:
    """Weigh in the kernel; heavy ones are asked about."""
    return 2 * n


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is posted yet."""
    posted.clear()


def test_a_turn_waits_for_leave_and_goes_on(sessions: None) -> None:
    """Nothing is called before the answer; after it the cell runs from its start, and the call
    is made once. Another call of the same skill is asked about anew."""
    s = cave.open(
        "q3",
        skills=[post],
        operator=ScriptedOperator(["t = 0", "t += 1; a = post(1)", "b = post(1)", Finish("done")]),
    )
    turn = s.ask("go")
    assert (turn.status, posted) == ("needs_approval", [])
    assert "s.approve('a1')" in turn.reason
    assert s.pending is not None
    assert s.resume() == turn  # nobody has answered
    (asked,) = s.approvals
    assert (asked.id, asked.what, asked.skill, asked.state) == (
        "a1",
        "post(n=1)",
        "post",
        "pending",
    )
    assert asked.source == "t += 1; a = post(1)"
    assert [a.session for a in cave.approvals()] == ["q3"]
    assert "s.approve('a1')" in repr(s.approvals)
    assert s.approve().state == "approved"
    assert not s.approvals
    with pytest.raises(cave.ConfigError, match="waiting are none"):
        s.approve("a1")
    turn = resumed(s)
    assert (turn.status, posted) == ("needs_approval", [1])
    assert (s["t"], s["a"]) == (1, 2)
    s.approve("a2")
    turn = resumed(s)
    assert (turn.status, turn.answer, posted) == ("done", "done", [1, 1])


def test_no_is_told_and_nothing_is_called(sessions: None) -> None:
    """A denied call raises in the cell, with who said no and why; the turn goes on."""
    s = cave.open("q3", skills=[post], operator=ScriptedOperator(["post(1)", Finish("sorry")]))
    s.ask("go")
    denied = s.deny(reason="too early")
    assert (denied.state, denied.said) == ("denied", "too early")
    turn = resumed(s)
    assert (turn.answer, posted) == ("sorry", [])
    error = fault(turn.steps[0].cell)
    assert error.name == "ApprovalDenied"
    assert "too early" in error.message


def test_edited_arguments_are_validated_and_taken(sessions: None) -> None:
    """Edits that the skill refuses are no answer; others take the place of the arguments, also
    of a call that the kernel runs, and also for a cell that a person ran."""
    s = cave.open("q3", skills=[post, weigh])
    cell = s.run("w = weigh(3), weigh(30)")
    assert fault(cell).name == "ApprovalRequired"
    with pytest.raises(cave.SkillError, match="'n' is 'much'"):
        s.approve(edits={"n": "much"})
    s.approve(edits={"n": 40})
    assert again(s).ok
    assert s["w"] == (6, 80)
    s.run("r = post(1)")
    s.approve(edits={"n": 5})
    assert again(s).ok
    assert (s["r"], posted) == (6, [5])
    assert s.history[2].effects[0].arguments == {"n": "5"}
    s.restart()
    assert s["r"] == 6


def test_a_yes_for_the_session_covers_later_calls(sessions: None) -> None:
    """Of that skill, as long as it is declared as it was."""
    s = cave.open("q3", skills=[post])
    s.run("post(1)")
    s.approve(scope="session")
    assert again(s).ok
    assert s.run("post(2); post(3)").ok
    assert posted == [1, 2, 3]


def test_a_live_host_goes_on_by_itself(sessions: None) -> None:
    """Who answers only records it; the process that has the session open continues, and its
    next resume() gives what came of it."""
    ended = threading.Event()
    s = cave.open("q3", skills=[post], operator=ScriptedOperator(["x = post(1)", Finish("done")]))
    s.ask("go")
    s._inner.listen(lambda event: ended.set() if event.type == "turn.finished" else None)
    s.approve()
    assert ended.wait(60)
    turn = resumed(s)
    assert (turn.status, posted, s["x"]) == ("done", [1], 2)
    assert s.resume() is None


def test_rules_hold_for_skills_and_cells(sessions: None) -> None:
    """What a rule denies is not called and does not run; what it asks about waits."""

    @cave.skill(effect="read", runs="host")
    def look(n: int, ctx: SkillContext) -> int:
        """Look."""
        return n

    rules: list[Any] = [
        cave.policy.Rule(decision="deny", skill="look", when=lambda call: call.arguments["n"] > 1),
        {"decision": "ask", "tier": "read"},
        {"decision": "deny", "module": "ftplib"},
        {"decision": "ask", "module": "colorsys"},
    ]
    s = cave.open("q3", skills=[look], policy=cave.Policy(rules=rules))
    assert fault(s.run("look(2)")).name == "PolicyViolation"
    assert fault(s.run("look(1)")).name == "ApprovalRequired"
    s.approve()
    assert again(s).ok
    cell = s.run("x = 1\nimport ftplib")
    assert (cell.status, fault(cell).name) == ("denied", "PolicyViolation")
    assert "x" not in s
    cell = s.run("import colorsys; y = 1")
    assert (cell.status, fault(cell).name) == ("denied", "ApprovalRequired")
    s.approve()
    after = again(s)
    assert (after.n, after.status, s["y"]) == (cell.n, "ok", 1)


def test_an_approver_of_the_users_own_answers(sessions: None) -> None:
    """Its yes lets the call through at once, its no denies, and what it raises does."""

    async def approver(asked: cave.Approval) -> bool | None:
        match asked.arguments["n"]:
            case "1":
                return True
            case "2":
                raise RuntimeError("out of office")
            case _:
                return None

    s = cave.open("q3", skills=[post], approver=approver)
    assert s.run("r = post(1)").ok
    assert "out of office" in fault(s.run("post(2)")).message
    assert fault(s.run("post(3)")).name == "ApprovalRequired"
    assert posted == [1]
    settled = [e for e in s.events() if isinstance(e, ApprovalSettled)]
    assert [e.state for e in settled] == ["approved", "denied"]
    assert {e.via for e in settled} == {"approver"}


def test_a_terminal_lists_and_answers_days_later(sessions: None) -> None:
    """Nobody has the session open when it is answered; who opens it next goes on, after a
    restore. The exit code says that it waits."""
    steps = ScriptedOperator(["t = 1", "t += 1; r = post(t)", Finish("done")])
    s = cave.open("q3", skills=[post], operator=steps)
    assert s.ask("go").status == "needs_approval"
    s.close()
    listed = command("approvals")
    assert "q3/a1  post(n=2)" in listed.stdout
    assert "cave approve q3/a1" in listed.stdout
    assert json.loads(command("approvals", "q3", "--json").stdout)[0]["arguments"] == {"n": "2"}
    assert "cave approve q3/a1" in command("show", "q3").stdout
    assert "waiting are q3/a1" in command("approve", "a7", code=2).stderr
    assert "is not JSON" in command("approve", "a1", "--edit", "n=x", code=2).stderr
    answered = json.loads(command("approve", "a1", "--json").stdout)
    assert (answered["state"], answered["via"]) == ("approved", "terminal")
    assert "waiting are none" in command("deny", "q3/a1", "--reason", "no", code=2).stderr
    assert "nothing waits" in command("approvals").stderr
    s = cave.open("q3", skills=[post], operator=steps)
    turn = resumed(s)
    assert (turn.status, turn.answer, posted, s["r"]) == ("done", "done", [2], 3)


def test_the_person_who_is_here_is_asked(
    sessions: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal a line answers and the turn goes on; an empty one leaves it waiting. A
    notebook's buttons record it once."""
    monkeypatch.setattr(leave, "place", lambda: "terminal")
    operator = ScriptedOperator(["post(1)", "post(2)", Finish("done")])
    s = cave.open("q3", skills=[post], operator=operator)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n\n"))
    turn = s.ask("go")
    assert (turn.status, posted) == ("needs_approval", [1])
    assert "approve a2?" in capsys.readouterr().err
    pressed: list[tuple[str, bool, str]] = []
    box = leave.buttons(s.approvals[0], lambda *said: pressed.append((said[0].id, *said[1:])))
    yes, _, told = box.children[1].children
    yes.click()
    assert (pressed, told.value) == ([("a2", True, "notebook")], "approved")
    assert yes.disabled
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\n"))
    turn = resumed(s)
    assert (turn.status, posted) == ("done", [1])
