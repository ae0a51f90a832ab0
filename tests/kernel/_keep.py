"""A store of images for the tests of kernels: whole buffers in files, nothing shared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cave.image import Image, ImageBuffer, ImageGroup, Load, LoadBuffer, LoadGroup


@dataclass
class Kept:
    """A group with all that it needs."""

    group: ImageGroup
    stream: bytes
    buffers: tuple[ImageBuffer, ...]


class Keep:
    """Takes images in, applies them to their base, and makes loads of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.images: dict[str, dict[str, Kept]] = {}
        self.chunk: dict[str, int] = {}

    def take(self, image: Image) -> Image:
        base = {} if image.base is None else self.images[image.base]
        known = {buffer.id for kept in base.values() for buffer in kept.buffers}
        now = {}
        for group in image.groups:
            if group.same:
                now[group.id] = Kept(group, base[group.id].stream, base[group.id].buffers)
                for buffer in now[group.id].buffers:
                    self._buffer(image, buffer, None)
                continue
            for buffer in group.buffers:
                assert not buffer.base or buffer.id in known
                self._buffer(image, buffer, image.base if buffer.base else None)
            assert group.stream is not None
            now[group.id] = Kept(group, bytes(group.stream), group.buffers)
        self.images[image.id] = now
        self.chunk[image.id] = image.chunk
        return image

    def path(self, image: str, buffer: str) -> Path:
        return self.folder / f"{image}.{buffer}"

    def _buffer(self, image: Image, buffer: ImageBuffer, base: str | None) -> None:
        path = self.path(image.id, buffer.id)
        if any(g.same and buffer in self.images[image.base or ""][g.id].buffers
               for g in image.groups if g.same):  # fmt: skip
            os.link(self.path(image.base or "", buffer.id), path)
            return
        data = bytearray(buffer.size) if base is None else bytearray(
            self.path(base, buffer.id).read_bytes()
        )  # fmt: skip
        assert len(data) == buffer.size
        for offset, run in buffer.runs:
            data[offset : offset + run.nbytes] = run
        path.write_bytes(data)

    @contextmanager
    def load(self, image: str, *, keep: Iterable[str] = (), **more: object) -> Iterator[Load]:
        files: list[int] = []
        groups = []
        for id, kept in self.images[image].items():
            if id in keep:
                continue
            buffers = []
            for buffer in kept.buffers:
                files.append(os.open(self.path(image, buffer.id), os.O_RDONLY))
                piece = (len(files) - 1, 0, buffer.size)
                buffers.append(LoadBuffer(buffer.id, buffer.size, (piece,)))
            group = kept.group
            groups.append(
                LoadGroup(id, group.names, group.definitions, kept.stream, tuple(buffers))
            )
        try:
            yield Load(
                image,
                self.chunk[image],
                tuple(keep),
                tuple(groups),
                files,
                base=next(reversed(self.images)),
                **more,  # type: ignore[arg-type]
            )
        finally:
            for fd in files:
                os.close(fd)
