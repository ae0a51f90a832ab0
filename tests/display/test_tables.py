from __future__ import annotations

import pytest

from cave.display import VarTable, mimebundle
from cave.display.tables import fitted, size
from cave.events import Variable

DF = Variable("df", "DataFrame", (10_432, 8), 224_000, 3, "volatile", "region str, amount f64")
NAME = Variable("name", "str", None, 54, None, "volatile", "'日本'")


def test_a_table_is_a_list_of_variables() -> None:
    """Length, order, indexing by place, slice and name, membership by name and by row."""
    table = VarTable(v for v in (DF, NAME))
    assert len(table) == 2
    assert list(table) == [DF, NAME]
    assert table.names == ["df", "name"]
    assert table[0] is table["df"] is DF
    assert table[-1:] == VarTable([NAME])
    assert "df" in table
    assert NAME in table
    assert "other" not in table
    assert 3 not in table
    with pytest.raises(KeyError, match="other"):
        table["other"]


def test_the_text_is_aligned() -> None:
    """One header and one line a variable, numbers to the right, wide characters counted."""
    assert repr(VarTable([DF, NAME])).splitlines() == [
        "name  type            shape    size  cell  fidelity  summary",
        "df    DataFrame  10,432 x 8  224 kB     3  volatile  region str, amount f64",
        "name  str                      54 B        volatile  '日本'",
    ]
    assert repr(VarTable([])) == "(no variables)"


def test_no_field_breaks_the_table() -> None:
    """Newlines, escape sequences and long texts stay within their line."""
    odd = Variable("x", "a\nb", summary="\x1b[2Jgone\n" * 500)
    lines = repr(VarTable([odd])).splitlines()
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
    assert len(lines[1]) < 150


def test_the_html_has_a_row_for_each() -> None:
    """Up to two hundred rows; the number of the others is said."""
    shown = mimebundle(VarTable([DF] * 300))["text/html"]
    assert shown.count("<tr>") == 201
    assert "100 more variables" in shown


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (80_000_000, "80 MB"), (5e15, "5000.0 TB")],
)
def test_sizes_are_readable(count: int, said: str) -> None:
    """Bytes in the unit that people use."""
    assert size(count) == said


def test_a_terminal_gets_lines_that_fit() -> None:
    """Each line ends at the edge, wide characters counted; without a width all of it stands."""
    assert fitted("abcdefgh\nabc", 6) == "abc...\nabc"
    assert fitted("日本日本日本", 8) == "日本..."
    assert fitted("abcdefgh", 8) == "abcdefgh"
    assert fitted("x" * 500, None) == "x" * 500
