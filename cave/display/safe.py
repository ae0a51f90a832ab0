"""Making text of a kernel harmless: for terminals, for HTML, and for images in it."""

from __future__ import annotations

import base64
import binascii
import html
import re

from cave.events import clean
from cave.turn import plain

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""C0 and C1 controls but tab and newline; marks that turn the direction of text (UAX 9)."""

_MAGIC = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
IMAGE = 8_000_000
"""Bytes of base64 up to which an image is shown."""


def visible(text: str) -> str:
    """`text` for a terminal or an editor: no escape sequences, other controls written out."""
    return _CONTROLS.sub(lambda m: _written(m[0]), clean(plain(text)))


def _written(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def escaped(text: str) -> str:
    """`text` for HTML, between tags and inside quoted attributes."""
    return html.escape(visible(text), quote=True)


def image(mime: str, data: object) -> str | None:
    """A `data:` address of a PNG or JPEG that is one by its first bytes; else None."""
    if mime not in _MAGIC or not isinstance(data, str) or len(data) > IMAGE:
        return None
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    if not raw.startswith(_MAGIC[mime]):
        return None
    return f"data:{mime};base64,{base64.b64encode(raw).decode()}"
