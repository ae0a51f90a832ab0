"""`done_when`: what has to hold at the end of a turn is looked at, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import cave
from cave import Check
from cave.errors import ConfigError
from cave.events import Checked
from cave.kernel import objects
from cave.testing import Finish, ScriptedOperator

pytestmark = pytest.mark.usefixtures("sessions")


def big(names: Mapping[str, Any]) -> bool:
    """The total is above ten."""
    return bool(names["total"] > 10)


def test_a_finish_that_fails_goes_back_with_what_failed() -> None:
    """The operator is told what has to hold, what does not, and is done when all does."""
    seen: list[str] = []

    def look(view: Any) -> str:
        seen.append("\n".join(message.text for message in view.messages))
        return "total = 12"

    operator = ScriptedOperator(["total = 3", Finish("3"), look, Finish("12")])
    s = cave.open("checks", operator=operator, done_when=["total % 2 == 0"])
    turn = s.ask("count", done_when=[Check(big, reward=10)])
    assert (turn.status, turn.answer, turn.reward) == ("done", "12", 11.0)
    assert [(r.name, r.passed, r.reward) for r in turn.checks] == [
        ("total % 2 == 0", True, 1.0),
        ("big", True, 10.0),
    ]
    (shown,) = seen
    assert "It is fulfilled when all of this holds:\n- total % 2 == 0\n- big: The total is" in shown
    assert "the request is not fulfilled yet; this does not hold:" in shown
    assert "total % 2 == 0: total % 2 is 1" in shown
    assert "big: it gives False" in shown
    first, second = [event for event in s.events() if isinstance(event, Checked)]
    assert [r.passed for r in first.results] == [False, False]
    assert [r.passed for r in second.results] == [True, True]
    assert s.ask("again").reward == 1.0


def test_the_same_failure_twice_waits_for_a_person() -> None:
    """It ends as needs_attention with what fails and the reward so far, and can be resumed."""
    steps = ["y = 1", Finish("a"), Finish("b"), "y = 2", Finish("c")]
    s = cave.open("twice", operator=ScriptedOperator(steps))
    turn = s.ask("do", done_when=["y == 2", Check("y", name="there", reward=0.5)])
    assert (turn.status, turn.reward) == ("needs_attention", 0.5)
    assert "y == 2: y is 1" in turn.reason
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert (turn.status, turn.answer, turn.reward) == ("done", "c", 1.5)


SETUP = """
import os, sqlite3, threading
import numpy as np, pandas as pd, sqlalchemy
out = pd.DataFrame({'id': [1, 2], 'ok': [True, True]})
array, xs, text = np.arange(4), [1], 'cave'
db = sqlite3.connect('rows.db')
db.execute('create table rows (n)')
db.execute('insert into rows values (1)')
db.commit()
engine = sqlalchemy.create_engine('sqlite:///rows.db')
open('there.txt', 'w').close()
"""
LOOKS: list[tuple[Any, bool, str]] = [
    ("list(out.columns) == ['id', 'ok']", True, ""),
    ("out", True, ""),
    ("array >= 0", True, ""),
    ("array > 0", False, "array is array([0, 1, 2, 3])"),
    ("out[['ok']]", True, ""),
    ("nothing", False, "NameError: name 'nothing' is not defined"),
    ("text", True, ""),
    ("text.startswith('x')", False, ""),
    ("array.sum() - 6", False, "it gives"),
    (Check(lambda names: names["xs"] == [1]), True, ""),
    (Check(lambda names: names["gone"]), False, "KeyError: 'gone'"),
    (Check.file("there.txt"), True, ""),
    (Check.file("not.txt"), False, "there is no file 'not.txt'"),
    (Check.sql("select n from rows where n > 1", on="db"), True, ""),
    (Check.sql("select n from rows", on="engine"), False, "it gives rows: (1,)"),
    (Check.sql("select n from rows", on="nowhere"), False, "there is no 'nowhere' to ask"),
    (Check.sql("with a as (select 1) delete from rows", on="db"), False, "readonly database"),
    # what would change the session, and what ends the process that looks
    ("xs.append(2) or xs == [1, 2]", True, ""),
    ("(text := 'x') == 'x'", True, ""),
    ("globals().clear() or True", True, ""),
    ("exec('xs.clear(); os.environ.clear()') is None", True, ""),
    ("print('seen') is None", True, ""),
    ("os._exit(3)", False, "it ended its process (exit status 3)"),
    ("os.kill(os.getpid(), 11)", False, "it ended its process (signal 11)"),
    ("threading.Event().wait()", False, "it did not end within 1 s"),
]


def test_checks_of_every_kind_tell_the_truth_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Expressions, functions, questions to databases, files; and what tries to do harm."""
    monkeypatch.setattr(objects, "_PATIENCE", 1.0)
    s = cave.open("kinds", operator=ScriptedOperator([]))
    s.run(SETUP).raise_for_error()
    pid = s.kernel.pid
    turn = s.ask("look", done_when=[check for check, _, _ in LOOKS])
    for result, (_, passed, message) in zip(turn.checks, LOOKS, strict=True):
        assert result.passed == passed, result
        assert message in result.message, result
        assert not (passed and result.message)
    assert s["xs"] == [1]
    assert s["text"] == "cave"
    assert s.run("print(db.execute('select count(*) from rows').fetchone()[0])").text == "1"
    assert s.run("print(os.environ['PATH'] != '')").text == "True"
    assert s.kernel.pid == pid


