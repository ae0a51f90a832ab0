"""Redaction: secrets are masked before anything is journaled, shown, or sent to a model.

A `Redactor` knows values and patterns. A value is found as it stands and in the forms that
text commonly carries it in: base64 (also within a longer text, at each of its three
alignments), URL-safe base64, hexadecimal, URL-quoted, JSON-escaped. All forms are one regular
expression, whose literals share prefixes, so a text is walked once. A `Masker` does the same
for a text that comes in pieces and holds back no more than may be the beginning of a secret.

What is not found: a secret in another encoding, cut by other text, or spelt backwards.
"""

from __future__ import annotations

import base64
import bisect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

from cave.errors import ConfigError
from cave.inkernel import discreet
from cave.policy.sifting import Sieve

SHORTEST = 6
"""Characters that a value must have: shorter ones would mask ordinary words and numbers."""

LONG = 1 << 12
"""Characters from which on a text is sifted first."""

LONGEST_MATCH = 4096
"""Characters of a match of a pattern that are found across two pieces of a stream."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shape of a secret. In a stream, a text that begins with one of `leads` and goes on
    with `inside` (a class of characters) until its end waits for what comes next. Without
    leads every text is searched.
    """

    regex: str
    leads: tuple[str, ...] = ()
    inside: str = r"\S"


PATTERNS: Mapping[str, Pattern] = {
    shape.name: Pattern(shape.regex, shape.leads, shape.inside) for shape in discreet.SHAPES
}
"""Well-known shapes of secrets."""


def forms(value: str) -> set[str]:
    """The ways in which a text may carry `value`."""
    return {text for text in _written(value).values() if len(text) >= SHORTEST}


def encodings(value: str) -> dict[str, bytes]:
    """The ways in which bytes may carry it, each under a name of its own."""
    found = {name: text.encode("utf-8", "surrogatepass") for name, text in _written(value).items()}
    for wide in ("utf-16-le", "utf-32-le"):
        found[wide] = value.encode(wide, "surrogatepass")
    return {name: there for name, there in found.items() if len(there) >= SHORTEST}


def _written(value: str) -> dict[str, str]:
    data = value.encode("utf-8", "surrogatepass")
    quoted = {"quoted": quote(data, safe=""), "path": quote(data), "form": quote_plus(data)}
    return {
        "plain": value,
        **quoted,
        **{f"{n} lower": re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), t)
           for n, t in quoted.items()},
        "json": json.dumps(value)[1:-1],
        "json letters": json.dumps(value, ensure_ascii=False)[1:-1],
        "repr": repr(value)[1:-1],
        "repr of bytes": repr(data)[2:-1],
        "hex": data.hex(),
        "hex upper": data.hex().upper(),
        **dict(_in_base64(data)),
    }  # fmt: skip


def _in_base64(data: bytes) -> Iterator[tuple[str, str]]:
    """The letters that are the same whatever stands before and behind, at each alignment."""
    for shift in range(3):
        whole = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        first = (0, 2, 3)[shift]  # letters that bits of what is before reach into
        last = (shift + len(data)) * 8 // 6
        yield f"base64 {shift}", whole[first:last]
        yield f"base64 {shift} urlsafe", whole[first:last].translate(_URLSAFE)


_URLSAFE = str.maketrans("+/", "-_")


