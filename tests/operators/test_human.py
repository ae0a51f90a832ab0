import io
import sys

import pytest

from cave.errors import OperatorError
from cave.operators.human import HumanOperator
from cave.ports import Message, View

pytestmark = pytest.mark.anyio

ASK = View("", (Message("user", "?"),), turn=1, step=1)


def typing(*lines):
    """A person who types these lines and then ends the input; and the prompts they saw."""
    left, prompts = list(lines), []

    async def read(prompt):
        prompts.append(prompt)
        if not left:
            raise EOFError
        return left.pop(0)

    return HumanOperator(read), prompts


async def test_lines_until_an_empty_one_are_a_cell():
    """A cell ends at an empty line; the prompt shows where a cell begins."""
    operator, prompts = typing("for x in y:", "    print(x)", "", "z")
    reply = await operator.next(ASK, print)
    assert (reply.kind, reply.source) == ("cell", "for x in y:\n    print(x)")
    assert prompts == ["cell> ", "....> ", "....> "]
    assert (await operator.next(ASK, print)).source == "z"


async def test_the_person_ends_the_turn():
    """`/finish TEXT` is the answer; an empty line or the end of input ends without one."""
    operator, _ = typing("/finish all is well ", "")
    first, second, third = [await operator.next(ASK, print) for _ in range(3)]
    assert (first.kind, first.text) == ("finish", "all is well")
    assert (second.kind, second.text) == ("finish", "")
    assert (third.kind, third.text) == ("finish", "")


async def test_finish_inside_a_cell_is_code():
    """The command counts only where a cell begins, and only as a word of its own."""
    operator, _ = typing("x", "/finish", "", "/finished", "")
    assert (await operator.next(ASK, print)).source == "x\n/finish"
    assert (await operator.next(ASK, print)).source == "/finished"


async def test_without_a_terminal_it_says_so(monkeypatch):
    """Nobody can be asked when stdin is no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    with pytest.raises(OperatorError, match="needs a terminal") as caught:
        await HumanOperator().next(ASK, print)
    assert caught.value.reason == "missing"
