"""Images into packs: only what is new is written, and it is durable before anybody is told.

Chunks are hashed by a few threads while the file is written, straight from the memory that
the kernel gave: nothing is copied, and memory stays flat. What some earlier snapshot has
already, by its SHA-256, is referred to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace

from cave.errors import SnapshotCorrupt, SnapshotError
from cave.events import Variable
from cave.image import Image, ImageBuffer, ImageGroup

from .known import Known
from .manifest import Entry, Group, Manifest
from .pack import PAGE, Packs, PackWriter, parts
from .refs import Bytes, Ref, digests, sha256, zeros
from .tree import Buffer, build, chunks, update, zero

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes to do."""

BATCH = 1 << 20
"""Bytes that a thread hashes at a time."""
AHEAD = 6
"""Batches on their way."""
FEW = 256 << 10
"""Bytes up to which threads do not pay."""
FULL = 128
"""Entries of a block."""
BLOCKS = 24
"""Blocks from which on the small ones are written anew, together."""


@dataclass(slots=True)
class _New:
    """A buffer that is given, in part or whole."""

    given: ImageBuffer
    base: Buffer | None
    refs: dict[int, Ref] = field(default_factory=dict)


@dataclass(slots=True)
class Writing:
    """One image on its way into a pack."""

    image: Image
    base: Manifest | None
    packs: Packs
    writer: PackWriter
    known: Known
    pool: Executor
    progress: Progress | None = None

    def entries(self, variables: Sequence[Variable]) -> tuple[list[Entry], list[Variable]]:
        """The entries of all groups, whose content is in packs then, and variables of none."""
        facts = {variable.name: variable for variable in variables}
        made = self._given()
        places = self.base.by_id if self.base is not None else {}
        before = self.base.entries if self.base is not None else ()
        entries = []
        for group in self.image.groups:
            at = places.get(group.id)
            old = before[at] if at is not None else None
            new = made.get(group.id) or self._same(group.id, old)
            own = tuple([facts.pop(name) for name in new.names if name in facts])
            if old is not None and old.group is new and _alike(own, old.variables):
                entries.append(old)
            else:
                entries.append(Entry(new, own))
        return entries, list(facts.values())

    def _given(self) -> dict[str, Group]:
        """The groups that are given, by id; their content is in packs then."""
        given = [group for group in self.image.groups if not group.same]
        news = {id(b): self._new(group.id, b) for group in given for b in group.buffers}
        self._write_chunks(list(news.values()))
        self.writer.flush()
        streams = [self._stream(group) for group in given]
        return {
            group.id: self._group(group, stream, [news[id(b)] for b in group.buffers])
            for group, stream in zip(given, streams, strict=True)
        }

    def _group(self, group: ImageGroup, stream: tuple[Ref, ...], news: list[_New]) -> Group:
        buffers = tuple([self._tree(new) for new in news])
        size = sum(ref.size for ref in stream) + sum(b.size for b in buffers)
        flags = group.definitions, group.uses
        new = Group(group.id, group.names, *flags, stream, buffers, group.notes, size)
        old = self._old(group.id)
        return old.group if old is not None and old.group == new else new

    def _old(self, id: str) -> Entry | None:
        if self.base is None:
            return None
        index = self.base.by_id.get(id)
        return None if index is None else self.base.entries[index]

    def _same(self, id: str, old: Entry | None) -> Group:
        if old is None or self.image.base is None:
            raise SnapshotError(f"group {id!r} is said to be as before, and there is none before")
        if old.group.damage:
            raise SnapshotCorrupt(f"group {id!r} of the last snapshot: {old.group.damage}")
        return old.group

    # -- chunks ------------------------------------------------------------------------------

    def _new(self, group: str, given: ImageBuffer) -> _New:
        base = None
        if given.base:
            old = self._old(group)
            found = [b for b in old.group.buffers if b.id == given.id] if old else []
            if not found or found[0].chunk != self.image.chunk:
                raise SnapshotError(
                    f"buffer {given.id!r} is a difference from one that is not there"
                )
            base = found[0]
        return _New(given, base)

    def _write_chunks(self, news: list[_New]) -> None:
        total = sum(view.nbytes for new in news for _, view in new.given.runs)
        if any(new.base is None and new.given.size > self.image.chunk for new in news):
            self.known.learn(self.base, self.packs)
        done = 0
        for batch, hashes in self._hashed(news, total):
            for (new, index, view), (sha, xxh) in zip(batch, hashes, strict=True):
                new.refs[index] = self._chunk(view, sha, xxh)
                done += len(view)
            if self.progress is not None:
                self.progress(done, total)

    def _chunk(self, view: memoryview, sha: bytes, xxh: bytes) -> Ref:
        if sha == zeros(len(view)):
            return zero(len(view), sha)
        ref = self.known.get(sha, len(view))
        if ref is None:
            ref = self.known.add(self.writer.chunk(view, sha, xxh))
        return ref

    def _hashed(
        self, news: list[_New], total: int
    ) -> Iterator[tuple[list[tuple[_New, int, memoryview]], list[tuple[bytes, bytes]]]]:
        """Batches of chunks with their hashes, in order; a few are hashed ahead."""
        if total <= FEW:
            for batch in self._batches(news):
                yield batch, digests([view for _, _, view in batch])
            return
        waiting: deque[tuple[list[tuple[_New, int, memoryview]], Future[list[tuple[bytes, bytes]]]]]
        waiting = deque()
        try:
            for batch in self._batches(news):
                waiting.append((batch, self.pool.submit(digests, [v for _, _, v in batch])))
                if len(waiting) >= AHEAD:
                    first, work = waiting.popleft()
                    yield first, work.result()
            while waiting:
                first, work = waiting.popleft()
                yield first, work.result()
        finally:
            for _, work in waiting:
                if not work.cancel():
                    work.exception()  # let go of the kernel's memory only when nobody reads it

    def _batches(self, news: list[_New]) -> Iterator[list[tuple[_New, int, memoryview]]]:
        batch: list[tuple[_New, int, memoryview]] = []
        size = 0
        for new in news:
            for index, view in _cut(new.given, self.image.chunk):
                batch.append((new, index, view))
                size += len(view)
                if size >= BATCH:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    def _tree(self, new: _New) -> Buffer:
        given, base, chunk = new.given, new.base, self.image.chunk
        count = -(-given.size // chunk)
        if base is not None and base.size == given.size:
            return update(base, new.refs, self.packs, self._node) if new.refs else base
        refs = dict(enumerate(chunks(base, self.packs))) if base is not None else {}
        refs.update(new.refs)
        whole = [refs[index] for index in range(count) if index in refs]
        lengths = [min(chunk, given.size - at) for at in range(0, given.size, chunk)]
        if [ref.size for ref in whole] != lengths:
            raise SnapshotError(f"buffer {given.id!r} is not given as a whole")
        return build(given.id, given.size, chunk, whole, self._node)

    def _node(self, content: bytes) -> Ref:
        ref = self.known.get(sha256(content), len(content))
        return ref or self.known.add(self.writer.node(content))

    def _stream(self, group: ImageGroup) -> tuple[Ref, ...]:
        if group.stream is None:
            raise SnapshotError(f"group {group.id!r} is given without its stream")
        old = self._old(group.id)
        before = {ref.sha: ref for ref in old.group.stream} if old else {}
        return tuple([self._part(part, before) for part in parts(_flat(group.stream))])

    def _part(self, part: Bytes, before: Mapping[bytes, Ref]) -> Ref:
        sha = sha256(part)
        ref = self.known.get(sha, len(part), before.get(sha))
        if ref is None:
            ref = self.known.add(self.writer.record(part, sha))
        return ref


def _flat(view: memoryview) -> memoryview:
    """The bytes of a view."""
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _cut(given: ImageBuffer, chunk: int) -> Iterator[tuple[int, memoryview]]:
    """Number and content of each chunk that is given. Raises `SnapshotError`."""
    for offset, content in given.runs:
        view = _flat(content)
        end = offset + len(view)
        whole = len(view) % chunk == 0 or end == given.size
        if offset % chunk or offset < 0 or end > given.size or not whole:
            raise SnapshotError(f"buffer {given.id!r} is given in pieces that are no chunks")
        for at in range(0, len(view), chunk):
            yield (offset + at) // chunk, view[at : at + chunk]


def _alike(given: Sequence[Variable], known: Sequence[Variable]) -> bool:
    """Whether the facts are the same, fidelity aside."""
    if given == known:  # mostly the very same objects
        return True
    return [replace(v, fidelity="") for v in given] == [replace(v, fidelity="") for v in known]


def completed(image: Image, base: Manifest | None) -> Image:
    """The image with all its groups, where it tells only of those that differ from its base.

    Raises `SnapshotError` when it does not fit the base.
    """
    if not image.order:
        return image
    if base is None or base.id != image.base or base.ids != image.ids:
        raise SnapshotError(f"an image is a difference from another {image.base}: take it whole")
    groups: list[ImageGroup] = []
    for one in image.order:
        if isinstance(one, int):
            groups.append(image.groups[one])
            continue
        first, count, checked = one
        run = base.entries[first : first + count]
        if len(run) != count:
            raise SnapshotError("an image has groups of its base that are not there")
        groups += [entry.looked_at if checked else entry.assumed for entry in run]
    names = [name for group in groups for name in group.names]
    if len(set(names)) < len(names) or sum(group.definitions for group in groups) > 1:
        raise SnapshotError("an image has a name in two groups")
    return replace(image, groups=tuple(groups), order=())


def check_image(image: Image, base: Manifest | None) -> None:
    """Raises `SnapshotError` for an image that cannot be written so."""
    if image.chunk < PAGE or image.chunk % PAGE:
        raise SnapshotError(f"an image has chunks of {image.chunk} bytes, not of whole pages")
    if image.base is not None and (base is None or base.id != image.base):
        raise SnapshotError(f"an image is a difference from {image.base}, which was not given")
    ids = [group.id for group in image.groups]
    if len(set(ids)) != len(ids):
        raise SnapshotError("an image has two groups of one id")
