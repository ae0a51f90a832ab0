"""Images made by hand, and what a kernel would have after loading: bytes against bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cave.events import Variable
from cave.image import Image, ImageBuffer, ImageGroup, Load, Note
from cave.snapshot import Manifest, Snapshots

CHUNK = 8192
KEY = b"k" * 32


@dataclass(frozen=True)
class Content:
    """All that a group holds."""

    stream: bytes
    buffers: Mapping[str, bytes] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    definitions: bool = False
    uses: bool = False
    notes: tuple[Note, ...] = ()


World = dict[str, Content]


def content(stream: bytes | str = b"s", *buffers: bytes, **settings: object) -> Content:
    given = stream.encode() if isinstance(stream, str) else stream
    named = {f"b{n}": buffer for n, buffer in enumerate(buffers)}
    return replace(Content(given, named), **settings)  # type: ignore[arg-type]


def names_of(id: str, group: Content) -> tuple[str, ...]:
    return group.names or (id,)


def variables(world: World) -> list[Variable]:
    return [
        Variable(name, "thing", cell=1, summary=f"about {name}")
        for id, group in world.items()
        for name in names_of(id, group)
        if ":" not in name
    ]


def whole(group: Content) -> tuple[ImageBuffer, ...]:
    return tuple(
        ImageBuffer(id, len(b), base=False, runs=((0, memoryview(b)),) if b else ())
        for id, b in group.buffers.items()
    )


def changed_chunks(old: bytes, new: bytes, chunk: int) -> tuple[tuple[int, memoryview], ...]:
    view = memoryview(new)
    return tuple(
        (at, view[at : at + chunk])
        for at in range(0, len(new), chunk)
        if old[at : at + chunk] != new[at : at + chunk]
    )


def difference(old: Content, new: Content, chunk: int) -> tuple[ImageBuffer, ...]:
    made = []
    for id, b in new.buffers.items():
        before = old.buffers.get(id)
        if before is not None and len(before) == len(b):
            made.append(ImageBuffer(id, len(b), True, changed_chunks(before, b, chunk)))
        else:
            made.append(ImageBuffer(id, len(b), False, ((0, memoryview(b)),) if b else ()))
    return tuple(made)


def image(
    id: str,
    world: World,
    base: tuple[str, World] | None = None,
    *,
    chunk: int = CHUNK,
    assumed: Iterable[str] = (),
) -> Image:
    """What a kernel would give for `world`, as a difference from a base where there is one."""
    groups = []
    for name, group in world.items():
        old = base[1].get(name) if base else None
        facts = ImageGroup(
            name,
            names_of(name, group),
            same=False,
            checked=name not in assumed,
            definitions=group.definitions,
            uses=group.uses,
            notes=group.notes,
        )
        if old == group:
            groups.append(replace(facts, same=True, notes=()))
        else:
            buffers = whole(group) if old is None else difference(old, group, chunk)
            groups.append(replace(facts, stream=memoryview(group.stream), buffers=buffers))
    return Image(
        id=id,
        base=base[0] if base else None,
        chunk=chunk,
        groups=tuple(groups),
        python="3.11.7",
        packages={"numpy": "2.4"},
        pause=0.0,
    )


def write(
    store: Snapshots,
    id: str,
    world: World,
    base: tuple[Manifest, World] | None = None,
    **settings: object,
) -> Manifest:
    given = (base[0].id, base[1]) if base else None
    return store.write(
        image(id, world, given, **settings),  # type: ignore[arg-type]
        base=base[0] if base else None,
        cell=int(id[:6]),
        at=1e9,
        variables=variables(world),
    )


def loaded(load: Load) -> World:
    """The groups that a kernel would have from `load`."""
    world: World = {}
    for group in load.groups:
        buffers = {}
        for buffer in group.buffers:
            parts = [os.pread(load.files[f], n, at) for f, at, n in buffer.pieces]
            buffers[buffer.id] = b"".join(parts)
            assert len(buffers[buffer.id]) == buffer.size
            for _, at, n in buffer.pieces:
                assert at % 4096 == 0 or n < 4096
        world[group.id] = Content(bytes(group.stream), buffers, group.names, group.definitions)
    return world


def same(world: World, found: World) -> bool:
    """Whether what was loaded is what was there."""
    return world.keys() == found.keys() and all(
        (group.stream, dict(group.buffers), names_of(id, group))
        == (found[id].stream, found[id].buffers, found[id].names)
        for id, group in world.items()
    )


def read_back(store: Snapshots, id: str) -> World:
    """All groups of a snapshot, which must be whole."""
    plan = store.plan(store.read(id), live=None)
    try:
        assert not plan.damaged, plan.damaged
        return loaded(plan.load)
    finally:
        plan.close()


def opened(folder: Path | str, session: str = "q3") -> Snapshots:
    return Snapshots(folder, session=session, key=KEY)
