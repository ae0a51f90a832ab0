"""What IPython's caches keep alive: the newest, and what is small."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import _inkernel

retention = _inkernel.load("retention")


def shell(*results: Any) -> Any:
    """A shell after cells with these results, as far as retention looks."""
    out = dict(enumerate(results, 1))
    spaces = [{f"_{n}": value for n, value in out.items()} for _ in range(2)]
    for names in spaces:
        names |= {"_": results[-1], "__": results[-2], "___": results[-3]}
    history = SimpleNamespace(
        outputs=dict.fromkeys(range(1, 400)), exceptions={1: {}}, output_hist_reprs={1: "x"}
    )
    hook = SimpleNamespace(_=results[-1], __=results[-2], ___=results[-3])
    return SimpleNamespace(
        user_ns={"_oh": out, **spaces[0]},
        user_ns_hidden=spaces[1],
        displayhook=hook,
        history_manager=history,
        execution_count=400,
    )


def test_big_results_go_but_the_newest_and_small_ones_stay() -> None:
    """Of big results the newest stays everywhere, older ones nowhere; small ones stay."""
    big = [np.zeros(10_000_000) for _ in range(3)]
    it = shell("small", big[0], big[1], 7, big[2])
    retention.trim(it)
    assert set(it.user_ns["_oh"]) == {1, 4, 5}
    assert it.user_ns["_"] is big[2]
    assert it.user_ns["___"] == ""
    for old in big[:2]:
        held = [*it.user_ns.values(), *it.user_ns_hidden.values(), *vars(it.displayhook).values()]
        assert not any(value is old for value in held)


def test_histories_are_bounded() -> None:
    """IPython's own records of outputs and exceptions keep the last hundred cells."""
    it = shell(1, 2, 3)
    retention.trim(it)
    assert min(it.history_manager.outputs) == 301
    assert not it.history_manager.exceptions


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (np.zeros(1000), 8000),
        (pd.DataFrame({"a": np.zeros(1000)}), 8000),
        (pd.Series(np.zeros(1000)), 8000),
        ([np.zeros(1000)] * 3, 24_000),
        (b"x" * 5000, 5000),
    ],
)
def test_sizes_are_about_right(value: object, least: int) -> None:
    """The estimate sees the memory behind frames, arrays and lists of them."""
    assert least <= retention.size_of(value) < least * 2


def test_objects_that_cannot_be_measured_count_nothing() -> None:
    """A size that raises is no fault of the cell."""

    class Odd:
        @property
        def nbytes(self) -> int:
            raise RuntimeError

    assert retention.size_of(Odd()) == 0
