"""A sketch of JSON-like data: which keys there are, and what is under them.

Only lists, tuples and dicts of exactly these types are looked into, a few of their elements,
and not deep.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from . import describe, discreet, kinds

DEPTH = 3
SAMPLE = 40
"""Elements of one list that a sketch is made from."""
KEYS = 12
"""Keys that are named."""
LENGTH = 240
"""Characters of a sketch."""


def records(rows: Any) -> str:
    """Of a list of dicts: the sketch of one, and the first one's plain values; else nothing."""
    sample = list(islice(rows, SAMPLE))
    if not all(type(row) is dict for row in sample) or not any(sample):
        return ""
    first = ", ".join(
        f"{describe.brief(key)}: {describe.member(key, value)}"
        for key, value in islice(sample[0].items(), KEYS)
        if not kinds.is_(type(value), list, dict)
    )
    shape = sketch(sample)
    return f"{shape}; first: {first}" if first else shape


def sketch(samples: Iterable[Any]) -> str:
    """What kind of data these are, as `{id int, tags [str], geo? {lat float}}`."""
    text = _sketch(list(samples), DEPTH)
    return text if len(text) <= LENGTH else text[: LENGTH - 3] + "..."


def _sketch(samples: list[Any], depth: int) -> str:
    dicts = [it for it in samples if type(it) is dict]
    lists = [it for it in samples if type(it) is list or type(it) is tuple]
    parts = [_record(dicts, depth)] if dicts else []
    if lists:
        parts.append(_list(lists, depth))
    others = [it for it in samples if not kinds.is_(type(it), dict, list, tuple)]
    names = dict.fromkeys("None" if it is None else describe._type(it) for it in others)
    return "|".join([*parts, *islice(names, 4)])


def _record(dicts: list[dict[Any, Any]], depth: int) -> str:
    if not any(dicts):
        return "{}"
    if depth == 0:
        return "{...}"
    keys: dict[Any, list[Any]] = {}
    for one in dicts:
        for key in islice(one, 2 * KEYS):
            if type(key) in (str, int):
                keys.setdefault(key, []).append(one[key])
    longest = max(map(len, dicts))
    if longest > KEYS and _alike(dicts):
        values = [value for one in dicts for value in islice(one.values(), SAMPLE)]
        return f"{{{longest:,} keys: {_sketch(values[:SAMPLE], depth - 1)}}}"
    parts = []
    for key, found in islice(keys.items(), KEYS):
        mark = "?" if len(found) < len(dicts) else ""
        hidden = type(key) is str and discreet.names_secret(key)
        inner = discreet.HIDDEN if hidden else _sketch(found[:SAMPLE], depth - 1)
        parts.append(f"{describe.clip(str(key), 30)}{mark} {inner}")
    rest = longest - len(parts)
    return "{" + ", ".join(parts) + (f", {rest} more" if rest > 0 else "") + "}"


def _alike(dicts: list[dict[Any, Any]]) -> bool:
    """Whether many keys lead to values of one type, as in an index by id."""
    values = [type(value) for one in dicts[:3] for value in islice(one.values(), SAMPLE)]
    return len({id(kind) for kind in values}) == 1 and kinds.is_(values[0], dict, list)


def _list(lists: list[Any], depth: int) -> str:
    items = [item for one in lists[:5] for item in islice(one, SAMPLE // 4)]
    if not items:
        return "[]"
    count = f"{len(lists[0]):,} of " if len(lists) == 1 and len(lists[0]) > 1 else ""
    return f"[{count}{_sketch(items, depth - 1)}]" if depth else "[...]"
