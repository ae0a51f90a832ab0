"""The snapshots of one session in use: taken after its cells, brought back into a kernel.

A Lineage sits between the journal, a live kernel and the files of `cave.snapshot`. It never
journals a snapshot before its file is on disk, and never lets go of one that a restore may
need.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cave import moments
from cave.errors import SnapshotCorrupt, SnapshotError, StaleImage, StoreError
from cave.events import (
    Event,
    Restored,
    RestoreReason,
    SnapshotsRetired,
    Standing,
    Variable,
)
from cave.image import Load, Note
from cave.ports import Kernel
from cave.saving import Saving, notes_of

if TYPE_CHECKING:
    from cave.policy.masking import Mask
    from cave.snapshot import Manifest, Plan

DISTRUST = 3
"""Snapshots whose manifest is good that are tried, newest first, before the session starts
with nothing."""


@dataclass(slots=True)
class Lineage(Saving):
    """What a session's kernels were, and what the next one will be."""

    _ahead: asyncio.Task[Plan | None] | None = None

    # -- bringing back -----------------------------------------------------------------------

    async def bring_back(
        self,
        kernel: Kernel,
        number: int,
        *,
        reason: RestoreReason,
        deadly: Collection[str] = (),
    ) -> Restored | None:
        """Bring the latest namespace that can be read into a new kernel, without the groups
        that are `deadly`.

        None when there is none. Raises `KernelDied`.
        """
        failures: list[str] = []
        distrust = 0
        try:
            for id in self.journal.history.lasting.line:
                try:
                    target = await self.manifest(id)
                except StoreError as error:  # found out at once: as many as there are
                    failures.append(str(error))
                    continue
                try:
                    return await self._load(
                        kernel, number, target, reason, failures=failures, deadly=deadly
                    )
                except StoreError as error:
                    failures.append(str(error))
                    distrust += 1
                    if distrust == DISTRUST:
                        break
        finally:
            await self._forget_plan()
        if failures:
            await self.give_up(number, reason, _why(failures))
        return None

    def prepare(self) -> None:
        """Begin to check what the next kernel comes back to, while that kernel starts."""
        if self._ahead is None and (line := self.journal.history.lasting.line):
            self._ahead = asyncio.ensure_future(self._plan_ahead(line[0]))

    async def _plan_ahead(self, id: str) -> Plan | None:
        try:
            target = await self.manifest(id)
            return await asyncio.to_thread(self.store.plan, target, live=None)
        except StoreError:  # met again, and told, by who needs it
            return None

    async def _planned(self, target: Manifest, live: Manifest | None) -> Plan:
        if self._ahead is not None and live is None:
            ahead, self._ahead = self._ahead, None
            plan = await ahead
            if plan is not None and plan.target.id == target.id:
                return plan
            if plan is not None:
                plan.close()
        return await asyncio.to_thread(self.store.plan, target, live=live)

    async def _forget_plan(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (plan := await ahead) is not None:
            plan.close()

    async def go_to(self, kernel: Kernel, number: int, id: str) -> Restored:
        """Bring the namespace of a live kernel to an earlier moment. Raises `SnapshotError`."""
        target = await self.manifest(id)
        live = await self._live()
        try:
            return await self._load(kernel, number, target, "asked", live=live)
        except StaleImage:  # something has changed that no cell was seen to reach
            return await self._load(kernel, number, target, "asked")

    async def _live(self) -> Manifest | None:
        """What is known of the kernel's namespace; nothing where that file is damaged."""
        image = self.journal.history.lasting.image
        try:
            return None if image is None else await self.manifest(image)
        except StoreError:
            return None

    async def _load(
        self,
        kernel: Kernel,
        number: int,
        target: Manifest,
        reason: RestoreReason,
        *,
        live: Manifest | None = None,
        failures: Sequence[str] = (),
        deadly: Collection[str] = (),
    ) -> Restored:
        began = self.journal.clock.monotonic()
        versions = target.versions(kernel.facts.python, await kernel.versions(target.packages))
        plan = await self._planned(target, live)
        later = self._later(target, failures) if failures else ()
        files: list[int] = []
        try:
            if reason == "asked" and plan.damaged:
                raise _damaged(target.id, plan.damaged)
            load = self._wanted(plan, deadly, [n for n in later if n.kind == "lost"])
            if self.mask is not None:
                load, files = await asyncio.to_thread(_with_secrets, self.mask, plan, load)
            found = await kernel.restore(load, lease=self.journal.lease)
        finally:
            plan.close()
            for file in files:
                os.close(file)
        notes = [*notes_of(target), *load.lost, *found, *later]
        event = Restored(
            snapshot=target.id,
            cell=target.cell,
            reason=reason,
            kernel=number,
            variables=self._known(target, load.lost),
            kept=plan.same,
            notes=tuple(dict.fromkeys(notes)),
            versions=versions,
            seconds=self.journal.clock.monotonic() - began,
            undone=() if reason == "asked" else self._undone(target.id),
            standing=self._standing(target.id) if reason == "asked" else (),
        )
        await self.journal.append(event, sync=True)
        return event

    def _standing(self, id: str) -> tuple[Standing, ...]:
        """What cells that the snapshot does not know have done to the world."""
        history = self.journal.history
        return history.ledger.past(set(history.lasting.past.cells(id)))

    def _undone(self, id: str) -> tuple[int, ...]:
        """Cells that have ended and whose work a snapshot does not have."""
        history = self.journal.history
        there = set(history.lasting.past.cells(id))
        now = [n for n in history.lasting.past.cells() if n not in there]
        return tuple(n for n in now if history.cells[n].kept and history.cells[n].status != "died")

    def _wanted(self, plan: Plan, deadly: Collection[str], lost: Sequence[Note]) -> Load:
        """What is loaded: nothing that is deadly, nor what needs it."""
        groups = {group.id: group for group in plan.target.groups}
        if any(groups[id].definitions for id in deadly if id in groups):
            deadly = {*deadly, *(group.id for group in groups.values() if group.uses)}
        types = {v.name: v.type for v in plan.target.variables} | self._types()
        notes = [n if n.type != "unknown" else replace(n, type=types.get(n.name, n.type))
                 for n in plan.load.lost]  # fmt: skip
        notes += [
            Note("lost", name, types.get(name, "object"), "reading it ended the kernel")
            for group in plan.load.groups
            if group.id in deadly
            for name in group.names
        ]
        return replace(
            plan.load,
            groups=tuple(group for group in plan.load.groups if group.id not in deadly),
            lost=(*notes, *lost),
            cells={v.name: v.cell for v in self._known(plan.target, lost)},
        )

    def _types(self) -> dict[str, str]:
        return {v.name: v.type for v in self.journal.history.held.values()}

    def _known(self, target: Manifest, lost: Sequence[Note]) -> tuple[Variable, ...]:
        """The variables of a snapshot, and others that are lost, as the journal knows them."""
        held, there = self.journal.history.held, {v.name for v in target.variables}
        variables = [held.get(v.name, v) if v.type == "unknown" else v for v in target.variables]
        others = [n.name for n in lost if n.name in held and n.name not in there]
        return (*variables, *(held[name] for name in others))

    def _later(self, target: Manifest, failures: Sequence[str]) -> tuple[Note, ...]:
        """What may differ from the latest snapshot where an older one is used."""
        history, why = self.journal.history, f"an older snapshot is used: {_why(failures)}"
        seen = moments.changed_between(history, target.id, history.lasting.latest)
        notes = []
        for v in target.variables:
            if seen is None or v.name in seen:
                notes.append(Note("changed", v.name, v.type, f"cells have changed it, and {why}"))
            else:
                unseen = f"no cell was seen to change it, but {why}"
                notes.append(Note("assumed", v.name, v.type, unseen))
        there = {v.name for v in target.variables}
        notes += [
            Note("lost", v.name, v.type, f"made after cell {target.cell}, and {why}")
            for v in history.held.values()
            if v.name not in there
        ]
        return tuple(notes)

    async def give_up(self, number: int, reason: RestoreReason, why: str) -> None:
        """Journal that nothing could be brought back, and of what."""
        variables = tuple(self.journal.history.held.values())
        notes = tuple(Note("lost", v.name, v.type, why) for v in variables)
        await self.journal.append(
            Restored(snapshot="", cell=0, reason=reason, kernel=number, notes=notes)
        )

    # -- looking and cleaning ----------------------------------------------------------------

    async def retire(self, keep: set[str]) -> Sequence[Event]:
        """Let go of snapshots that are not in `keep`, journal first."""
        gone = tuple(id for id in self.journal.history.lasting.snapshots if id not in keep)
        if not gone:
            return ()
        await self.mend()
        event = SnapshotsRetired(snapshots=gone)
        await self.journal.append(event)
        await asyncio.to_thread(self._let_go, keep)
        return (event,)

    def _let_go(self, keep: set[str]) -> None:
        try:
            self.store.retire(keep)
        except SnapshotCorrupt:  # one that cannot be read keeps nothing
            self.store.retire({id for id in keep if self._readable(id)})

    def _readable(self, id: str) -> bool:
        try:
            self.store.read(id)
        except SnapshotError:
            return False
        return True

    @property
    def back(self) -> str | None:
        """Of when the next kernel's namespace would be, in words; None without a snapshot."""
        lasting = self.journal.history.lasting
        latest = lasting.snapshots.get(lasting.latest)
        if latest is None:
            return None
        inside = latest.inside
        return (
            f"after cell {latest.cell}"
            if inside is None
            else (f"inside cell {inside.cell}, before {inside}; s.resume() goes on there")
        )


def _with_secrets(mask: Mask, plan: Plan, load: Load) -> tuple[Load, list[int]]:
    """What is loaded, with the secrets that its groups refer to; what needs one that is not
    to be had is lost."""
    groups = {group.id: group for group in plan.target.groups}
    types = {v.name: v.type for v in plan.target.variables}
    made, files = mask.veil.load(load, {id: group.notes for id, group in groups.items()})
    there = {group.id for group in made.groups}
    gone = {g.id for g in load.groups if g.id not in there}
    if any(groups[id].definitions for id in gone):
        spread = [g for g in made.groups if groups[g.id].uses]
        why = "it needs definitions of the session that hold a secret"
        lost = [Note("lost", n, "unknown", why) for g in spread for n in g.names]
        kept = tuple(g for g in made.groups if g not in spread)
        made = replace(made, groups=kept, lost=(*made.lost, *lost))
    named = [n if n.type != "unknown" else replace(n, type=types.get(n.name, "object"))
             for n in made.lost]  # fmt: skip
    return replace(made, lost=tuple(named)), files


def _why(failures: Sequence[str]) -> str:
    more = len(failures) - 1
    return failures[0] + (f" (nor can {more} others be used)" if more else "")


def _damaged(id: str, notes: Sequence[Note]) -> SnapshotCorrupt:
    names = ", ".join(dict.fromkeys(note.name for note in notes))
    return SnapshotCorrupt(
        f"snapshot {id} is damaged, so that it lacks {names} ({notes[0].reason}); nothing was "
        f"changed; s.fork('another', at={id!r}) gives a session with the rest of it"
    )
