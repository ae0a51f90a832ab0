from __future__ import annotations

from cave.ports import Store
from cave.store import SQLStore
from cave.testing.store import SteppedClock, StoreContract


class TestSQLite(StoreContract):
    """The store of one machine keeps the contract."""

    def open_store(self, clock: SteppedClock) -> Store:
        return SQLStore(self.place / "cave.db", clock=clock, lease_ttl=self.lease_ttl)
