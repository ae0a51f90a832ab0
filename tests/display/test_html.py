from __future__ import annotations

from html.parser import HTMLParser

import pytest

from cave.display import VarTable, mimebundle
from cave.errors import CellError
from cave.events import Delta, Output, Usage, Variable
from cave.history import History
from cave.turn import Cell, Step, Turn

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
VOID = {"img", "br", "hr"}


class Reader(HTMLParser):
    """Collects tags and attributes, and whether they are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(value: object) -> Reader:
    reader = Reader(mimebundle(value)["text/html"])
    assert not reader.open
    return reader


def evil() -> Turn:
    """A turn in which every text is an attack."""
    variable = Variable(EVIL, EVIL, (1, 2), summary=EVIL)
    outputs = (
        Output("stream", EVIL, EVIL),
        Output("display_data", data={"text/html": EVIL, "text/plain": EVIL, EVIL: EVIL}),
        Output("display_data", data={"image/png": EVIL, "image/svg+xml": EVIL}),
    )
    cell = Cell(
        1,
        EVIL,
        note=EVIL,
        status="error",
        outputs=outputs,
        error=CellError(EVIL, EVIL, EVIL),
        delta=Delta(added=(variable,), changed=(variable,), removed=(EVIL,)),
        full_size=10,
        bound=EVIL,
    )
    answer = f"{EVIL}\n\n[x](javascript:alert(1)) ![x](http://evil/x.png)\n\n`{EVIL}`"
    return Turn(1, EVIL, answer, steps=(Step(1, EVIL, cell),), reason=EVIL)


def test_no_text_becomes_markup() -> None:
    """Attacks in each field of a turn, a cell and a table are shown as text."""
    turn = evil()
    for value in (turn, turn.cells[0], turn.steps[0], VarTable(turn.cells[0].delta.added)):
        reader = read(value)
        assert "script" not in reader.tags
        assert "img" not in reader.tags
        assert not [name for name, _ in reader.attributes if name.startswith("on")]
        assert not [v for n, v in reader.attributes if n in {"src", "href"} and "java" in str(v)]


def test_html_of_a_kernel_is_not_injected(history: History) -> None:
    """A result's text/html stays out; its text/plain is shown."""
    shown = mimebundle(history.cells[1])["text/html"]
    assert "<td>2013" not in shown
    assert "year  month carrier" in shown


def test_a_turn_shows_request_steps_and_answer(history: History) -> None:
    """Prompt, a line for each cell with its note, the answer with its table."""
    shown = mimebundle(history.turns[1])["text/html"]
    assert "Which airline left latest on average?" in shown
    assert "Group by the column name instead." in shown
    assert "<strong>ExpressJet Airlines Inc.</strong>" in shown
    assert "<td>22.1</td>" in shown
    assert "3,293 tokens in, 190 out" in shown
    assert "KeyError: &#x27;airline&#x27;" in shown


def test_a_printed_answer_keeps_its_columns() -> None:
    """An answer that is what the last cell printed is no markdown."""
    cell = Cell(1, "print(x)", outputs=(Output("stream", "a  1%\nb *2*\n", "stdout"),))
    turn = Turn(1, "Which?", "a  1%\nb *2*", steps=(Step(1, "", cell),))
    assert '<div class="c-answer"><pre>a  1%\nb *2*</pre></div>' in mimebundle(turn)["text/html"]


def test_an_image_is_shown(history: History) -> None:
    """A PNG of a cell is an image with an address of its own."""
    sources = [v for n, v in read(history.cells[5]).attributes if n == "src"]
    assert len(sources) == 1
    assert str(sources[0]).startswith("data:image/png;base64,iVBOR")


def test_a_flood_stays_small() -> None:
    """Megabytes of text and thousands of outputs give a bounded page that names the rest."""
    outputs = tuple(Output("stream", "x" * 100_000, "stdout") for _ in range(1_000))
    shown = mimebundle(Cell(1, "y" * 1_000_000, outputs=outputs))["text/html"]
    assert len(shown) < 2_500_000
    assert "900 more outputs" in shown
    assert "of 100,000 characters left out" in shown


def test_light_and_dark_are_both_styled(history: History) -> None:
    """Colours follow JupyterLab's variables, then the system's scheme."""
    shown = mimebundle(history.turns[1])["text/html"]
    assert "prefers-color-scheme:dark" in shown
    assert "var(--jp-content-font-color1" in shown
    assert "http" not in shown


def test_a_streamed_turn_is_one_line(history: History) -> None:
    """What was shown while it ran is not shown again."""
    turn = Turn(1, "p", "Done.\nMore.", streamed=True)
    assert mimebundle(turn) == {"text/plain": "<Turn 1 done, 0 cells: Done.>"}


def test_values_show_themselves(history: History) -> None:
    """The values call this module for their representations."""
    turn = history.turns[1]
    for value in (turn, turn.steps[0], turn.cells[0]):
        assert set(value._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_session_shows_its_kernel_and_variables() -> None:
    """Name, kernel, profile, counts, what was spent, and the table."""

    class Kernel:
        pid, alive, profile = 4242, True, "open"

    class Session:
        name, kernel, turns, history = "q3<b>", Kernel(), [1], [1, 2]
        usage = Usage(input_tokens=1_200, output_tokens=30, model_calls=2, usd=1.5)
        vars = VarTable([Variable("df", "DataFrame", (3, 2), 5_000)])

    shown = mimebundle(Session())["text/html"]
    for text in ("q3&lt;b&gt;", "kernel 4242", "profile open", "1 turn<", "2 cells", "$1.50", "df"):
        assert text in shown


@pytest.mark.parametrize("value", [3, "x", None, object()])
def test_other_values_have_text_only(value: object) -> None:
    """What is not ours has its repr."""
    assert mimebundle(value) == {"text/plain": repr(value)}
