"""A home folder: the journal's database, the blobs, and a folder for each session.

::

    CAVE_HOME/
        cave.db              journals of all sessions
        blobs/               immutable bytes by their hash
        config.toml          the user's settings
        confinement.json     which layers hold on this system, tried once per start of it
        key                  signs snapshots
        reserve              space for results of effects when the disk is full
        sessions/NAME/work   the cwd of cells
        sessions/NAME/snapshots   one file for each snapshot
        sessions/NAME/kernels/N   record, log and output spool of the N-th kernel
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cave import config
from cave.errors import StoreError
from cave.events import Inside
from cave.image import Image
from cave.ports import Clock, Death, Kernel, SessionInfo, SpooledCell, SpooledOutput, SystemClock

if TYPE_CHECKING:
    from cave.kernel import Confinement
    from cave.policy import Policy
    from cave.ports import BlobStore, Store
    from cave.snapshot import Snapshots


LEFT_ALONE = 10.0
"""Seconds after a cell without a host after which a kernel leaves an image of its own."""


class Home:
    """What one `CAVE_HOME` holds; one for each path in a process."""

    def __init__(self, path: Path, store: Store | None = None) -> None:
        from cave.store import SQLStore
        from cave.store.blobs import FolderBlobs

        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be made ({error.strerror}); set CAVE_HOME to a folder of your own"
            ) from error
        self.clock: Clock = SystemClock()
        self.store: Store = store if store is not None else SQLStore(path / "cave.db")
        self.blobs: BlobStore = FolderBlobs(path / "blobs")
        self._key: bytes | None = None

    def folder(self, session: str) -> Path:
        """Where a session keeps its files."""
        return self.path / "sessions" / session

    def workdir(self, session: str) -> Path:
        """The cwd of a session's cells."""
        return self.folder(session) / "work"

    @property
    def key(self) -> bytes:
        """Signs the snapshots of this home; never given to a kernel."""
        if self._key is None:
            from cave.snapshot import home_key

            self._key = home_key(self.path)
        return self._key

    @property
    def hash_seed(self) -> int:
        """The seed of `hash(str)` in every kernel, so that hashes in objects stay true."""
        digest = hashlib.sha256(b"hash seed" + self.key).digest()
        return int.from_bytes(digest[:4], "big")

    def snapshots(self, session: str) -> Snapshots:
        """The files of a session's snapshots."""
        from cave.snapshot import Snapshots

        return Snapshots(self.snapshots_folder(session), session=session, key=self.key)

    def snapshots_folder(self, session: str) -> Path:
        """Where they are."""
        return self.folder(session) / "snapshots"

    def text(self, key: str) -> str:
        """A blob as text. Raises `StoreError`."""
        return self.blobs.read(key).decode("utf-8", "replace")

    async def sessions(self) -> Sequence[SessionInfo]:
        """Every session, the last changed first."""
        return await self.store.sessions()

    async def forget(self, session: str) -> None:
        """Delete a session's journal and folder. Its kernel must have ended."""
        await self.store.delete(session)
        folder = self.folder(session)
        if folder.is_dir():
            await asyncio.to_thread(shutil.rmtree, folder)