def test_beside_a_thread_checks_are_evaluated_in_the_kernel() -> None:
    """No child is forked then: the check has names of its own, and the truth is told."""
    s = cave.open("thread", operator=ScriptedOperator([]))
    s.run(
        "import threading, os\nstop = threading.Event()\n"
        "def work():\n    while not stop.wait(0.001): pass\n"
        "threading.Thread(target=work, daemon=True).start()\npid, x = os.getpid(), 1"
    ).raise_for_error()
    turn = s.ask("look", done_when="os.getpid() == pid and (x := 2) == 2")
    assert [r.passed for r in turn.checks] == [True]
    assert s["x"] == 1
    s.run("stop.set()")


def test_a_turn_of_another_process_knows_what_has_to_hold() -> None:
    """Expressions are in the journal; a function that is not there is a failure that says so."""
    s = cave.open("later", operator=ScriptedOperator(["total = 20", Finish("a"), Finish("b")]))
    s.ask("do", done_when=["total == 21", big])
    s._inner._functions.clear()  # as in another process
    s = cave.open("later", operator=ScriptedOperator([Finish("c")]))
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert [r.passed for r in turn.checks] == [False, False]
    assert "open the session with done_when=[...] again" in turn.checks[1].message
    s = cave.open("later", operator=ScriptedOperator(["total = 21", Finish("d")]), done_when=big)
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert (turn.status, turn.reward) == ("done", 2.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Check("x ="),
        lambda: Check("x = 1"),
        lambda: Check(3),  # type: ignore[arg-type]
        lambda: Check("x", reward=float("nan")),
        lambda: Check("x", name=" "),
        lambda: Check.sql("delete from rows", on="db"),
        lambda: Check.sql(" ", on="db"),
        lambda: Check.sql("select 1", on=3),
        lambda: Check.file(""),
        lambda: cave.open("no", done_when=4),
        lambda: cave.open("no", done_when=["x ="]),
    ],
)
def test_what_is_no_check_is_refused_at_once(make: Any) -> None:
    """A ConfigError, before anything is started."""
    with pytest.raises(ConfigError):
        make()


def test_checks_of_one_name_are_told_apart() -> None:
    """Two functions of one name are both looked at."""
    s = cave.open("same", operator=ScriptedOperator(["x = 1"]))
    turn = s.ask("do", done_when=[lambda names: names["x"] == 1, lambda names: names["x"] == 2])
    assert [r.passed for r in turn.checks] == [True, False]
    assert len({r.name for r in turn.checks}) == 2
