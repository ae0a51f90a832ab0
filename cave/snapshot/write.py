"""Images into packs: only what is new is written, and it is durable before anybody is told.

Chunks are hashed by a few threads while the file is written, straight from the memory that
the kernel gave: nothing is copied, and memory stays flat. What some earlier snapshot has
already, by its SHA-256, is referred to.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace

from cave import failpoints
from cave.errors import SnapshotCorrupt, SnapshotError
from cave.events import Variable
from cave.image import Image, ImageBuffer, ImageGroup

from .known import Known
from .manifest import Block, Entry, Group, Manifest, encode, encode_block
from .pack import PAGE, TRAILER, Packs, PackWriter, parts
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
        groups = self._groups()
        entries = []
        for group, old in groups:
            own = tuple([facts.pop(name) for name in group.names if name in facts])
            if old is not None and old.group is group and _alike(own, old.variables):
                entries.append(old)
            else:
                entries.append(Entry(group, tuple(replace(v, fidelity="") for v in own)))
        return entries, list(facts.values())

    def _groups(self) -> list[tuple[Group, Entry | None]]:
        given = [group for group in self.image.groups if not group.same]
        news = {id(b): self._new(group.id, b) for group in given for b in group.buffers}
        self._write_chunks(list(news.values()))
        self.writer.flush()
        streams = {group.id: self._stream(group) for group in given}
        groups: list[tuple[Group, Entry | None]] = []
        for group in self.image.groups:
            old = self._old(group.id)
            if group.same:
                groups.append((self._same(group.id, old), old))
                continue
            buffers = tuple([self._tree(news[id(buffer)]) for buffer in group.buffers])
            flags = group.definitions, group.uses
            new = Group(group.id, group.names, *flags, streams[group.id], buffers, group.notes)
            groups.append((old.group if old and old.group == new else new, old))
        return groups

    def _old(self, id: str) -> Entry | None:
        if self.base is None:
            return None
        index = self.base.by_id.get(id)
        return None if index is None else self.base.entries[index]

    def _same(self, id: str, old: Entry | None) -> Group:
        if old is None:
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
            return update(base, new.refs, self.packs, self.writer) if new.refs else base
        refs = dict(enumerate(chunks(base, self.packs))) if base is not None else {}
        refs.update(new.refs)
        whole = [refs[index] for index in range(count) if index in refs]
        lengths = [min(chunk, given.size - at) for at in range(0, given.size, chunk)]
        if [ref.size for ref in whole] != lengths:
            raise SnapshotError(f"buffer {given.id!r} is not given as a whole")
        return build(given.id, given.size, chunk, whole, self.writer)

    def _stream(self, group: ImageGroup) -> tuple[Ref, ...]:
        if group.stream is None:
            raise SnapshotError(f"group {group.id!r} is given without its stream")
        old = self._old(group.id)
        before = {ref.sha: ref for ref in old.group.stream} if old else {}
        return tuple([self._part(part, before) for part in parts(_flat(group.stream))])

    def _part(self, part: Bytes, before: Mapping[bytes, Ref]) -> Ref:
        sha = sha256(part)
        ref = before.get(sha) or self.known.get(sha, len(part))
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
    return len(given) == len(known) and all(
        a.cell == b.cell
        and a.size == b.size
        and a.summary == b.summary
        and a.type == b.type
        and a.shape == b.shape
        and a.name == b.name
        for a, b in zip(given, known, strict=True)
    )


# -- the manifest ----------------------------------------------------------------------------


def place(
    entries: Sequence[Entry],
    base: Manifest | None,
    writer: PackWriter,
    leave: Collection[int] = (),
) -> tuple[tuple[Block, ...], tuple[tuple[int, int], ...]]:
    """Blocks and places of entries: where they were, or in new blocks that are written here.

    Blocks in the packs `leave` are given up.
    """
    old = _old_places(entries, base) if base is not None else {}
    blocks: list[Block] = list(base.blocks) if base is not None else []
    crowded = _crowded(blocks, [block for block, _ in old.values()])
    crowded |= {number for number, block in enumerate(blocks) if block.ref.pack in leave}
    places: dict[int, tuple[int, int]] = {}
    fresh: list[int] = []
    for index in range(len(entries)):
        at = old.get(index)
        if at is None or at[0] in crowded:
            fresh.append(index)
        else:
            places[index] = at
    for first in range(0, len(fresh), FULL):
        some = fresh[first : first + FULL]
        ref = writer.record(encode_block([entries[index] for index in some]), deflate=1024)
        places.update({index: (len(blocks), at) for at, index in enumerate(some)})
        blocks.append(Block(ref, len(some)))
    used = sorted({block for block, _ in places.values()})
    number = {block: at for at, block in enumerate(used)}
    placed = tuple(
        [(number[block], at) for block, at in (places[index] for index in range(len(entries)))]
    )
    return tuple(blocks[block] for block in used), placed


def _old_places(entries: Sequence[Entry], base: Manifest) -> dict[int, tuple[int, int]]:
    """Places of the entries that the base has as they are."""
    found = {}
    for index, entry in enumerate(entries):
        at = base.by_id.get(entry.group.id)
        if at is not None and base.entries[at] is entry:
            found[index] = base.places[at]
    return found


def _crowded(blocks: Sequence[Block], needed: Sequence[int]) -> set[int]:
    """Blocks to write anew: where less than half is needed, and small ones when many."""
    live = Counter(needed)
    found = {n for n, block in enumerate(blocks) if live[n] * 2 < block.count}
    rest = sorted((n for n in live if n not in found), key=live.__getitem__)
    if len(rest) > BLOCKS:
        found.update(rest[: len(rest) - BLOCKS // 2])
    return found


def usage(entries: Sequence[Entry], blocks: Sequence[Block], own: int) -> Mapping[int, int]:
    """Bytes that are needed of each pack, by its number."""
    used: Counter[int] = Counter({own: 0})
    for entry in entries:
        for ref in entry.group.stream:
            used[ref.pack] += ref.stored
        for buffer in entry.group.buffers:
            for pack, size in buffer.packs:
                used[pack] += size
    for block in blocks:
        used[block.ref.pack] += block.ref.stored
    del used[0]  # where zeros are
    return dict(used)


def sign(manifest: Manifest, writer: PackWriter, key: bytes) -> Manifest:
    """Write a manifest and make its pack durable."""
    failpoints.hit("snapshot.before_manifest")
    content = encode(manifest)
    end = writer.at + len(content) + TRAILER
    writer.finish(content, key)
    failpoints.hit("snapshot.before_return")
    return replace(manifest, written=end, digest=sha256(content).hex())


def check_image(image: Image, base: Manifest | None) -> None:
    """Raises `SnapshotError` for an image that cannot be written so."""
    if image.chunk < PAGE or image.chunk % PAGE:
        raise SnapshotError(f"an image has chunks of {image.chunk} bytes, not of whole pages")
    if image.base is not None and (base is None or base.id != image.base):
        raise SnapshotError(f"an image is a difference from {image.base}, which was not given")
    ids = [group.id for group in image.groups]
    if len(set(ids)) != len(ids):
        raise SnapshotError("an image has two groups of one id")
