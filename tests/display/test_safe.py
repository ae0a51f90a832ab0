from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from cave.display.safe import escaped, image, visible

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


def test_escape_sequences_do_not_reach_a_terminal() -> None:
    """Colours, titles, links and cut sequences are gone; the text stays."""
    colour, title = "\x1b[31mred\x1b[0m", "\x1b]0;title\x07a"
    link, cut = "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x9b2Jb \x1b["
    assert visible(f"{colour} {title} {link} {cut}") == "red a link b "


def test_marks_of_direction_are_written_out() -> None:
    """A text cannot show in another order than it has."""
    assert visible("a\u202eb\u2066c\u200f") == "a\\u202eb\\u2066c\\u200f"


@given(st.text(alphabet=st.characters(codec=None)))
def test_no_control_is_left(text: str) -> None:
    """Whatever comes, only newline and tab are left of the controls, and UTF-8 can write it."""
    shown = visible(text)
    assert not [c for c in shown if (c < " " or "\x7f" <= c <= "\x9f") and c not in "\n\t"]
    shown.encode("utf-8")


@given(st.text())
def test_nothing_is_markup(text: str) -> None:
    """Escaped text has no tag and closes no attribute."""
    assert not set(escaped(text)) & set("<>\"'")


def test_only_images_are_images() -> None:
    """PNG and JPEG by their first bytes; no SVG, nothing that is not base64, nothing else."""
    assert image("image/png", PNG) == f"data:image/png;base64,{PNG}"
    assert image("image/png", base64.b64encode(b"<svg onload=x>").decode()) is None
    assert image("image/png", PNG + '" onerror="x') is None
    assert image("image/svg+xml", PNG) is None
    assert image("image/png", {"a": 1}) is None
    assert image("image/png", "A" * 9_000_000) is None
