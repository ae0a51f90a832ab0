"""The fence parser: what a model without tool use means, read from its fenced code.

The parser is incremental (any chunking gives what the whole text gives) and total (every
text has a reading, none raises). It works line by line, so that only complete lines decide.

- One Python block (```` ```python ````, `py`, no label, or `~~~`) is a cell; the first
  sentence before it is the note.
- No block of code is an answer; nothing at all is malformed.
- Two Python blocks, a block that is not closed, a block opened inside another, an empty
  one, and a lone block of another language are malformed: nothing is run by guess.
- A fence inside a triple-quoted string belongs to the string; a longer fence outside holds
  shorter ones inside (CommonMark 0.31, section 4.5).
- `<think>...</think>` is left out, also where the opening tag was part of the prompt.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field

from cave.events import clean
from cave.ports import Reply

PYTHON = frozenset({"", "py", "py3", "python", "python3", "ipython", "ipython3"})
"""Labels of fences that hold a cell."""

PROGRAMS = frozenset(
    {"bash", "cmd", "console", "javascript", "js", "powershell", "r", "sh", "shell", "sql", "zsh"}
)
"""Labels that mean "run this" in a language that the session does not run."""

_OPENING = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)$")
_THINK = re.compile(r"\s*<(think|thinking)>", re.IGNORECASE)
_THOUGHT = re.compile(r"</(think|thinking)>", re.IGNORECASE)
_TRIPLE = {'"""': re.compile(r'(?:\\.|[^\\])*?"""'), "'''": re.compile(r"(?:\\.|[^\\])*?'''")}
_LEXEME = re.compile(
    r"""(?P<comment>\#.*)|(?P<triple>\"{3}|'{3})"""
    r"""|"(?:\\.|[^"\\])*(?:"|$)|'(?:\\.|[^'\\])*(?:'|$)|[^"'\#]+"""
)
_SENTENCE = re.compile(r"(?:[.!?](?=\s|$)|:\s*$|\n\s*\n)", re.MULTILINE)


@dataclass(slots=True)
class _Block:
    """One fenced block while it is read."""

    fence: str
    indent: int
    label: str
    lines: list[str] = field(default_factory=list)
    quote: str = ""
    """The delimiter of the triple-quoted string that is open, or nothing."""
    nested: bool = False
    """Whether another block was opened inside, outside of any string."""

    @property
    def source(self) -> str:
        return "\n".join(self.lines).strip("\n").rstrip()

    def closed_by(self, line: str) -> bool:
        """Whether `line` is the closing fence of this block."""
        bare = line.strip()
        depth = len(line) - len(line.lstrip())
        return (
            not self.quote
            and len(bare) >= len(self.fence)
            and not bare.strip(self.fence[0])
            and depth <= self.indent + 3
        )

    def add(self, line: str) -> None:
        """Take one more line of content."""
        if self.label in PYTHON:
            opening = None if self.quote else _OPENING.match(line)
            if opening and len(opening["fence"]) >= len(self.fence):
                self.nested = True
            self.quote = _open_quote(line, self.quote)
        margin = len(line) - len(line.lstrip(" \t"))
        self.lines.append(line[min(margin, self.indent) :])


def _open_quote(line: str, quote: str) -> str:
    """The triple quote that is open after `line`, when `quote` was open before it."""
    at = 0
    while at < len(line):
        if quote:
            end = _TRIPLE[quote].match(line, at)
            if end is None:
                return quote
            quote, at = "", end.end()
            continue
        lexeme = _LEXEME.match(line, at)
        if lexeme is None:
            return ""
        quote, at = lexeme["triple"] or "", lexeme.end()
    return quote


