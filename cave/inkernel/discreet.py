"""What must not be shown: values under names of secrets, and texts that look like one."""

from __future__ import annotations

import functools
import re

HIDDEN = "<hidden>"

_NAME = re.compile(
    r"(?:^|[_\W])(?:passw(?:or)?d|passwd|passphrase|pwd|secrets?|credentials?|bearer|"
    r"(?:api|access|private|secret|auth|signing|encryption)[_-]?keys?|apikey|"
    r"(?:auth|access|api|refresh|id|bearer|session|github|gh|hf|slack)[_-]?token|token)(?:$|[_\W])",
    re.IGNORECASE,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TEXT = re.compile(
    r"(?P<url>(?<=://)[^\s/:@]*:[^\s/@]+(?=@))|"
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}|"
    r"AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|hf_\w{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)


@functools.lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Whether a variable, a key or a column of this name holds what nobody is to see."""
    return len(name) < 200 and _NAME.search(_HUMP.sub("_", name)) is not None


def cleaned(text: str) -> str:
    """A text without the keys and passwords that are known by their form."""
    return _TEXT.sub(HIDDEN, text)
