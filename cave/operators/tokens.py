"""Estimates of token counts, for operators whose provider counts none."""

from __future__ import annotations

import re

from cave.ports import View

_PIECE = re.compile(
    r"[A-Za-z]+|\d+|[^\S\n]{2,}|\n+|[^\sA-Za-z\d\x80-\U0010ffff]+|[\x80-\U0010ffff]"
)
MESSAGE_TOKENS = 4
"""What the frame of one message costs: role, begin, end."""


def estimate_tokens(text: str) -> int:
    """About how many tokens a byte-pair tokenizer makes of `text`.

    Counts pieces as such tokenizers cut them: a word of up to eight letters, two digits, a
    run of punctuation, a run of blanks, a character beyond ASCII.
    """
    return sum(map(_cost, _PIECE.findall(text)))


def _cost(piece: str) -> int:
    if piece.isalpha():
        return (len(piece) + 7) // 8
    if piece.isdigit():
        return (len(piece) + 1) // 2
    return 1 if piece.isspace() else (len(piece) + 1) // 2


def estimate_view(view: View) -> int:
    """About how many tokens the prompt made of `view` has."""
    return estimate_tokens(view.system) + sum(
        estimate_tokens(m.text) + estimate_tokens(m.note) + MESSAGE_TOKENS for m in view.messages
    )