class Redactor:
    """Masks secrets in texts and values. `add` may be called at any time."""

    def __init__(
        self,
        secrets: Iterable[tuple[str, str]] = (),
        *,
        patterns: Mapping[str, Pattern | str] = PATTERNS,
    ) -> None:
        self._forms: dict[str, str] = {}
        self._patterns = {
            name: Pattern(given) if isinstance(given, str) else given
            for name, given in patterns.items()
        }
        self._shapes = [(name, _checked(name, p)) for name, p in self._patterns.items()]
        for name, value in secrets:
            self.add(name, value)
        self._prepare()

    def __repr__(self) -> str:
        return f"<Redactor of {', '.join(sorted(set(self._forms.values()))) or 'patterns alone'}>"

    def add(self, name: str, value: str) -> None:
        """Mask `value` from now on. Raises `ConfigError` when it is too short to be told apart."""
        if len(value.strip()) < SHORTEST:
            raise ConfigError(
                f"secret {name!r} has less than {SHORTEST} characters: masking it would mask "
                f"ordinary text; choose a longer one"
            )
        for text in forms(value):
            self._forms.setdefault(text, name)
        self._stale = True

    def _prepare(self) -> None:
        patterns = self._patterns.values()
        self._leads = [lead for p in patterns for lead in p.leads]
        begins = [*self._forms, *self._leads]
        self._begins = sorted(begins)
        self._firsts = {text[0] for text in begins}
        self._longest = max(map(len, begins), default=0)
        self._heads = sorted({text[:SHORTEST] for text in self._forms})
        self._words = re.compile(_trie(self._forms)) if self._forms else _NOTHING
        self._shape = _any_of(p.regex for p in patterns)
        self._regex = _any_of(([_trie(self._forms)] if self._forms else [])
                              + [p.regex for p in patterns])  # fmt: skip
        self._sieve: Sieve | None = None
        opened = (f"{re.escape(lead)}{p.inside}{{0,{LONGEST_MATCH}}}"
                  for p in patterns for lead in p.leads)  # fmt: skip
        self._open = re.compile(f"(?:{'|'.join(opened)})\\Z") if self._leads else _NOTHING
        self._subsets: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._stale = False

    def _shapes_in(self, text: str) -> re.Pattern[str]:
        """What finds the shapes in a text: those whose lead it has."""
        there = tuple(
            p.regex
            for p in self._patterns.values()
            if not p.leads or any(lead in text for lead in p.leads)
        )
        if (known := self._subsets.get(there)) is None:
            known = self._subsets[there] = _any_of(there) if there else _NOTHING
        return known

    def _found(self, text: str) -> Iterator[re.Match[str]]:
        """Each secret in it, in order."""
        if self._stale:
            self._prepare()
        shapes = self._shapes_in(text)
        if self._forms and len(text) >= LONG:
            return self._sifted(text, shapes)
        if any(head in text for head in self._heads):
            return self._regex.finditer(text)
        return iter(()) if shapes is _NOTHING else shapes.finditer(text)

    def mask(self, text: str) -> str:
        """`text` with `[secret NAME]` in place of each."""
        pieces, done = [], 0
        for match in self._found(text):
            pieces += [text[done : match.start()], f"[secret {self._named(match)}]"]
            done = match.end()
        return "".join([*pieces, text[done:]]) if done else text

    def _sifted(self, text: str, shapes: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """The matches of a long text: what `finditer` of all would give, sooner."""
        if self._sieve is None:
            self._sieve = Sieve(self._forms)
        shape, done = shapes.search(text), 0
        for place in self._sieve.places(text):
            if place < done or (word := self._words.match(text, place)) is None:
                continue
            while shape is not None and shape.start() < place:
                yield shape
                done = shape.end()
                shape = shapes.search(text, done)
            if place >= done:
                yield word
                done = word.end()
                if shape is not None and shape.start() < done:
                    shape = shapes.search(text, done)
        while shape is not None:
            yield shape
            shape = shapes.search(text, shape.end())

    def _named(self, match: re.Match[str]) -> str:
        if (name := self._forms.get(match[0])) is not None:
            return name
        return next(
            name for name, shape in self._shapes if shape.match(match.string, match.start())
        )

    def holds(self, text: str) -> bool:
        """Whether a secret is in it."""
        return next(self._found(text), None) is not None

    def waits(self, text: str) -> int:
        """How many of the last characters may be the beginning of a secret."""
        if self._stale:
            self._prepare()
        start = len(text)
        for at in range(max(0, start - self._longest + 1), start):
            if text[at] in self._firsts and self._begins_with(text[at:]):
                start = at
                break
        tail = text[-LONGEST_MATCH:]
        if any(lead in tail for lead in self._leads) and (opened := self._open.search(tail)):
            start = min(start, len(text) - len(tail) + opened.start())
        if start == len(text):
            return 0
        for match in self._regex.finditer(text, max(0, start - LONGEST_MATCH - self._longest)):
            if match.start() < start < match.end():
                return len(text) - match.end()  # one that is all there is not cut
            if match.start() >= start:
                break
        return len(text) - start

    def across(self, text: str, at: int) -> tuple[str, int]:
        """The name and the end of the secret that lies on both sides of `at`; no name and `at`
        where none does."""
        for match in self._found(text):
            if match.start() < at < match.end():
                return self._named(match), match.end()
        return "", at

    def _begins_with(self, text: str) -> bool:
        at = bisect.bisect_left(self._begins, text)
        return at < len(self._begins) and self._begins[at].startswith(text)

    def mask_value(self, value: Any) -> Any:
        """A JSON value with every text in it masked, keys too; what is clean stays itself."""
        match value:
            case str():
                return self.mask(value)
            case Mapping():
                return {self.mask_value(k): self.mask_value(v) for k, v in value.items()}
            case list():
                return [self.mask_value(item) for item in value]
            case tuple():
                return tuple(self.mask_value(item) for item in value)
            case _:
                return value

    def mask_bytes(self, data: bytes) -> bytes:
        """UTF-8 text masked; other bytes stay as they are."""
        return self.mask(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def masker(self) -> Masker:
        """A `Masker` for one stream."""
        return Masker(self)


class Masker:
    """Masks a text that comes in pieces, whichever way it was cut.

    What comes in goes out at once, but for an end that may be the beginning of a secret: that
    waits for the next piece, or for `end`. It is shorter than the longest form of a secret, or
    than `LONGEST_MATCH` where it has begun as a pattern does. When more comes after an `end`
    that gave out the beginning of a secret, what is left of that secret is masked.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._given = ""
        """What the last `end` gave out."""

    @property
    def held(self) -> int:
        """Characters that wait."""
        return len(self._held)

    def feed(self, piece: str) -> str:
        """What may be shown now, masked."""
        if self._given:
            return self._after_end(piece)
        text = self._held + piece
        cut = len(text) - self._redactor.waits(text)
        self._held = text[cut:]
        return self._redactor.mask(text[:cut])

    def _after_end(self, piece: str) -> str:
        at, text = len(self._given), self._given + self._held + piece
        if len(text) - self._redactor.waits(text) < at:
            self._held = text[at:]
            return ""
        self._given = self._held = ""
        name, end = self._redactor.across(text, at)
        return (f"[secret {name}]" if name else "") + self.feed(text[end:])

    def end(self) -> str:
        """The rest."""
        held, self._held = self._held, ""
        known = len(self._given) + len(held) >= SHORTEST
        rest = "[secret]" if self._given and held and known else self._redactor.mask(held)
        self._given = self._given + held if self._given or rest == held else ""
        return rest


_NOTHING = re.compile(r"(?!)")


def _any_of(regexes: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{regex})" for regex in regexes) or _NOTHING.pattern)


def _checked(name: str, pattern: Pattern) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern.regex)
        re.compile(pattern.inside)
    except re.error as fault:
        raise ConfigError(f"pattern {name!r} is no regular expression: {fault}") from fault
    if compiled.groups:
        raise ConfigError(f"pattern {name!r} has groups; write them as (?:...)")
    if compiled.search("") is not None:
        raise ConfigError(f"pattern {name!r} matches the empty text, and so everything")
    return compiled


def _trie(words: Iterable[str]) -> str:
    """One expression for many words, the longest first, common beginnings once."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branch(root)


def _branch(node: dict[str, Any]) -> str:
    parts = []
    for letter, below in node.items():
        if not letter:
            continue
        text, rest = re.escape(letter), below
        while len(rest) == 1 and "" not in rest:  # a run without a fork
            ((following, rest),) = rest.items()
            text += re.escape(following)
        parts.append(text + _branch(rest))
    if not parts:
        return ""
    inner = f"(?:{'|'.join(parts)})" if len(parts) > 1 or "" in node else parts[0]
    return f"{inner}?" if "" in node else inner
