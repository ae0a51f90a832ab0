"""A random life of snapshots against a model that holds all their contents."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cave.snapshot import Manifest, Snapshots, differences
from tests.snapshot._images import (
    World,
    content,
    image,
    loaded,
    names_of,
    opened,
    same,
    variables,
    write,
)

CHUNK = 4096
GROUPS = st.sampled_from(["a", "b", "c", "d"])
SIZES = st.sampled_from([0, 1, 100, CHUNK, CHUNK + 1, 4 * CHUNK, 9 * CHUNK - 5, 70 * CHUNK])
SEEDS = st.integers(0, 5)
"""Few, so that content comes again."""


class SnapshotMachine(RuleBasedStateMachine):
    """One kernel's world, its snapshots, forks of them; new owners, retirements, steps back."""

    def __init__(self) -> None:
        super().__init__()
        self.unsynced = mock.patch("os.fsync")
        self.unsynced.start()
        self.root = Path(tempfile.mkdtemp(prefix="cave-machine"))
        self.store = opened(self.root / "0", "s0")
        self.world: World = {}
        self.base: tuple[Manifest, World] | None = None
        self.kept: dict[str, World] = {}
        self.number = 0
        self.forks: list[tuple[Snapshots, str, World]] = []

    def teardown(self) -> None:
        self.unsynced.stop()
        for store, id, world in self.forks:
            self.must_be(store, id, world)
        assert self.store.verify(deep=True) == []
        shutil.rmtree(self.root)

    # -- the kernel's world --------------------------------------------------------------------

    @rule(name=GROUPS, seed=SEEDS, size=SIZES, more=SIZES, uses=st.booleans())
    def bind(self, name: str, seed: int, size: int, more: int, uses: bool) -> None:
        chance = random.Random(seed)
        stream = chance.randbytes(20) if seed % 2 else b"long stream " * 3000
        buffers = chance.randbytes(size), bytes(more)
        self.world = {**self.world, name: content(stream, *buffers, uses=uses)}

    @rule(seed=SEEDS)
    def define(self, seed: int) -> None:
        rest = {id: c for id, c in self.world.items() if id != "defs"}
        self.world = {"defs": content(f"classes {seed}", definitions=True), **rest}

    @precondition(lambda self: any(c.buffers.get("b0") for c in self.world.values()))
    @rule(data=st.data())
    def poke(self, data: st.DataObject) -> None:
        names = sorted(id for id, c in self.world.items() if c.buffers.get("b0"))
        name = data.draw(st.sampled_from(names))
        group = self.world[name]
        buffer = bytearray(group.buffers["b0"])
        for at in data.draw(st.lists(st.integers(0, len(buffer) - 1), min_size=1, max_size=3)):
            buffer[at] ^= 255
        changed = replace(group, buffers={**group.buffers, "b0": bytes(buffer)})
        self.world = {**self.world, name: changed}

    @precondition(lambda self: self.world)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world)))
        self.world = {id: c for id, c in self.world.items() if id != name}

    # -- snapshots -----------------------------------------------------------------------------

    def next_id(self) -> str:
        self.number += 1
        return f"{self.number:06d}-{self.number:08x}"

    @rule()
    def take(self) -> None:
        id = self.next_id()
        made = write(self.store, id, self.world, self.base, chunk=CHUNK)
        self.taken(made)

    @rule(known=st.booleans())
    def take_whole(self, known: bool) -> None:
        id = self.next_id()
        base = self.base[0] if self.base and known else None
        given = image(id, self.world, chunk=CHUNK)
        facts = variables(self.world)
        self.taken(self.store.write(given, base=base, cell=1, at=0.0, variables=facts))

    def taken(self, made: Manifest) -> None:
        self.base = made, self.world
        self.kept[made.id] = self.world

    @rule()
    def change_owner(self) -> None:
        """Another process goes on; it knows what is on disk."""
        self.store = opened(self.root / "0", "s0")
        if self.base is not None:
            self.base = self.store.read(self.base[0].id), self.base[1]

    @precondition(lambda self: self.base)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        assert self.base is not None
        some = data.draw(st.sets(st.sampled_from(sorted(self.kept)), max_size=4))
        keep = {*some, self.base[0].id}
        self.store.retire(keep)
        self.kept = {id: world for id, world in self.kept.items() if id in keep}

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def step_back(self, data: st.DataObject) -> None:
        """What stays and what is loaded is the target's world together."""
        id = data.draw(st.sampled_from(sorted(self.kept)))
        target, world = self.store.read(id), self.kept[id]
        plan = self.store.plan(target, live=self.base[0] if self.base else None)
        try:
            found = {**{g: self.base_world[g] for g in plan.load.keep}, **loaded(plan.load)}
        finally:
            plan.close()
        assert not plan.damaged
        assert {g: (c.stream, dict(c.buffers)) for g, c in found.items()} == {
            g: (c.stream, dict(c.buffers)) for g, c in world.items()
        }
        if plan.load.keep and any(c.definitions for c in world.values()):
            using = {g for g in plan.load.keep if world[g].uses}
            assert not using or "defs" in plan.load.keep
        self.world, self.base = world, (target, world)

    @property
    def base_world(self) -> World:
        return self.base[1] if self.base else {}

    @precondition(lambda self: self.kept and len(self.forks) < 3)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.kept)))
        number = len(self.forks) + 1
        fork = opened(self.root / str(number), f"s{number}")
        made = fork.link_from(self.store, id)
        self.forks.append((fork, made.id, self.kept[id]))

    @precondition(lambda self: self.base and self.forks)
    @rule()
    def go_on_in_fork(self) -> None:
        """A fork takes a snapshot of its own and lets go of all before."""
        fork, id, world = self.forks.pop()
        base = fork.read(id)
        changed = {**world, "own": content("own", random.Random(1).randbytes(9 * CHUNK))}
        new = f"000999-{len(self.forks):08x}"
        if new not in fork.ids():
            made = write(fork, new, changed, (base, world), chunk=CHUNK)
            fork.retire({made.id})
            id, world = made.id, changed
        self.forks.append((fork, id, world))

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def all_kept_snapshots_are_whole(self) -> None:
        assert set(self.store.ids()) == set(self.kept)
        for id in sorted(self.kept)[-3:]:
            self.must_be(opened(self.root / "0", "s0"), id, self.kept[id])

    @invariant()
    def differences_are_right(self) -> None:
        if self.base is None or not self.kept:
            return
        first = min(self.kept)
        old, new = self.kept[first], self.base[1]
        found = differences(self.store.read(first), self.base[0])
        assert set(found.added) == new.keys() - old.keys()
        assert set(found.removed) == old.keys() - new.keys()
        both = old.keys() & new.keys()
        same_content = {
            g for g in both if (old[g].stream, old[g].buffers) == (new[g].stream, new[g].buffers)
        }
        assert set(found.unchanged) == same_content

    @staticmethod
    def must_be(store: Snapshots, id: str, world: World) -> None:
        manifest = store.read(id)
        plan = store.plan(manifest, live=None)
        try:
            assert not plan.damaged, plan.damaged
            assert same(world, loaded(plan.load))
        finally:
            plan.close()
        assert [g.names for g in manifest.groups] == [names_of(n, c) for n, c in world.items()]
        assert {v.name for v in manifest.variables} == set(world)


TestSnapshots = SnapshotMachine.TestCase
TestSnapshots.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
