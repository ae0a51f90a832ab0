"""Effects in doubt as people see them."""

from __future__ import annotations

from cave.display import InDoubt, mimebundle
from cave.turn import Effect


def test_each_doubt_comes_with_what_to_type() -> None:
    """A table says what was called, when, where and what is known, and the three lines to type
    for it; what a call was given is text, in the notebook and in the terminal."""
    given = {"memo": "'<b>rent</b>\x1b[2J'"}
    doubts = InDoubt(
        (
            Effect("e3", "post", given, "k", "in_doubt", 4, reason="its process died", at=1.0),
            Effect("e4", "post", {}, "k", "in_doubt", 5, reason="done before", repeats="/e1"),
            Effect("e5", "unpost", {}, "k", "in_doubt", 0, reason="it hangs", undoes="e2"),
        )
    )
    bundle = mimebundle(doubts)
    for shown in bundle.values():
        assert "\x1b" not in shown
        assert "its process died" in shown
        assert "cell 4" in shown
        assert "undoes e2" in shown
    assert repr(doubts) == bundle["text/plain"]
    lines = [line.split("  #")[0].strip() for line in repr(doubts).splitlines()]
    assert [line for line in lines if line.startswith("s.")] == [
        "s.settle('e3', 'done', result=...)", "s.settle('e3', 'not_done')",
        "s.settle('e3', 'give_up')", "s.settle('e4', 'not_done')", "s.settle('e4', 'done')",
        "s.settle('e4', 'give_up')", "s.settle('e5', 'done')", "s.settle('e5', 'not_done')",
        "s.settle('e5', 'give_up')",
    ]  # fmt: skip
    assert "<b>rent" not in bundle["text/html"]
    assert "s.settle(&#x27;e3&#x27;, &#x27;give_up&#x27;)" in bundle["text/html"]
    assert repr(InDoubt()) == "(no effect is in doubt)"
