from __future__ import annotations

from cave import stream
from cave.errors import CellError
from cave.events import Delta, Output, Variable
from cave.turn import Cell

FRAME = Variable("q3", "DataFrame", (10_432, 8), cell=12, summary="region str, amount f64")
TOTALS = Variable("totals", "dict", (4,), cell=12)
TRACEBACK = """\
---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
Cell In[3], line 1
----> 1 int("x")

ValueError: invalid literal for int() with base 10: 'x'

During handling of the above exception, another exception occurred:

KeyError                                  Traceback (most recent call last)
Cell In[3], line 4, in f(df)
      3     int("x")
----> 4     df["b"]

File ~/v/lib/python3.11/site-packages/pandas/core/frame.py:4090, in DataFrame.__getitem__(self)
   4089     return self._getitem_multilevel(key)
-> 4090 indexer = self.columns.get_loc(key)

KeyError: 'b'"""


def printed(text: str, name: str = "stdout") -> Output:
    return Output("stream", text, name)


def test_a_summary_is_one_line_of_facts() -> None:
    """Number, status, time, note, names that changed with their facts, size of the output."""
    cell = Cell(
        12,
        "...",
        note="Read\nthe quarter.",
        seconds=1.2,
        outputs=(printed("a\nb\nc\n"),),
        delta=Delta(added=(FRAME,), changed=(TOTALS,), removed=("tmp",)),
    )
    assert stream.summary(cell) == (
        "cell 12 ok 1.2s [Read the quarter.]: + q3 DataFrame 10,432x8 (region str, amount f64); "
        "~ totals dict len 4; - tmp; 3 lines printed"
    )


def test_a_summary_quotes_one_short_line() -> None:
    """A single short line of output is worth more than its count."""
    assert stream.summary(Cell(1, "", outputs=(printed("42\n"),))) == "cell 1 ok 0.0s: printed '42'"
    assert stream.summary(Cell(1, "")) == "cell 1 ok 0.0s"


def test_a_summary_stays_one_line_whatever_comes() -> None:
    """Newlines in notes, errors, names of types and facts do not make more lines."""
    odd = Variable("x", "My\nType", (1,), summary="a\n\nb")
    error = CellError("E", "one\ntwo\n" + "long " * 500)
    cell = Cell(1, "", note="a\nb", status="error", error=error, delta=Delta(added=(odd,) * 200))
    assert "\n" not in stream.summary(cell)
    assert len(stream.summary(cell)) < 2_000


def test_a_result_shows_head_and_tail_and_names_the_rest() -> None:
    """Output above the cap keeps head and tail, names its size and the variable that holds it."""
    text = "first\n" + "x" * 600_000 + "\nlast\n"
    shown = stream.result(
        Cell(7, "", outputs=(printed(text),), full_size=5_000_012, bound="_output_7")
    )
    assert len(shown) < 4_300
    assert "first" in shown
    assert "last" in shown
    assert "[... 4,996,012 of 5,000,012 characters left out ...]" in shown
    assert shown.endswith("(all 5,000,012 characters: variable _output_7)")


def test_a_result_says_what_changed() -> None:
    """Each name that was added, changed or removed has a line with its facts."""
    cell = Cell(12, "", delta=Delta(added=(FRAME,), changed=(TOTALS,), removed=("a", "b")))
    assert stream.result(cell).splitlines()[1:] == [
        "+ q3 DataFrame 10,432x8 (region str, amount f64)",
        "~ totals dict len 4",
        "- a, b",
    ]


def test_a_silent_cell_says_that_it_was_silent() -> None:
    """No output and no change are said, so that nobody waits for more."""
    assert stream.result(Cell(1, "")) == "cell 1 ok 0.0s\n(no output; no variable changed)"


def test_a_fault_shows_the_users_frames_and_its_last_line() -> None:
    """Frames of the user's code with their line, exceptions on the way, no library code."""
    cell = Cell(3, "", status="error", error=CellError("KeyError", "'b'", TRACEBACK))
    assert stream.result(cell).splitlines() == [
        "cell 3 error 0.0s",
        'Cell In[3], line 1: int("x")',
        "ValueError: invalid literal for int() with base 10: 'x' (led to the next)",
        'Cell In[3], line 4, in f(df): df["b"]',
        "KeyError: 'b'",
    ]


