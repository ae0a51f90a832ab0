"""Handing an image over: in the message while it is small, else in a sealed file in memory.

The parts of an image are laid out in one blob. `layout` gives offset and size of each; in
what describes the image, parts go by their position.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import objects
from . import hashes
from .copier import Copier
from .take import Taken, TakenGroup

INLINE = 64 << 10
"""Bytes below which parts travel in the message itself."""
_PAGE = 4096


@dataclass(slots=True)
class Parts:
    """Views of memory, in the order of their layout."""

    views: list[memoryview] = field(default_factory=list)
    layout: list[list[int]] = field(default_factory=list)
    end: int = 0

    def add(self, view: memoryview) -> int:
        """The position of a part that is added."""
        align = _PAGE if view.nbytes >= _PAGE else 1
        offset = -(-self.end // align) * align
        self.views.append(view)
        self.layout.append([offset, view.nbytes])
        self.end = offset + view.nbytes
        return len(self.layout) - 1

    @property
    def size(self) -> int:
        return sum(view.nbytes for view in self.views)

    def joined(self) -> bytes:
        """All parts as one blob, as the layout says."""
        blob = bytearray(self.end)
        for view, (offset, size) in zip(self.views, self.layout, strict=True):
            blob[offset : offset + size] = view
        return bytes(blob)

    def write(self, fd: int, *, but: Collection[int] = (), start: int = 0) -> None:
        """All parts into a file from `start`, `but` for some; small neighbours in one go."""
        os.ftruncate(fd, start + max(self.end, 1))
        base, gathered, start = start, bytearray(), 0
        for at, (view, (offset, size)) in enumerate(zip(self.views, self.layout, strict=True)):
            if at in but:
                continue
            far = offset - start - len(gathered) > _PAGE
            if size >= INLINE or far or len(gathered) >= 1 << 20:
                _put(fd, gathered, base + start)
                gathered = bytearray()
            if size >= INLINE:
                _put(fd, view, base + offset)
                continue
            if not gathered:
                start = offset
            gathered += bytes(offset - start - len(gathered))
            gathered += view
        _put(fd, gathered, base + start)


def _put(fd: int, data: Any, offset: int) -> None:
    if len(data):
        objects.write(fd, memoryview(data).cast("B"), offset)


def describe(taken: Taken, *, brief: bool = False) -> tuple[dict[str, Any], Parts]:
    """What tells of an image, and its parts; with `brief` groups that are the same are told of
    by their places in the base."""
    parts = Parts()
    content: dict[str, Any] = {
        "id": taken.id,
        "base": taken.base,
        "chunk": taken.chunk,
        "packages": taken.packages,
        "missed": taken.missed,
    }
    if brief and taken.base is not None and taken.before is not None:
        content |= _differences(taken.groups, taken.before, parts)
    else:
        content["groups"] = [_group(group, parts) for group in taken.groups]
    content["layout"] = parts.layout
    return content, parts


def _differences(
    groups: Sequence[TakenGroup], before: Sequence[str], parts: Parts
) -> dict[str, Any]:
    """Groups that are told of, and the order of all: theirs among them, and runs of groups in
    the base (first, how many, whether they were looked at)."""
    places = {id: at for at, id in enumerate(before)}
    told: list[dict[str, Any]] = []
    order: list[Any] = []
    end, looked = -1, None
    for taken in groups:
        at = places.get(taken.group.id) if taken.same else None
        if at is None:
            order.append(len(told))
            told.append(_group(taken, parts))
            end = -1
        elif at == end and taken.checked == looked:
            order[-1][1] += 1
            end += 1
        else:
            order.append([at, 1, taken.checked])
            end, looked = at + 1, taken.checked
    ids = hashlib.sha256("\n".join(before).encode()).hexdigest()
    return {"groups": told, "order": order, "ids": ids}


def _group(taken: TakenGroup, parts: Parts) -> dict[str, Any]:
    group = taken.group
    told: dict[str, Any] = {
        "id": group.id,
        "names": list(group.names),
        "same": taken.same,
        "checked": taken.checked,
        "definitions": group.definitions,
        "uses": bool(group.uses),
        "notes": [[n.kind, n.name, n.type, n.reason, n.path] for n in group.notes],
    }
    if not taken.same:
        told["stream"] = parts.add(memoryview(taken.stream).cast("B"))
        told["buffers"] = [
            [
                seen.buffer.id,
                seen.buffer.size,
                seen.base,
                [
                    [offset, parts.add(hashes.view(seen.buffer.address + offset, length))]
                    for offset, length in seen.runs
                ],
            ]
            for seen in taken.buffers
        ]
    return told


def hand_over(
    content: dict[str, Any],
    parts: Parts,
    folder: str,
    hold: Any,
    *,
    inline: bool = False,
    copier: Copier | None = None,
) -> list[Any]:
    """The buffers of the message; what is larger waits at the door under `token`.

    A `copier` may leave the copying of large memory to a child: then the file is not
    complete before the pipe that is given with it says so.
    """
    content |= {"token": None, "filling": False}
    if parts.end < INLINE or inline:
        blob = memoryview(parts.joined())
        return objects.slices([blob]) if blob.nbytes else []
    fd = objects.file(folder, parts.end)
    pipe = None
    try:
        if copier is not None:
            pipe = copier.start(parts, fd)
        if pipe is None:
            parts.write(fd)
            objects.seal(fd)
    except BaseException:
        os.close(fd)
        raise
    content |= {"token": secrets.token_hex(8), "filling": pipe is not None}
    hold(content["token"], *(one for one in (fd, pipe) if one is not None))
    return []
