"""An estimate of token counts that costs next to nothing: it only steers what is left out."""

from __future__ import annotations

BYTES_PER_TOKEN = 3.5
"""Between prose (about 4.3) and code or tables (about 3) in byte-pair vocabularies."""


def estimate(text: str) -> int:
    """About how many tokens `text` has, rounded up."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return int(size / BYTES_PER_TOKEN) + (size > 0)
