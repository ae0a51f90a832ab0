"""What a secret looks like: the names that hold one, and the shapes that it has.

Written once for both sides: here what describes variables and takes snapshots goes by it, and
`cave.policy.redaction` on the host does.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

HIDDEN = "<hidden>"


class Shape(NamedTuple):
    """A well-known form of secrets, as a regular expression without groups."""

    name: str
    regex: str
    """Bounded, so that no text makes the search slow."""
    leads: tuple[str, ...]
    """What each begins with, one of these."""
    inside: str
    """The class of the characters that may follow, for a text that comes in pieces."""


_APART = "(?<![A-Za-z0-9])"

SHAPES = (
    Shape(
        "private key",
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,3900}"
        r"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?",
        ("-----BEGIN ",),
        r"[A-Za-z0-9+/=\s\\\-]",
    ),
    Shape("api key", rf"{_APART}sk-[A-Za-z0-9_\-]{{16,4000}}", ("sk-",), r"[A-Za-z0-9_\-]"),
    Shape(
        "aws key", rf"{_APART}A(?:KI|SI)A[A-Z0-9]{{16}}(?![A-Z0-9])", ("AKIA", "ASIA"), r"[A-Z0-9]"
    ),
    Shape("google key", rf"{_APART}AIza[A-Za-z0-9_\-]{{30,1000}}", ("AIza",), r"[A-Za-z0-9_\-]"),
    Shape(
        "github token",
        rf"{_APART}gh[pousr]_[A-Za-z0-9]{{20,1000}}",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        r"[A-Za-z0-9_]",
    ),
    Shape(
        "github access token",
        rf"{_APART}github_pat_[A-Za-z0-9_]{{20,1000}}",
        ("github_pat_",),
        r"[A-Za-z0-9_]",
    ),
    Shape("hugging face token", rf"{_APART}hf_[A-Za-z0-9]{{20,1000}}", ("hf_",), r"[A-Za-z0-9]"),
    Shape(
        "slack token",
        rf"{_APART}xox[abprs]-[A-Za-z0-9\-]{{10,1000}}",
        ("xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"),
        r"[A-Za-z0-9\-]",
    ),
    Shape(
        "jwt",
        rf"{_APART}eyJ[A-Za-z0-9_\-]{{8,1000}}\.[A-Za-z0-9_\-]{{8,2000}}\.[A-Za-z0-9_\-]{{8,1000}}",
        ("eyJ",),
        r"[A-Za-z0-9_.\-]",
    ),
    Shape("password in a URL", r"://[^\s:/@]{0,100}:[^\s/@]{1,200}(?=@)", ("://",), r"[^\s/]"),
)

_NAME = (
    r"passw(?:or)?d|passwd|passphrase|pwd|secrets?|credentials?|bearer|"
    r"(?:api|access|private|secret|auth|signing|encryption)[_-]?keys?|apikey|"
    r"(?:auth|access|api|refresh|id|bearer|session|github|gh|hf|slack)[_-]?token|token"
)
_OF_SETTING = (
    r"keys?|tokens?|passwords?|pass|auth|authorization|cookie|session|sessionid|sid|csrf|"
    r"csrftoken|jwt|dsn|private|signature"
)
_VARIABLE = re.compile(rf"(?:^|[_\W])(?:{_NAME})(?:$|[_\W])", re.IGNORECASE)
_SETTING = re.compile(
    rf"(?:^|[_\W])(?:{_NAME}|{_OF_SETTING})(?:$|[_\W])|key$|token|secret|passw|credential",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD", "OLDPWD", "XDG_SESSION_ID", "XDG_SESSION_TYPE", "DESKTOP_SESSION",
                         "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"})  # fmt: skip
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TEXT = re.compile("|".join(shape.regex for shape in SHAPES))


@functools.lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Whether a variable, a key or a column of this name holds what nobody is to see."""
    return len(name) < 200 and _VARIABLE.search(_HUMP.sub("_", name)) is not None


def names_credential(name: str) -> bool:
    """The same of a header, a cookie, a parameter or a variable of the environment, where more
    words mean a secret than in a table of data (`key`, `session`)."""
    return name not in _NO_SECRETS and _SETTING.search(name) is not None


def holds_password(text: str) -> bool:
    """Whether a URL with a password is in it."""
    return _URL.search(text) is not None


_URL = re.compile(SHAPES[-1].regex)


def cleaned(text: str) -> str:
    """A text without the keys and passwords that are known by their form."""
    return _TEXT.sub(_hidden, text)


def _hidden(match: re.Match[str]) -> str:
    return f"://{HIDDEN}" if match[0].startswith("://") else HIDDEN
