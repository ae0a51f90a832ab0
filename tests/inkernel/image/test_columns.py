"""Columns of plain objects: written once while they stay the same, never stale."""

from typing import Any

import numpy as np
import pytest

from tests._inkernel import load

columns = load("image.columns")


def mixed(count: int = 5000) -> Any:
    values = [
        (f"key {i % 7}", i, i / 3, None, True, b"bytes", float("nan"))[i % 7] for i in range(count)
    ]
    made = np.empty(count, object)
    made[:] = values
    return made


def again(array: Any) -> Any:
    make, given = columns.reduce(array, array.ravel())
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return make(*given, array.shape, order, array.flags.writeable)


@pytest.mark.parametrize("shape", [(5000,), (50, 100)])
def test_a_column_comes_back_as_it_was(shape: tuple[int, ...]) -> None:
    """Each element has its value and its very type."""
    array = mixed().reshape(shape)
    array.flags.writeable = False
    made = again(array)
    assert made.shape == array.shape
    assert not made.flags.writeable
    for was, now in zip(array.ravel(), made.ravel(), strict=True):
        assert type(was) is type(now)
        assert was == now or was != was  # noqa: PLR0124  NaN


def test_a_column_that_is_the_same_is_written_once() -> None:
    """The very same memory is given for it, so that nothing of it is hashed anew."""
    array = mixed()
    assert columns.reduce(array, array)[1][0] is columns.reduce(array, array)[1][0]


@pytest.mark.parametrize("value", ["another", 1, None])
def test_an_element_that_changes_is_seen(value: object) -> None:
    """A change in place makes the column new, whatever it was before."""
    array = mixed()
    columns.reduce(array, array)
    array[3] = value
    assert again(array)[3] == value
    array[3] = 2.5
    assert again(array)[3] == 2.5


def test_a_new_object_where_an_old_one_was_is_seen() -> None:
    """Objects that a column had are held, so that nothing new can have their address."""
    array = np.array([f"text {i}" for i in range(2000)], object)
    for turn in range(20):
        columns.reduce(array, array)
        array[7] = "turn " + str(turn)
        assert again(array)[7] == f"turn {turn}"


def test_what_can_change_inside_is_not_kept() -> None:
    """Lists, and whatever else is not plain, are written each time by others."""
    array = mixed()
    array[4] = [1]
    assert columns.reduce(array, array) is None


def test_what_is_kept_of_a_column_ends_with_it() -> None:
    """Memory does not grow by columns that were."""
    before = len(columns._kept)
    array = mixed()
    columns.reduce(array, array)
    assert len(columns._kept) == before + 1
    del array
    assert len(columns._kept) == before


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns that were not written for longest are let go of first."""
    monkeypatch.setattr(columns, "_MUCH", 40_000)
    arrays = [mixed() for _ in range(12)]
    for array in arrays:
        columns.reduce(array, array)
    assert sum(column.pointers.nbytes for column in columns._kept.values()) <= 160_000


def test_what_was_one_object_is_one_object_again() -> None:
    """A column of few distinct texts takes no more memory afterwards than before."""
    values = [f"text {i}" for i in range(9)]
    array = np.array(values * 500, object)
    made = again(array)
    assert len({id(value) for value in made}) == 9
    assert list(made) == list(array)


def test_a_column_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy alone is enough."""
    monkeypatch.setitem(columns.sys.modules, "pandas", None)
    array = mixed()
    assert [repr(value) for value in again(array)] == [repr(value) for value in array]
