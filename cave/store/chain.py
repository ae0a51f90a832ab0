"""The hash chain of a journal: what a record's hash is over, and how it is checked.

Each record's hash is SHA-256 over the hash before it and every stored column of the record,
the body as its exact bytes; the session's row keeps the number and hash of the last one. So
a record edited, removed, inserted, moved or cut off the end shows. Whoever can rewrite every
later record *and* the session's row can forge it: the chain finds accidents and careless
edits, it is no signature.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator

from cave.ports import JournalFault

DOMAIN = b"cave.journal.1\0"
"""Number of this way to hash; the first bytes of everything hashed."""

_FIXED = struct.Struct(">32sqdqq")
_LENGTHS = struct.Struct(">qqq")

Record = tuple[int, float, str, int, int, bytes, bytes]
"""seq, at, type, format, lease, body, hash: as `statements` selects them."""


def link(
    previous: bytes,
    *,
    uid: str,
    seq: int,
    at: float,
    type: str,
    format: int,
    lease: int,
    body: bytes,
) -> bytes:
    """The hash of one record: fixed-size numbers, then three texts after their lengths."""
    session, name = uid.encode(), type.encode()
    head = _FIXED.pack(previous, seq, at, format, lease)
    sizes = _LENGTHS.pack(len(session), len(name), len(body))
    return hashlib.sha256(b"".join((DOMAIN, head, sizes, session, name, body))).digest()


def check(
    records: Iterable[Record], *, session: str, uid: str, genesis: bytes, seq: int, hash: bytes
) -> Iterator[JournalFault]:
    """Every place where `records` differ from the chain that ends at `seq` with `hash`."""
    at_seq, previous = 0, genesis
    for record in records:
        found, reason = record[0], _differs(record, previous, uid)
        if found > seq:
            reason = f"the journal ends at record {seq}: this one was added behind it"
        elif found != at_seq + 1:
            yield JournalFault(session, at_seq + 1, _missing(at_seq + 1, found - 1))
            reason = ""  # its hash cannot be checked without the record before it
        if reason:
            yield JournalFault(session, found, reason)
        at_seq, previous = found, record[6]
    if at_seq < seq:
        yield JournalFault(session, at_seq + 1, f"{_missing(at_seq + 1, seq)} at the end")
    elif at_seq == seq and previous != hash:
        yield JournalFault(session, seq, "the last record is not the one that was committed last")


def _differs(record: Record, previous: bytes, uid: str) -> str:
    seq, at, name, version, lease, body, stored = record
    try:
        made = link(
            previous, uid=uid, seq=seq, at=at, type=name, format=version, lease=lease, body=body
        )
    except (AttributeError, TypeError, struct.error):
        return "a column has another type than was written"
    return "" if made == stored else "differs from its hash, or follows another record"


def _missing(first: int, last: int) -> str:
    return f"record {first} is missing" if first == last else f"records {first} to {last} missing"
