import pytest

from cave.errors import ConfigError, OperatorError
from cave.operators.scripted import from_file
from cave.ports import Message, View
from cave.testing import Finish, ScriptedOperator


def view(text="hello", **fields):
    return View("system", (Message("user", text),), turn=1, step=1, **fields)


def drop(text):
    """Where streamed text goes that no one looks at."""


async def replies(operator, count):
    return [await operator.next(view(), drop) for _ in range(count)]


pytestmark = pytest.mark.anyio


async def test_each_form_of_step_gives_its_reply():
    """A source and a pair are cells, Finish ends the turn with its answer."""
    operator = ScriptedOperator(["x = 1", ("say it", "print(x)"), Finish("done")])
    first, second, third = await replies(operator, 3)
    assert (first.kind, first.source, first.note) == ("cell", "x = 1", "")
    assert (second.kind, second.source, second.note) == ("cell", "print(x)", "say it")
    assert (third.kind, third.text) == ("finish", "done")


async def test_functions_see_the_view():
    """A function is called with the view, may be async, and may give another function."""

    async def later(seen):
        return f"print({seen.messages[0].text!r})"

    operator = ScriptedOperator([later, lambda _v: lambda _w: ("n", "y")])
    first, second = await replies(operator, 2)
    assert first.source == "print('hello')"
    assert (second.note, second.source) == ("n", "y")


async def test_a_used_up_script_ends_every_turn():
    """After the last step each turn ends with `answer`; without one the text is empty."""
    spent = await replies(ScriptedOperator([], answer="all done"), 2)
    assert [(r.kind, r.text) for r in spent] == [("finish", "all done")] * 2
    [bare] = await replies(ScriptedOperator([]), 1)
    assert (bare.kind, bare.text) == ("finish", "")


async def test_a_function_in_place_of_the_list_decides_every_step():
    """One function serves all steps and ends the turn by giving None."""
    operator = ScriptedOperator(lambda v: None if v.variables else "x = 1")
    assert [r.kind for r in await replies(operator, 2)] == ["cell", "cell"]
    assert (await operator.next(view(variables=("x",)), drop)).kind == "finish"


async def test_usage_is_the_estimate_of_the_prompt():
    """A longer prompt is reported as more tokens, marked as estimated, at no cost."""
    operator = ScriptedOperator(["x = 1", "x = 1"])
    short = (await operator.next(view("a b"), drop)).usage
    long = (await operator.next(view("a b " * 100), drop)).usage
    assert 0 < short.input_tokens < long.input_tokens
    assert (short.estimated, short.model_calls, short.usd) == (True, 1, 0.0)


async def test_what_is_said_streams():
    """Notes and answers reach `on_text`; code does not."""
    heard = []
    operator = ScriptedOperator([("look", "df"), "x", Finish("bye")])
    for _ in range(3):
        await operator.next(view(), heard.append)
    assert heard == ["look", "bye"]


async def test_a_failing_step_is_an_operator_error():
    """An exception of a step is told with the step's name and kept as the cause."""

    def broken(v):
        raise ZeroDivisionError("no")

    with pytest.raises(OperatorError, match="'broken' raised ZeroDivisionError: no") as caught:
        await replies(ScriptedOperator([broken]), 1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(OperatorError, match="gave 7"):
        await replies(ScriptedOperator([lambda _: 7]), 1)


@pytest.mark.parametrize("steps", [[7], ["x", ("a", "b", "c")], [["n", "x"]], "x = 1", 5])
async def test_wrong_steps_are_refused_at_once(steps):
    """What is no step is a ConfigError when the operator is made, not when it is used."""
    with pytest.raises(ConfigError, match=r"steps? "):
        ScriptedOperator(steps)


async def test_a_script_file_defines_steps_and_answer(tmp_path):
    """`steps` and `answer` of the file are taken, with Finish at hand."""
    file = tmp_path / "play.py"
    file.write_text("steps = ['x = 1', Finish('a')]\nanswer = 'b'\n")
    operator = from_file(file)
    assert operator.name == f"script:{file}"
    assert [(r.source or r.text) for r in await replies(operator, 3)] == ["x = 1", "a", "b"]


async def test_bad_script_files_say_what_to_write(tmp_path):
    """A missing file, one without steps and one that fails are told apart."""
    with pytest.raises(ConfigError, match="no script at"):
        from_file(tmp_path / "none.py")
    file = tmp_path / "play.py"
    file.write_text("pass\n")
    with pytest.raises(ConfigError, match="add: steps = "):
        from_file(file)
    file.write_text("1 / 0\n")
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        from_file(file)