class Kernels:
    """Kernels of one session, from `cave.kernel`."""

    def __init__(
        self,
        home: Home,
        session: str,
        *,
        settings: config.Settings,
        kernel: str = "cave-python",
        python: str | None = None,
    ) -> None:
        self._home = home
        self._session = session
        self.settings = settings
        self.kernel = kernel
        self.python = python
        self.policy: Policy | None = None
        self._held: tuple[object, str] = ((), "")

    async def start(self, number: int) -> Kernel:
        """A new kernel. Raises `KernelStartError`."""
        from cave.kernel import Launch, start
        from cave.skills import trust

        workdir = self._home.workdir(self._session)
        workdir.mkdir(parents=True, exist_ok=True)
        launch = Launch(
            session=self._session,
            folder=self._home.folder(self._session),
            workdir=workdir,
            runtime=config.runtime_dir(self.settings),
            number=number,
            kernel=self.kernel,
            python=self.python,
            idle_timeout=self.settings.idle_timeout or None,
            hash_seed=self._home.hash_seed,
            env={} if self.settings.tracking == "auto" else {"CAVE_TRACKING": "hashes"},
            pending_after=None if self.settings.persistence == "live" else LEFT_ALONE,
            confinement=self._confinement(trust.readable()),
            policy=self.held,
            trials=self._home.path / "confinement.json",
            cwd=Path.cwd(),
            project=trust.openable(),
            templates=config.runtime_dir(self.settings) if self.settings.warm else None,
        )
        return await start(launch)

    @property
    def held(self) -> str:
        """Stands for what the policy and the settings hold a kernel to."""
        if self._held[0] != (key := (self.settings, self.policy)):
            found = self._confinement(None)
            self._held = key, "open" if found is None else found.digest
        return self._held[1]

    def _confinement(self, project: Path | None) -> Confinement | None:
        from cave.kernel import Confinement
        from cave.policy import Policy

        if self.settings.profile == "open":
            return None
        policy = self.policy or Policy()
        sizes = [
            set_ if said is None else said
            for said, set_ in (
                (policy.memory, self.settings.memory),
                (policy.file_size, self.settings.file_size),
            )
        ]
        return Confinement(
            profile=policy.profile,
            read=(*map(os.path.abspath, policy.read), *([str(project)] if project else [])),
            write=tuple(map(os.path.abspath, policy.write)),
            network=policy.network,
            env=policy.env,
            require=policy.confinement == "require",
            memory=sizes[0] or None,
            file_size=sizes[1] or None,
        )

    def exists(self, number: int) -> bool:
        """Whether a kernel of that number was begun, journaled or not."""
        return (self._home.folder(self._session) / "kernels" / str(number)).exists()

    async def adopt(self, number: int) -> Kernel | Death | None:
        """The kernel that another process started, or how it ended."""
        from cave.kernel import adopt

        return await adopt(self._home.folder(self._session), number)

    async def last_image(self, number: int) -> Image | None:
        """The image that a kernel left when no host was there; it is not given again."""
        from cave.kernel import discard, pending

        folder = self._home.folder(self._session)
        try:
            return await asyncio.to_thread(pending, folder, number)
        finally:
            discard(folder, number)

    async def progress(self, number: int, cell: int) -> tuple[Image, Inside] | None:
        """What a kernel kept in the midst of a cell, and where that was."""
        from cave.kernel import progress

        return await asyncio.to_thread(progress, self._home.folder(self._session), number, cell)

    def forget_progress(self, number: int) -> None:
        """It is committed, or worth nothing."""
        from cave.kernel import discard

        discard(self._home.folder(self._session), number, "progress")

    def item(self, number: int) -> str:
        """The item of a loop that was under way in a kernel that has ended."""
        from cave.kernel import item

        return item(self._home.folder(self._session), number)

    async def left_behind(
        self, number: int, *, after: int
    ) -> Sequence[SpooledCell | SpooledOutput]:
        """What a dead kernel had put out after message `after`."""
        from cave.kernel import left_behind

        return await left_behind(self._home.folder(self._session), number, after=after)


_homes: dict[tuple[Path, object], Home] = {}


def at(*, store: Store | str | Path | None = None) -> Home:
    """The Home of `CAVE_HOME` and a store (default: the database in it), the same each time."""
    path = config.home()
    key = (path, store)
    home = _homes.get(key)
    if home is None:
        home = _homes[key] = Home(path, _opened(store))
    return home


def _opened(store: Store | str | Path | None) -> Store | None:
    if not isinstance(store, str | Path):
        return store
    from cave.store import SQLStore

    return SQLStore(store)


async def close_all() -> None:
    """Finish what stores still write, and let go of their files."""
    while _homes:
        _, home = _homes.popitem()
        await home.store.close()


os.register_at_fork(after_in_child=_homes.clear)