class FenceParser:
    """Reads one reply: `feed` its pieces, then `close` for what it means."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._raw: list[str] = []
        self._tail = ""
        self._shown = 0
        self._prose: list[str] = []
        self._before: str | None = None
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._thinking = False

    def feed(self, chunk: str | bytes) -> str:
        """Take a piece; returns the prose that is certain by now and was not returned yet."""
        text = self._decoder.decode(chunk) if isinstance(chunk, bytes) else clean(chunk)
        self._raw.append(text)
        *lines, self._tail = (self._tail + text).split("\n")
        return "".join(map(self._line, lines)) + self._certain()

    def close(self) -> Reply:
        """What the whole reply means. Call it once, after the last piece."""
        last = self._tail + self._decoder.decode(b"", final=True)
        self._tail = ""
        if last:
            self._line(last)
        return self._reading()

    def _certain(self) -> str:
        """The part of an unfinished line that can be nothing but prose."""
        text = self._tail.rstrip("\r")
        start = text.lstrip()[:1]
        if self._thinking or self._open or not start or start in "`~<":
            return ""
        fresh, self._shown = text[self._shown :], max(self._shown, len(text))
        return fresh

    def _line(self, line: str) -> str:
        line = line.removesuffix("\r")
        shown, self._shown = self._shown, 0
        if self._open:
            self._inside(self._open, line)
            return ""
        if self._thinking:
            return self._thought(line)
        if thinking := _THINK.match(line):
            self._thinking = True
            return self._thought(line[thinking.end() :])
        if (end := _THOUGHT.match(line.lstrip())) is not None:
            return self._forget(line.lstrip()[end.end() :])
        if opening := _OPENING.match(line):
            self._begin(opening)
            return ""
        self._prose.append(line)
        return line[shown:] + "\n"

    def _inside(self, block: _Block, line: str) -> None:
        if not block.closed_by(line):
            block.add(line)
            return
        self._open = None
        if block.label not in PYTHON:
            self._prose += [block.fence + block.label, *block.lines, block.fence]

    def _thought(self, line: str) -> str:
        end = _THOUGHT.search(line)
        if end is None:
            return ""
        self._thinking = False
        rest = line[end.end() :]
        return self._line(rest) if rest else ""

    def _forget(self, rest: str) -> str:
        """All until here was thought, begun in the prompt."""
        self._prose, self._blocks, self._before = [], [], None
        return self._line(rest) if rest else ""

    def _begin(self, opening: re.Match[str]) -> None:
        words = opening["info"].strip().strip("{}.").split()
        label = words[0].lower().strip("{}.,:") if words else ""
        self._open = _Block(opening["fence"], len(opening["indent"]), label)
        self._blocks.append(self._open)
        if self._before is None and label in PYTHON:
            self._before = "\n".join(self._prose)

    def _reading(self) -> Reply:
        code = [b for b in self._blocks if b.label in PYTHON]
        text = "\n".join(self._prose).strip()
        if fault := self._fault(code, text):
            return Reply("malformed", text=fault, raw="".join(self._raw))
        if code:
            return Reply("cell", source=code[0].source, note=first_sentence(self._before or ""))
        return Reply("finish", text=text)

    def _fault(self, code: list[_Block], text: str) -> str:
        if self._open:
            return "The code block is not closed, so nothing was run. Send one complete block."
        if any(b.nested for b in code):
            return "A code block opens inside another one. Send one block only."
        if len(code) > 1:
            return f"The reply has {len(code)} Python blocks and none was run. Send one cell."
        if code and not code[0].source:
            return "The code block is empty. Send one cell with code, or the answer as text."
        other = next((b.label for b in self._blocks if b.label in PROGRAMS), "")
        if other and not code:
            return f"Only Python is run here, not {other}. Send one Python block."
        if not code and not text:
            return "The reply is empty. Send one Python block, or the answer as text."
        return ""


def parse(text: str) -> Reply:
    """What a whole reply means."""
    parser = FenceParser()
    parser.feed(text)
    return parser.close()


def first_sentence(text: str, limit: int = 200) -> str:
    """The first sentence of `text` on one line, without Markdown marks at its start."""
    text = text.strip().lstrip("#*->` ").strip()
    end = _SENTENCE.search(text)
    line = " ".join((text[: end.end()] if end else text).split()).rstrip(":").strip("*` ")
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