def test_a_wrong_name_shows_the_nearest_ones() -> None:
    """A NameError lists names of the namespace that are near; without one it says nothing."""
    names = {n: Variable(n, "int") for n in ("flights", "airlines", "x")}
    error = CellError("NameError", "name 'flight' is not defined")
    cell = Cell(1, "flight", status="error", error=error)
    assert stream.result(cell, variables=names).endswith("\n(names that are there: flights)")
    assert stream.result(cell).endswith("not defined")


def test_a_wrong_column_shows_the_nearest_ones() -> None:
    """A KeyError lists columns of the frames that the cell used: the near ones, else all."""
    names = {
        "df": Variable(
            "df", "DataFrame", (9, 3), summary="9x3 (dep_delay f64 ~1..9, dep time i64)"
        ),
        "other": Variable("other", "DataFrame", (9, 3), summary="9x3 (delay f64, b i64)"),
    }
    near = Cell(1, 'df["delay"]', status="error", error=CellError("KeyError", "'delay'"))
    assert stream.result(near, variables=names).endswith("(nearest columns of df: dep_delay)")
    far = Cell(1, 'df["zq"]', status="error", error=CellError("KeyError", "'zq'"))
    assert stream.result(far, variables=names).endswith("(columns of df: dep_delay, dep time)")


def test_a_plain_traceback_is_read_too() -> None:
    """What plain Python prints has the same frames; code of site-packages is left out."""
    plain = (
        "Traceback (most recent call last):\n"
        '  File "<cell 3>", line 2, in <module>\n'
        "    g()\n"
        '  File "/v/lib/python3.11/site-packages/m.py", line 9, in g\n'
        "    boom()\n"
        "ZeroDivisionError: division by zero"
    )
    error = CellError("ZeroDivisionError", "division by zero", plain)
    assert stream.result(Cell(3, "", status="error", error=error)).splitlines()[1:] == [
        'File "<cell 3>", line 2, in <module>: g()',
        "ZeroDivisionError: division by zero",
    ]


def test_a_deep_recursion_is_short() -> None:
    """A thousand frames of the user's code are cut to the innermost ones."""
    frame = "Cell In[1], line 2, in f()\n----> 2 f()\n\n"
    error = CellError("RecursionError", "too deep", frame * 1_000)
    lines = stream.result(Cell(1, "", status="error", error=error)).splitlines()
    assert len(lines) < 12
    assert lines[-1] == "RecursionError: too deep"


def test_escapes_and_rewritten_lines_do_not_reach_the_prompt() -> None:
    """Colours are dropped, and of a progress bar its last state is left."""
    bar = "".join(f"\r{n}%" for n in range(2_000)) + "\n"
    cell = Cell(1, "", outputs=(printed("\x1b[31mred\x1b[0m\n"), printed(bar, "stderr")))
    assert stream.result(cell) == "cell 1 ok 0.0s\noutput:\nred\n1999%"


def test_a_flood_of_new_names_is_cut() -> None:
    """Five thousand new variables cost a bounded number of tokens; the others are counted."""
    many = tuple(Variable(f"v{n}", "int", summary="value 1") for n in range(5_000))
    shown = stream.result(Cell(1, "", delta=Delta(added=many)))
    assert stream.estimate(shown) < 1_200
    assert "more: + v" in shown
    assert "and 4" in shown


def test_the_operator_is_told_what_a_cell_did_outside_of_the_namespace() -> None:
    """A line in the result and in the summary; what merely stays open is no news."""
    cell = Cell(1, "f()", observed=("wrote out.csv", "still open: log", "connected to 1.2.3.4:443"))
    line = "it also: wrote out.csv, connected to 1.2.3.4:443"
    assert line in stream.result(cell).splitlines()
    assert line in stream.summary(cell)
    assert "still" not in stream.result(cell) + stream.summary(cell)
