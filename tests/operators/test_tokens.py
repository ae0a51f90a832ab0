import pytest
from hypothesis import given
from hypothesis import strategies as st

from cave.events import Usage
from cave.operators.prices import context_window, usd
from cave.operators.tokens import estimate_tokens, estimate_view
from cave.ports import Message, View


@given(st.text(max_size=300), st.text(max_size=300))
def test_estimates_grow_with_the_text(one, other):
    """Every text has an estimate; more text is never less, and none is far off its length."""
    both = estimate_tokens(one + other)
    assert 0 <= both <= len(one) + len(other)
    assert estimate_tokens(one + "\n" + other) >= max(estimate_tokens(one), estimate_tokens(other))


def test_a_view_counts_all_that_is_shown():
    """System text, messages, notes and the frame of each message are counted."""
    bare = View("", (), 1, 1)
    full = View("Be brief.", (Message("cell", "x = 1", note="set x"),), 1, 1)
    assert estimate_view(bare) == 0
    assert estimate_view(full) > estimate_tokens("Be brief." + "x = 1" + "set x")


def test_prices_come_from_the_installed_package():
    """Tokens have the price of their kind; what is not known is None, never a guess."""
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    assert usd(usage, "claude-opus-5", "anthropic") == pytest.approx(30.0)
    assert usd(usage, "no-such-model", "anthropic") is None
    assert usd(usage, "m", "no-such-provider") is None
    assert context_window("claude-opus-5", "anthropic") == 1_000_000
    assert context_window("no-such-model", "anthropic") is None
