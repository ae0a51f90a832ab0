"""The semantic stream: all that the operator sees, as a pure function of a journal's fold.

`view` makes it for the open turn. Objects stay in the kernel; what crosses into the prompt
are facts of them (names, types, shapes, columns, a sample), so that its size follows the
work and not the rows. Everything before the last call's result is byte for byte what the
call before was shown, which is what lets providers answer from their prompt caches.
"""

from __future__ import annotations

from cave.stream.cells import result, summary
from cave.stream.facts import describe, digest
from cave.stream.prompt import SYSTEM, view
from cave.stream.tokens import estimate

__all__ = ["SYSTEM", "describe", "digest", "estimate", "result", "summary", "view"]
