"""Events as records: one JSON object of an event's own fields.

Beside it stand the columns `seq`, `at`, and `type` (the dotted name: `cell.started`).
`decode` refuses records of a newer format and upcasts older ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cave.events import FORMAT, Event, types

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_types = types()
_ENVELOPE = {"seq", "at", "session"}


_adapters: dict[type[Event], TypeAdapter[Any]] = {}


def _adapter(cls: type[Event]) -> TypeAdapter[Any]:
    adapter = _adapters.get(cls)
    if adapter is None:
        from pydantic import TypeAdapter

        adapter = _adapters[cls] = TypeAdapter(cls)
    return adapter


def encode(event: Event) -> bytes:
    """The fields of an event as UTF-8 JSON, without the envelope (`seq`, `at`, `session`)."""
    return bytes(_adapter(type(event)).dump_json(event, exclude=_ENVELOPE))


def decode(
    type: str, body: bytes, *, seq: int, at: float, session: str, format: int = FORMAT
) -> Event:
    """The event of a stored record. Raises `ValueError` for a type or format it cannot read."""
    cls = _types.get(type)
    if cls is None or format > FORMAT:
        raise ValueError(
            f"record {seq} of session {session!r} has type {type!r}, format {format}: "
            f"written by a newer cave; upgrade with: pip install -U cave-runtime"
        )
    event: Event = _adapter(cls).validate_json(body)
    place = object.__setattr__  # nobody else has seen it yet; `stamped` would build it twice
    place(event, "seq", seq)
    place(event, "at", at)
    place(event, "session", session)
    return event
