"""Arrow streams that were changed on the way: read to an end, or refused, never a crash.

400 of them; 10,000 with `scripts/crash`. `CAVE_CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys

import pyarrow as pa
import pytest

from cave.errors import NotPortable
from cave.kernel import values
from cave.kernel.values import Parcel
from tests.kernel import _arrow

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
COUNT = 10_000 if os.environ.get("CAVE_CRASH_ROUNDS") else 400
EACH = 2_500
"""Streams that one process reads."""


def little_memory() -> None:
    """A stream of some kilobytes has no right to more."""
    resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))


@pytest.mark.timeout(1800)
def test_mutated_streams_crash_and_hang_nobody() -> None:
    """Each gives a value, at all of which one can look, or `NotPortable`; in 2 GB of memory."""
    print(f"seed {SEED}")
    came = 0
    for start in range(0, COUNT, EACH):
        count = min(EACH, COUNT - start)
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "tests.kernel._arrow",
             f"{SEED}-{start}", str(count)],
            capture_output=True, text=True, timeout=900, check=False, preexec_fn=little_memory,
        )  # fmt: skip
        last = done.stdout.splitlines()[-1:] or [""]
        assert done.returncode == 0, (SEED, start, last, done.stderr[-3000:])
        came += int(last[0].removeprefix("came "))
    print(f"{COUNT} streams: {came} gave a value, the others were refused")
    assert 0 < came < COUNT


def test_a_compressed_stream_is_refused() -> None:
    """No kernel of ours compresses, and a few bytes could become more than the memory."""
    many = pa.table({"a": pa.array([0] * 100_000), "d": pa.array(["x"] * 100_000)})
    for table in (many, many.set_column(1, "d", many["d"].dictionary_encode())):
        header, buffers = _arrow.compressed(table)
        with pytest.raises(NotPortable, match="a compressed stream"):
            values.unpack(Parcel("safe", header, buffers), name="v")
