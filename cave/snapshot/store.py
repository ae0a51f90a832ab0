"""`Snapshots`: the files of one session's snapshots, written and read back.

One writer at a time, which the session's lease sees to. One that lost its lease without
knowing can do no harm: a file is only ever made, under a name that nobody had.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cave import failpoints
from cave.errors import SnapshotCorrupt, SnapshotError, SnapshotNotFound, StoreError
from cave.events import Variable
from cave.image import Image
from cave.store.disk import explain_os

from . import gather, retire
from . import mend as mending
from .folder import LocalFolder, Output, folder_at
from .known import Known
from .manifest import Manifest, decode
from .pack import Packs, PackWriter, finished, read_manifest
from .place import place, sign, usage
from .plan import Plan, Planner
from .refs import pack_name, pack_number
from .verify import Fault, faults
from .write import Progress, Writing, check_image, completed

THREADS = 2


class Snapshots:
    """The snapshots of a session, in a folder or below a URL."""

    def __init__(self, at: str | Path, *, session: str, key: bytes) -> None:
        self.session = session
        self._key = key
        self._folder = folder_at(at)
        self._known = Known(self._folder)
        self._finished: set[str] = set()
        self._reach: dict[str, Mapping[int, int]] = {}

    # -- writing -----------------------------------------------------------------------------

    def write(
        self,
        image: Image,
        *,
        base: Manifest | None,
        cell: int,
        at: float,
        name: str = "",
        variables: Sequence[Variable],
        progress: Progress | None = None,
        wait: bool = True,
    ) -> Manifest:
        """Put an image on disk; it is durable when this returns, under the image's id.

        `base` is the snapshot that the image is a difference from, or, when it is whole, one
        that it may have much in common with. Without `wait` a small file is not waited for,
        and given as `Manifest.file`. Raises `StoreError`; then nothing was written.
        """
        image = completed(image, base)
        check_image(image, base)
        with (
            self._creating(image.id, wait=wait) as (output, number),
            ThreadPoolExecutor(THREADS, "cave-hash") as pool,
            Packs(self._folder) as packs,
        ):
            if base is not None and not self._folder.has(base.id):
                if image.base is not None:
                    raise SnapshotError(f"snapshot {base.id} is gone: take a whole image")
                base = None
            self._known.begin()
            writer = PackWriter(output, number)
            writing = Writing(image, base, packs, writer, self._known, pool, progress)
            entries, loose = writing.entries(variables)
            entries, leave = gather.forward(entries, base, packs, writer, cell)
            blocks, places = place(entries, base, writer, leave)
            manifest = sign(
                Manifest(
                    id=image.id,
                    session=self.session,
                    name=name,
                    cell=cell,
                    at=at,
                    python=image.python,
                    packages=dict(image.packages),
                    chunk=image.chunk,
                    parent=base.id if base is not None else None,
                    entries=tuple(entries),
                    places=places,
                    blocks=blocks,
                    assumed=frozenset(g.id for g in image.groups if not g.checked),
                    loose=tuple(loose),
                    used=usage(entries, blocks, base, number),
                    written=0,
                    size=sum(entry.group.size for entry in entries),
                ),
                writer,
                self._key,
            )
        self._known.commit(manifest, base)
        self._reach[manifest.id] = manifest.used
        return manifest

    @contextlib.contextmanager
    def _creating(self, id: str, *, wait: bool = True) -> Iterator[tuple[Output, int]]:
        """A new file that goes again when anything is wrong."""
        number = pack_number(id)
        if number is None:
            raise SnapshotError(f"a snapshot cannot be called {id!r}")
        with self._explained():
            failpoints.hit("snapshot.before_write")
            try:
                output = self._folder.create(id, wait=wait)
            except FileExistsError:
                raise SnapshotError(f"there is a snapshot {id} already; take it again") from None
            try:
                yield output, number
            except BaseException:
                output.abort()
                raise

    # -- after a power cut -------------------------------------------------------------------

    @property
    def unsure(self) -> bool:
        """Whether files that nobody waited for may be gone: the machine was started since
        they were last seen to be whole."""
        return isinstance(self._folder, LocalFolder) and mending.unsure(self._folder)

    def mend(self, files: Mapping[str, bytes], keep: Collection[str]) -> Sequence[str]:
        """Write again those of `files` (by id) that are gone or torn, if a snapshot in `keep`
        needs them; gives their ids. Raises `StoreError`."""
        if not isinstance(self._folder, LocalFolder):
            return ()
        with self._explained():
            return mending.mend(self._folder, files, keep, self.read)

    # -- reading -----------------------------------------------------------------------------

    def ids(self) -> Sequence[str]:
        """Snapshots that were finished and not retired, by their cells. Raises `StoreError`."""
        with self._explained():
            found = [id for id, name in self._folder.files().items() if name.endswith(".pack")]
            return sorted(
                (id for id in found if self._is_finished(id)), key=lambda id: pack_number(id) or 0
            )

    def _is_finished(self, id: str) -> bool:
        if id not in self._finished:
            with (
                contextlib.suppress(FileNotFoundError),
                contextlib.closing(self._folder.open(id)) as pack,
            ):
                if finished(pack):
                    self._finished.add(id)
        return id in self._finished

    def read(self, id: str) -> Manifest:
        """The manifest of a snapshot, once its signature was checked.

        Raises `SnapshotNotFound`, `SnapshotCorrupt`, `StoreError`.
        """
        with self._explained(), Packs(self._folder) as packs:
            number = pack_number(id)
            try:
                if number is None:
                    raise FileNotFoundError
                pack = packs.pack(number)
                if not pack.name.endswith(".pack"):
                    raise FileNotFoundError  # retired: others may need what lies in it
                content = read_manifest(pack, self._key)
            except FileNotFoundError:
                raise SnapshotNotFound(
                    f"there is no snapshot {id!r} of session {self.session!r}"
                ) from None
            manifest = decode(content, packs, written=pack.size)
            if (manifest.id, manifest.session) != (id, self.session):
                raise SnapshotCorrupt(
                    f"{pack.name!r} of session {self.session!r} holds snapshot {manifest.id} of "
                    f"session {manifest.session!r}: it is not used"
                )
        self._reach[id] = manifest.used
        return manifest

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Faults of the system as `StoreError`."""
        try:
            yield
        except StoreError:
            raise
        except OSError as fault:
            raise explain_os(fault, self._folder.at) from fault

    def plan(
        self,
        target: Manifest,
        *,
        live: Manifest | None,
        python: str = "",
        packages: Mapping[str, str] | None = None,
    ) -> Plan:
        """What a kernel is to be given to come to `target`; everything in it was checked.

        `live` is what the kernel's namespace is now: groups that are the same stay. `python`
        and `packages` are its versions, when they are known. Raises `StoreError`.
        """
        now = (python or target.python, packages if packages is not None else target.packages)
        with self._explained(), ThreadPoolExecutor(THREADS, "cave-check") as pool:
            planner = Planner(target, Packs(self._folder, self._known.distrust), pool, self._known)
            return planner.plan(live, target.versions(*now))

    # -- keeping -----------------------------------------------------------------------------

    def link_from(self, other: Snapshots, id: str) -> Manifest:
        """Begin as a fork: a snapshot of another session, with everything that it needs.

        Files are linked where that works, else copied; the other session's are not needed
        afterwards. Raises `SnapshotNotFound`, `SnapshotCorrupt`, `StoreError`.
        """
        source = other.read(id)
        linked: list[str] = []
        try:
            with self._explained():
                for pack in source.packs:
                    self._link(other, pack, id)
                    linked.append(pack)
                    failpoints.hit("snapshot.mid_link")
                if not other._folder.has(id):
                    raise SnapshotNotFound(f"snapshot {id} was retired meanwhile")
            return self._adopted(source)
        except BaseException:
            self._unlink(linked)
            raise

    def _link(self, other: Snapshots, pack: str, id: str) -> None:
        try:
            self._folder.link(other._folder, pack)
        except FileNotFoundError:
            raise SnapshotCorrupt(f"snapshot {id} lacks {pack}.pack: it cannot be forked") from None
        except FileExistsError:
            raise SnapshotError(f"{self._folder.at!r} is no new session: it has {pack}") from None

    def _unlink(self, packs: Sequence[str]) -> None:
        for pack in packs:
            self._folder.remove(pack)

    def _adopted(self, source: Manifest) -> Manifest:
        """A manifest of ours for what was linked."""
        number = source.cell << 32 | int.from_bytes(secrets.token_bytes(4), "big")
        id = pack_name(number)
        with self._creating(id) as (output, _):
            manifest = replace(
                source,
                id=id,
                session=self.session,
                parent=None,
                used={**source.used, number: 0},
            )
            return sign(manifest, PackWriter(output, number), self._key)

    def retire(
        self, keep: Collection[str], *, older: float = 0.0, dry_run: bool = False
    ) -> retire.Retired:
        """Let go of all snapshots but those in `keep`, and of what only they needed.

        With `older` files younger than so many seconds stay. Raises `SnapshotCorrupt` when
        one to keep cannot be read (nothing was removed then), `StoreError`.
        """
        with self._explained():
            reach = {id: self._used(id) for id in keep}
            work = retire.Retiring(self._folder, self.read, reach, older, dry_run)
            return work.run()

    def _used(self, id: str) -> Mapping[int, int]:
        if id not in self._reach:
            self.read(id)
        return self._reach[id]

    def verify(self, *, deep: bool = False) -> Sequence[Fault]:
        """What is wrong with any snapshot. `deep` reads all content and takes its SHA-256."""
        with self._explained():
            packs = Packs(self._folder, self._known.distrust)
            with packs:
                return faults(packs, self.ids(), self.read, deep=deep)
