"""Secrets stay out of snapshots: a reference to the environment takes their place.

A value that an environment variable has too is written as that variable's name, and comes
back when the new kernel's environment has it. What no variable has is left out; a note
says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from .. import discreet

_SHORTEST = 4


def is_secret(name: str, value: str) -> bool:
    """Whether it is one, by its name or its value: a URL with a password is a secret, too."""
    return discreet.names_credential(name) or discreet.holds_password(value)


Reference = tuple[str, str, str, str]
"""Name of the variable, what is before and after its value, `value` or `password` (of a URL)."""


def reference(value: str) -> Reference | None:
    """Where the environment has this secret; None when it has it nowhere."""
    best: Reference | None = None
    size = 0
    for name, known in os.environ.items():
        for part, how in _parts(known):
            if (
                len(part) > max(size, _SHORTEST - 1)
                and part in value
                and _counts(name, part, value)
            ):
                before, _, after = value.partition(part)
                best, size = (name, before, after, how), len(part)
    return best


def _parts(known: str) -> Iterator[tuple[str, str]]:
    yield known, "value"
    if "://" in known:
        try:
            password = urlsplit(known).password
        except ValueError:
            return
        if password:
            yield unquote(password), "password"


def _counts(name: str, part: str, value: str) -> bool:
    """Whole values count wherever they are; parts only of variables that hold secrets."""
    return part == value or is_secret(name, os.environ.get(name, ""))


def resolve(found: Reference | None) -> str | None:
    """The secret, from this process's environment; None when it does not have it."""
    if found is None:
        return None
    name, before, after, how = found
    known = os.environ.get(name)
    if known is None:
        return None
    if how == "password":
        known = unquote(urlsplit(known).password or "")
    return before + known + after


def where(found: Reference | None) -> str:
    """For notes: where it comes from, or that it does not."""
    return "is not kept" if found is None else f"comes from the environment's {found[0]}"


def without_password(url: str) -> str:
    """A URL as text without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}@{host}").geturl()


def split(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Reference | None]]:
    """What of headers, parameters, cookies is plain, and references to what is secret."""
    plain: dict[str, Any] = {}
    secret: dict[str, Reference | None] = {}
    for name, value in values.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        if isinstance(text, str) and is_secret(str(name), text):
            secret[name] = reference(text)
        else:
            plain[name] = value
    return plain, secret


def joined(secret: dict[str, Reference | None]) -> tuple[dict[str, str], list[str]]:
    """What the environment has of them, and the names of the others."""
    found = {name: resolve(place) for name, place in secret.items()}
    there = {name: value for name, value in found.items() if value is not None}
    return there, [name for name in found if name not in there]
