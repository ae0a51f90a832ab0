"""An image beside the others: what is known of the last image stays as it is.

It is for whoever comes after the host of now: a difference from the last image where the host
is known to have that on disk, whole otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from . import touch
from .buffers import Buffer, Buffers, Seen
from .groups import Namer
from .take import Taken, Taker


class Looked(Buffers):
    """Memory against what is known of it, or whole where nothing is; nothing is learnt."""

    def __init__(self, new_id: Callable[[], str], known: Buffers | None, like: Buffers) -> None:
        self._new_id = new_id
        self._others = known
        self.tracking, self.why, self.chunk = like.tracking, like.why, like.chunk

    def look(self, places: Sequence[tuple[int, int]], *, commit: bool = True) -> list[Seen]:
        """What is at these places now; `commit` or not."""
        if self._others is not None:
            found = self._others.look(places, commit=False)
        else:
            found = [
                Seen(Buffer("", address, size), base=False, runs=[(0, size)] if size else [])
                for address, size in places
            ]
        for seen in found:
            if not seen.base:
                seen.buffer.id = self._new_id()
        return found

    def keep(self, kept: set[str]) -> None:
        """Nothing was learnt that could be forgotten."""


class Aside(Taker):
    """Takes one image of what another takes images of, and disturbs nothing."""

    def __init__(self, other: Taker, base: str | None) -> None:
        known = other.buffers if base is not None and base == other.image else None
        super().__init__(
            other.shell, touch.Touch(), lambda new_id: Looked(new_id, known, other.buffers)
        )
        self.world, self.guard = other.world, other.guard
        self.once = True
        if known is None:
            return
        self.image, self._ids, self.held = base, dict(other._ids), dict(other.held)
        self._hung = dict(other._hung)
        self.groups = {id: replace(group) for id, group in other.groups.items()}
        self.owner = {name: group for group in self.groups.values() for name in group.names}
        self._namer = Namer(self.new_id, other._namer.serials)

    def image_of_all(self, id: str) -> Taken:
        """The image; everything is looked at."""
        return self.take(id, self.image)
