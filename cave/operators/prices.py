"""What model calls cost, from the data that the package genai-prices carries.

Nothing is fetched: prices are those of the installed release.
"""

from __future__ import annotations

import functools

from cave.events import Usage


def usd(usage: Usage, model: str, provider: str) -> float | None:
    """US dollars for the tokens of `usage`, or None where the price is not known."""
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    tokens = Tokens(
        input_tokens=read,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(calc_price(tokens, model, provider_id=provider).total_price)
    except LookupError:
        return None


@functools.cache
def context_window(model: str, provider: str) -> int | None:
    """How many tokens `model` reads at once, where that is known."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, info = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    return info.context_window
