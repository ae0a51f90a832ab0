from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cave.errors import LeaseLost, SessionBusy, SessionNotFound
from cave.ports import Lease
from cave.store import SQLStore, this_process
from cave.testing.store import SteppedClock, cells, journal

TTL = 30.0
HOLDERS = st.integers(0, 2)
NAMES = st.sampled_from(["a", "b"])


class Model:
    """What a session should be, kept by the simplest means."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.lease: Lease | None = None
        self.busy = False
        self.until = 0.0

    def is_free_for(self, holder: int, at: float, machine: JournalMachine) -> bool:
        mine = self.lease is not None and self.lease.holder == machine.holders[holder]
        return mine or not self.busy or at >= self.until


class JournalMachine(RuleBasedStateMachine):
    """Three holders on two stores, two sessions, a clock: against a model in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = SteppedClock()
        self.holders = [replace(this_process(), token=str(n)) for n in range(3)]
        self.stores = [self.opened() for _ in range(2)]
        self.models: dict[str, Model] = {}
        self.leases: dict[tuple[str, int], Lease] = {}
        self.counter = 0

    def opened(self) -> SQLStore:
        return SQLStore(Path(self.folder.name) / "cave.db", clock=self.clock, lease_ttl=TTL)

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()
        self.folder.cleanup()

    def store(self, holder: int) -> SQLStore:
        return self.stores[holder % 2]

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        made = self.runner.run(self.stores[0].create(name))
        assert made == (name not in self.models)
        self.models.setdefault(name, Model())

    @rule(name=NAMES, holder=HOLDERS)
    def acquire(self, name: str, holder: int) -> None:
        model = self.models.get(name)
        call = self.store(holder).acquire(name, self.holders[holder])
        if model is None:
            self.refused(call, SessionNotFound)
            return
        if not model.is_free_for(holder, self.clock.monotonic(), self):
            self.refused(call, SessionBusy)
            return
        lease = self.runner.run(call)
        before = model.lease
        if before is not None and before.holder == lease.holder:
            assert lease == before
        else:
            assert lease.number == (0 if before is None else before.number) + 1
        model.lease, model.busy, model.until = lease, True, self.clock.monotonic() + TTL
        self.leases[name, holder] = lease

    @rule(name=NAMES, holder=HOLDERS, count=st.integers(0, 3), sync=st.booleans())
    def append(self, name: str, holder: int, count: int, sync: bool) -> None:
        self._append(name, holder, count, sync=sync, release=False)

    @rule(name=NAMES, holder=HOLDERS, count=st.integers(0, 3))
    def append_and_release(self, name: str, holder: int, count: int) -> None:
        self._append(name, holder, count, sync=False, release=True)

    def _append(self, name: str, holder: int, count: int, *, sync: bool, release: bool) -> None:
        lease = self.leases.get((name, holder))
        if lease is None:
            return
        numbers = list(range(self.counter, self.counter + count))
        self.counter += count
        call = self.store(holder).append(lease, cells(*numbers), sync=sync, release=release)
        model = self.models.get(name)
        if model is None:
            self.refused(call, SessionNotFound)
        elif model.lease != lease:
            self.refused(call, LeaseLost)
        else:
            events = self.runner.run(call)
            assert [e.seq for e in events] == [len(model.written) + n + 1 for n in range(count)]
            model.written += numbers
            model.busy, model.until = not release, self.clock.monotonic() + TTL

    @rule(name=NAMES, holder=HOLDERS)
    def release(self, name: str, holder: int) -> None:
        lease = self.leases.get((name, holder))
        if lease is None:
            return
        self.runner.run(self.store(holder).release(lease))
        model = self.models.get(name)
        if model is not None and model.lease == lease:
            model.busy = False

    @rule(name=NAMES, holder=HOLDERS)
    def renew(self, name: str, holder: int) -> None:
        lease, model = self.leases.get((name, holder)), self.models.get(name)
        if lease is None or model is None:
            return
        call = self.store(holder).renew(lease)
        if model.lease != lease:
            self.refused(call, LeaseLost)
            return
        self.runner.run(call)
        model.until = self.clock.monotonic() + TTL

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        model = self.models.get(name)
        call = self.stores[1].delete(name)
        if model is None:
            self.refused(call, SessionNotFound)
        elif model.busy and self.clock.monotonic() < model.until:
            self.refused(call, SessionBusy)
        else:
            self.runner.run(call)
            del self.models[name]
            for holder in range(3):  # numbers of the next session of that name start again
                self.leases.pop((name, holder), None)

    @rule(seconds=st.sampled_from([1.0, TTL / 2, TTL, TTL * 2]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.floats(-1e6, 1e6))
    def set_the_date(self, seconds: float) -> None:
        self.clock.wall += seconds

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.runner.run(self.stores[which].close())
        self.stores[which] = self.opened()

    def refused(self, call: object, error: type[Exception]) -> None:
        try:
            self.runner.run(call)  # type: ignore[arg-type]
        except error:
            return
        raise AssertionError(f"was not refused as {error.__name__}")

    @invariant()
    def journals_are_what_was_written(self) -> None:
        store = self.stores[0]
        for name, model in self.models.items():
            events = self.runner.run(journal(store, name))
            assert [getattr(e, "cell", None) for e in events] == model.written
            assert [e.at for e in events] == sorted(e.at for e in events)
            assert self.runner.run(store.verify(name)) == []
            info = self.runner.run(store.info(name))
            operated = model.busy and self.clock.monotonic() < model.until
            assert (info.holder is not None) == operated
            assert info.events == len(model.written)


JournalMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
TestJournal = JournalMachine.TestCase
"""Whatever is done in whatever order, journal and leases agree with the model."""
