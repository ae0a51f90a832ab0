"""Looking back: what a session knows of its past, and its files. A part of `AsyncSession`."""

from __future__ import annotations

import asyncio
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from cave import artefacts
from cave.events import Event, Usage
from cave.history import History
from cave.home import Home
from cave.journal import Journal
from cave.policy.masking import Mask
from cave.turn import Cell, Numbered, Turn


class Record:
    """What can be read without touching the kernel."""

    name: str
    home: Home
    _fold: History
    _journal: Journal
    _mask: Mask

    async def refresh(self) -> None:
        """Read what other processes have journaled meanwhile."""
        if not self._journal.operating:
            await self._journal.refresh()

    @property
    def history(self) -> Numbered[Cell]:
        """The cells that have ended, by their numbers."""
        return Numbered("cell", self._fold.cells)

    @property
    def turns(self) -> Numbered[Turn]:
        """The turns that have ended, by their numbers."""
        return Numbered("turn", self._fold.turns)

    @property
    def usage(self) -> Usage:
        """What the session has spent in all."""
        return self._fold.usage

    @property
    def pending(self) -> Turn | None:
        """The turn that was cut or waits, for `resume`."""
        return self._fold.pending

    async def events(self, after: int = 0) -> list[Event]:
        """The journal's events with `seq > after`."""
        return [e async for e in self.home.store.read(self.name, after=after)]

    # -- files -------------------------------------------------------------------------------

    @property
    def workdir(self) -> Path:
        """The cwd of cells."""
        return self.home.workdir(self.name)

    @property
    def files(self) -> tuple[str, ...]:
        """Regular files in the workdir, as relative paths; links are not followed."""
        return artefacts.files(self.workdir)

    def save(self, name: str, to: str | Path) -> Path:
        """Copy a file out of the workdir, into a folder or to a path; links are refused."""
        return artefacts.save(self.workdir, name, to)

    async def export(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the story of the session to a new `.ipynb` or `.py` file, or its namespace to a
        `.dill` file, which plain dill loads; what dill cannot write is left out with a warning.
        """
        from cave.export import export, write

        path = Path(path)
        if path.suffix.lower() == ".dill":
            data, left_out = await self.dill()
            if left_out:
                told = "; ".join(f"{name} ({why})" for name, why in left_out.items())
                warnings.warn(f"{path.name} is without {told}", stacklevel=2)
            return await asyncio.to_thread(write, path, data, new=not overwrite)
        events = await self.events()
        return await asyncio.to_thread(
            export,
            map(self._mask.event, events),
            path,
            name=self.name,
            read_blob=lambda key: self._mask.text(self.home.text(key)),
            overwrite=overwrite,
        )

    @abstractmethod
    async def dill(self) -> tuple[bytes, Mapping[str, str]]:
        """The namespace as dill writes it; and names left out, with the reason."""
