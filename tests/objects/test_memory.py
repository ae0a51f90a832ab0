"""Memory that objects share, over several lives of a kernel."""

from __future__ import annotations

import psutil
import pytest

import cave
from cave.events import SnapshotCommitted

pytestmark = pytest.mark.usefixtures("sessions")
LARGE = 8 << 20


def test_views_stay_views_and_large_memory_is_written_once_in_four_lives() -> None:
    """An array, views of it, a frame over it: killed, brought back and changed four times they
    share memory, and a snapshot holds only the pages that were written to."""
    s = cave.open("lives")
    s.run(
        "import numpy as np, pandas as pd\n"
        f"big = np.zeros({LARGE} // 8); tail = big[-1000:]; odd = big[1:-1:3]\n"
        f"base = np.zeros(({LARGE} // 16, 2)); df = pd.DataFrame(base, copy=False)\n"
        "ba = bytearray(100); mv = memoryview(ba)[10:]; held = {'tail': tail}"
    )
    for life in range(1, 5):
        process = psutil.Process(s.kernel.pid)
        process.kill()
        psutil.wait_procs([process], timeout=30)
        before = len(s.events())
        cell = s.run(
            f"big[-1] = {life}; big[4] = -{life}; base[1, 0] = {life}; ba[10] = {life}\n"
            "assert np.shares_memory(big, tail) and np.shares_memory(big, odd)\n"
            "assert np.shares_memory(base, df.to_numpy())\n"
            f"print(tail[-1], odd[1], df.iloc[1, 0], mv[0], held['tail'] is tail)"
        )
        assert cell.text.strip() == f"{life}.0 -{life}.0 {life}.0 {life} True"
        taken = [e for e in s.events()[before:] if isinstance(e, SnapshotCommitted)]
        assert sum(e.written for e in taken) < LARGE / 4, life
