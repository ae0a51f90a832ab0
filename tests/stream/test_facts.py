from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cave import stream
from cave.events import Delta, Variable
from cave.stream.facts import changes
from cave.turn import clip


def test_a_variable_is_described_by_facts() -> None:
    """Name, type, shape in a readable form, and the facts that the kernel gave."""
    frame = Variable("df", "DataFrame", (1_000_000, 8), summary="a i64")
    assert stream.describe(frame) == "df DataFrame 1,000,000x8 (a i64)"
    assert stream.describe(Variable("xs", "list", (3,))) == "xs list len 3"
    assert stream.describe(Variable("n", "int", (), summary="5")) == "n int (5)"


def test_a_shape_is_said_once() -> None:
    """Where the kernel's facts begin with the shape, it is not repeated."""
    frame = Variable("df", "DataFrame", (6_104, 2), summary="6,104x2 (year i64, carrier str)")
    assert stream.describe(frame) == "df DataFrame 6,104x2 (year i64, carrier str)"
    xs = Variable("xs", "list", (3,), summary="3 of int: 1, 2, 3")
    assert stream.describe(xs) == "xs list len 3 (of int: 1, 2, 3)"


def test_the_digest_begins_with_the_most_recent() -> None:
    """The names that were set last come first; what was put keeps its place in time."""
    variables = [
        Variable("put", "int"),
        Variable("old", "int", cell=1),
        Variable("new", "int", cell=9),
        Variable("put_late", "int"),
        Variable("mid", "int", cell=5),
    ]
    order = [line.split()[0] for line in stream.digest(variables).splitlines()]
    assert order == ["put_late", "new", "mid", "old", "put"]


def test_the_digest_begins_with_what_the_request_names() -> None:
    """A variable that the request names comes first, then one with such a column."""
    variables = [
        Variable("sales_2024", "DataFrame", cell=1),
        Variable("df", "DataFrame", cell=2, summary="9x1 (carrier str)"),
        Variable("new", "int", cell=9),
    ]
    text = stream.digest(variables, words="Join sales_2024 with each Carrier.")
    assert [line.split()[0] for line in text.splitlines()] == ["sales_2024", "df", "new"]


def test_a_change_says_what_differs() -> None:
    """What differs follows the facts; another name of a known object has no facts again."""
    frame = Variable("df", "DataFrame", (3, 1), summary="3x1 (a i64)", change="rows 2 -> 3")
    alias = Variable("b", "DataFrame", (3, 1), summary="3x1 (a i64)", change="is df")
    lines = changes(Delta(added=(alias,), changed=(frame,)))
    assert lines == ["+ b is df", "~ df DataFrame 3x1 (a i64) [rows 2 -> 3]"]


def test_the_digest_says_what_it_left_out() -> None:
    """Within its limit of tokens; the others by name, and the last of those by number."""
    variables = [Variable(f"v{n}", "int", cell=n, summary="x" * 50) for n in range(1, 201)]
    text = stream.digest(variables, 200)
    assert stream.estimate(text) < 350
    assert text.startswith("v200 int")
    assert "(left out here: " in text
    assert text.endswith("more)")


def test_one_wide_variable_is_never_left_out() -> None:
    """The first variable is shown even where it passes the limit by itself."""
    assert stream.digest([Variable("df", "DataFrame", summary="x" * 900)], 10).startswith("df")


@given(st.text(max_size=400))
def test_the_estimate_is_total(text: str) -> None:
    """Any text has an estimate, zero for nothing, and more for more."""
    assert stream.estimate(text) >= bool(text)
    assert stream.estimate(text + "more words") > stream.estimate(text)


@given(st.text(min_size=0, max_size=5_000), st.integers(30, 400))
def test_a_clipped_text_is_near_its_limit(text: str, limit: int) -> None:
    """Clipping keeps the beginning and the end, and adds no more than its marker."""
    short = clip(text, limit)
    assert len(short) <= limit + 60
    assert short.startswith(text[: limit // 2])
