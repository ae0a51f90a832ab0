from __future__ import annotations

import base64
import json
import random
import re
import string
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cave.errors import ConfigError
from cave.policy.redaction import LONG, LONGEST_MATCH, PATTERNS, Pattern, Redactor

CANARY = 'c4nary/+"é\\ 7:Zq~&x=%9'
PLAIN = Redactor([("CANARY", CANARY)], patterns={})

ENCODED = {
    "raw": CANARY,
    "hex": CANARY.encode().hex(),
    "HEX": CANARY.encode().hex().upper(),
    "url": quote(CANARY, safe=""),
    "url path": quote(CANARY),
    "url form": quote_plus(CANARY),
    "url lower": re.sub("%..", lambda m: m[0].lower(), quote(CANARY, safe="")),
    "json": json.dumps({"k": CANARY}),
    "json utf-8": json.dumps(CANARY, ensure_ascii=False),
    "repr": repr([CANARY]),
    "bytes": repr(CANARY.encode()),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_a_secret_is_masked_in_the_forms_that_text_carries_it_in(kind: str) -> None:
    """Whatever commonly encodes it, its name stands in its place and nothing of it is left."""
    masked = PLAIN.mask(f"before {ENCODED[kind]} after")
    assert "[secret CANARY]" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert "4nary" not in masked


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("code", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_masked_at_each_alignment(before: int, code: object) -> None:
    """Within a longer text that was encoded whole, what stands of the secret cannot be read."""
    whole = (b"x" * before + CANARY.encode() + b"tail").ljust(60, b"y")
    masked = PLAIN.mask(code(whole).decode())  # type: ignore[operator]
    assert "[secret CANARY]" in masked
    left = masked.replace("[secret CANARY]", "")
    assert len(left) <= len(code(whole)) - len(CANARY.encode()) * 8 // 6 + 2  # type: ignore[operator]


def chunks(text: str, draw: random.Random) -> list[str]:
    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


TOKENS = [
    CANARY,
    base64.b64encode(CANARY.encode()).decode(),
    "sk-ant-" + "aB3_" * 12,
    "AKIAABCDEFGHIJKLMNOP",
    "https://bob:hunter2@db.example.com/x",
    "-----BEGIN PRIVATE KEY-----\nMIIE\nvQIB\n-----END PRIVATE KEY-----",
    "c4nary",
    "sk-",
    "plain words",
    "=" * 5,
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=5), st.integers(0, 1 << 30))
def test_a_stream_is_masked_as_its_whole_text_is(parts: list[str], seed: int) -> None:
    """However it is cut, and one letter at a time too; the delay is bounded."""
    redactor = Redactor([("CANARY", CANARY), ("OTHER", "c4nary/+_other")])
    text = " ".join(parts)
    whole = redactor.mask(text)
    for pieces in (chunks(text, random.Random(seed)), list(text)):
        masker = redactor.masker()
        shown = "".join(masker.feed(piece) for piece in pieces) + masker.end()
        assert shown == whole


def test_ordinary_output_is_not_held_back() -> None:
    """Lines and progress dots go out at once; the beginning of a secret waits, no longer."""
    masker = Redactor([("CANARY", CANARY)]).masker()
    for piece in ("step 1\n", ".", "..", " 45%\r", "done: 7 rows\n"):
        assert masker.feed(piece) == piece
    assert masker.feed("key " + CANARY[:9]) == "key "
    assert masker.feed(" no") == CANARY[:9] + " no"
    longest = 0
    for letter in "sk-" + "a" * 3 * LONGEST_MATCH:
        masker.feed(letter)
        longest = max(longest, masker.held)
    assert longest <= LONGEST_MATCH + 3


def test_no_value_stays_in_what_a_long_text_gives() -> None:
    """The sieve for long texts finds what the search of short ones does, at every place."""
    draw = random.Random(11)
    letters = string.ascii_letters + string.digits + "+/é\n€ -:@"
    secrets = ["".join(draw.choices(letters[:-6], k=20)) for _ in range(20)]
    redactor = Redactor([(f"S{n}", secret) for n, secret in enumerate(secrets)])
    noise = "".join(draw.choices(letters, k=1_100_000))
    text = list(noise)
    for secret in [*secrets, *TOKENS] * 4:
        at = draw.randrange(len(text) - 100)
        text[at : at + len(secret)] = secret
    at = (1 << 20) - 9
    text[at : at + 20] = secrets[0]  # across two blocks
    whole = "".join(text)
    assert len(whole) > LONG
    masked = redactor.mask(whole)
    assert masked == redactor._regex.sub(lambda m: f"[secret {redactor._named(m)}]", whole)
    assert not any(secret in masked for secret in secrets)


def test_values_are_masked_at_every_depth() -> None:
    """Texts in lists, tuples and keys of JSON; numbers and None stay what they are."""
    value = {"a": [1, None, {CANARY: (CANARY, 2.5)}], "b": "sk-ant-" + "x" * 30}
    masked = Redactor([("CANARY", CANARY)]).mask_value(value)
    assert masked == {"a": [1, None, {"[secret CANARY]": ("[secret CANARY]", 2.5)}],
                      "b": "[secret api key]"}  # fmt: skip
    data = b"\xff\xfe " + CANARY.encode() + b" \x80"
    assert PLAIN.mask_bytes(data) == b"\xff\xfe [secret CANARY] \x80"


def test_what_would_mask_ordinary_text_is_refused() -> None:
    """Short secrets and patterns that match nothing at all are faults of the settings, and a
    secret is in no message and no repr."""
    with pytest.raises(ConfigError, match="less than 6") as refused:
        Redactor([("PIN", "12345")])
    assert "12345" not in str(refused.value)
    for pattern in ("x*", "(a)b", "["):
        with pytest.raises(ConfigError, match="'mine'"):
            Redactor(patterns={"mine": pattern})
    assert CANARY not in repr(PLAIN)
    mine = Redactor(patterns={**PATTERNS, "mine": Pattern(r"ACME-\d{8}", ("ACME-",), r"\d")})
    assert mine.mask("id ACME-12345678.") == "id [secret mine]."


def test_a_secret_added_later_is_masked_from_then_on() -> None:
    """The next text knows it, in a stream that has begun too."""
    redactor = Redactor()
    masker = redactor.masker()
    assert masker.feed("open sesame ") == "open sesame "
    redactor.add("WORD", "open sesame")
    assert masker.feed("open se") == ""
    assert masker.feed("same!") + masker.end() == "[secret WORD]!"
