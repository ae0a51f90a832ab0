"""The lines of a traceback that help to mend a cell: the user's own frames."""

from __future__ import annotations

import re

FRAMES = 6
"""Frames of the user's code that are shown, the innermost ones."""

_HEADER = re.compile(r"^(?:Cell\b|File\b|Input\b|\s+File \")", re.ASCII)
_ARROW = re.compile(r"^\s*-+>\s*\d+\s?(.*)$")
_CODE = re.compile(r"^\s*(?:-+>)?\s*\d+(?:\s|$)")
_CHAINED = re.compile(r"^(?:During handling|The above exception)")
_FOREIGN = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen |<__array_function__|_cave_kernel"
    r"|^File \S+\.(?:pyx|pxi|pxd)\b"
)


def relevant(traceback: str) -> list[str]:
    """The user's frames of `traceback`, each with its line of code; not the exception itself.

    Reads what IPython and plain Python print. Frames of libraries are left out, since the
    operator cannot change them; exceptions that led to the last one keep their line.
    """
    kept: list[str] = []
    header: str | None = None
    for line in traceback.splitlines():
        if _HEADER.match(line):
            header = None if _FOREIGN.search(line) else line.strip()
            continue
        if _CHAINED.match(line):
            header = None
            kept.append(_before(traceback, line))
            continue
        code = _code_of(line)
        if header is not None and code:
            kept.append(f"{header.removesuffix(':')}: {code}")
            header = None
    return kept if len(kept) <= FRAMES else ["...", *kept[-FRAMES:]]


def _code_of(line: str) -> str:
    """The code on the line that a frame points to; nothing for its neighbours."""
    if arrow := _ARROW.match(line):
        return arrow[1].strip()
    return "" if _CODE.match(line) else line.strip() if line.startswith("    ") else ""


def _before(traceback: str, chained: str) -> str:
    """The exception that was being handled when the next one came."""
    before = traceback.partition(chained)[0].rstrip().rsplit("\n", 1)[-1]
    return f"{before.strip()[:300]} (led to the next)"
