"""Match two tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import cave

MOST_CANDIDATES = 5_000_000


@cave.skill(version="1.0.0", outputs=("matched", "different", "only_left", "only_right", "summary"))
def match_tables(
    left: pd.DataFrame,
    right: pd.DataFrame,
    on: str | list[str] | dict[str, str] | None = None,
    *,
    within: dict[str, float] | None = None,
    compare: dict[str, float] | list[str] | None = None,
    exact: bool = False,
) -> dict[str, Any]:
    """Match rows one to one, on keys and within tolerances; gives what matches, differs, is left.

    `on` are key columns (a mapping where the two sides name them differently); `within` are
    columns with the most that they may differ (days for dates); `compare` are columns whose
    differences above their tolerance are told. `exact` keys count case and spaces.
    """
    keys = on if isinstance(on, dict) else {name: name for name in _listed(on)}
    near = dict(within or {})
    told = compare if isinstance(compare, dict) else dict.fromkeys(compare or [], 0.0)
    if not keys and not near:
        raise ValueError("give on= (key columns), within= (tolerances), or both")
    _check(left, "left", [*keys, *near, *told])
    _check(right, "right", [*keys.values(), *near, *told])
    rows = _candidates(left, right, keys, near, exact=exact)
    pairs = _assigned(left, right, rows, near, told)
    return _result(left, right, pairs, keys, told)


def _listed(on: str | list[str] | None) -> list[str]:
    return [on] if isinstance(on, str) else list(on or [])


def _check(frame: pd.DataFrame, side: str, names: list[str]) -> None:
    for name in names:
        if name not in frame.columns:
            raise KeyError(f"{side} has no column {name!r}; it has {list(frame.columns)}")


def _keys(frame: pd.DataFrame, names: list[str], *, exact: bool) -> list[Any]:
    """A hashable key for each row; None where a part is missing."""
    columns = [[_part(value, exact=exact) for value in frame[name].tolist()] for name in names]
    return [None if None in parts else parts for parts in zip(*columns, strict=True)]


def _part(value: Any, *, exact: bool) -> Any:
    if pd.isna(value):
        return None
    if exact:
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return " ".join(str(value).split()).casefold()


def _measure(column: pd.Series) -> np.ndarray:
    """Numbers as they are, dates in days."""
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=float, na_value=np.nan)
    present = column.dropna()
    if len(present) and all(hasattr(value, "__float__") for value in present):  # Decimals
        return pd.to_numeric(column.map(float, na_action="ignore")).to_numpy(dtype=float)
    moments = pd.to_datetime(column, utc=True)
    days = (moments - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
    return days.to_numpy(dtype=float)


def _candidates(
    left: pd.DataFrame,
    right: pd.DataFrame,
    keys: dict[str, str],
    near: dict[str, float],
    *,
    exact: bool,
) -> np.ndarray:
    """Pairs of positions that agree on the keys and on the first tolerance."""
    codes: dict[Any, int] = {}
    sides = []
    for frame, names in ((left, list(keys)), (right, list(keys.values()))):
        found = _keys(frame, names, exact=exact) if names else [()] * len(frame)
        numbers = [-1 if key is None else codes.setdefault(key, len(codes)) for key in found]
        sides.append(np.array(numbers, dtype=np.int64))
    ours, theirs = (np.flatnonzero(numbers >= 0) for numbers in sides)
    low, high, rank, width = _ranks(left, right, ours, theirs, near)
    theirs, rank = theirs[rank >= 0], rank[rank >= 0]
    place = sides[1][theirs] * width + rank  # sorted, a key's rows stand together, by their rank
    order = np.argsort(place, kind="stable")
    theirs, place = theirs[order], place[order]
    begin = np.searchsorted(place, sides[0][ours] * width + low)
    number = np.maximum(np.searchsorted(place, sides[0][ours] * width + high) - begin, 0)
    if number.sum() > MOST_CANDIDATES:
        raise ValueError(
            f"more than {MOST_CANDIDATES:,} pairs are possible; add a key to on=, or take "
            f"smaller tolerances"
        )
    offsets = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    return np.stack([np.repeat(ours, number), theirs[np.repeat(begin, number) + offsets]], axis=1)


def _ranks(
    left: pd.DataFrame,
    right: pd.DataFrame,
    ours: np.ndarray,
    theirs: np.ndarray,
    near: dict[str, float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """By the first tolerance: from and to which rank of `right` a row of `left` may match."""
    if not near:
        none = np.zeros(len(ours), dtype=np.int64)
        return none, none + 1, np.zeros(len(theirs), dtype=np.int64), 1
    name, tolerance = next(iter(near.items()))
    mine, yours = _measure(left[name])[ours], _measure(right[name])[theirs]
    known = np.unique(yours[~np.isnan(yours)])
    low = np.searchsorted(known, mine - _slack(tolerance), side="left")
    high = np.searchsorted(known, mine + _slack(tolerance), side="right")
    high[np.isnan(mine)] = 0
    low[np.isnan(mine)] = 0
    rank = np.where(np.isnan(yours), -1, np.searchsorted(known, yours))
    return low, high, rank, len(known) + 1


def _slack(tolerance: float) -> float:
    """A tolerance with room for how floats are written: 0.3 - 0.1 is within 0.2."""
    return tolerance + 1e-9 * max(1.0, abs(tolerance))


def _assigned(
    left: pd.DataFrame,
    right: pd.DataFrame,
    rows: np.ndarray,
    near: dict[str, float],
    told: dict[str, float],
) -> list[tuple[int, int]]:
    """The nearest pairs first, each row at most once."""
    distance = np.zeros(len(rows))
    for name, tolerance in near.items():
        apart = np.abs(_measure(left[name])[rows[:, 0]] - _measure(right[name])[rows[:, 1]])
        fits = apart <= _slack(tolerance)
        rows, distance, apart = rows[fits], distance[fits], apart[fits]
        distance = distance + (apart / tolerance if tolerance else 0)
    extra = np.zeros(len(rows))
    for name in told:
        apart = np.abs(_measure(left[name])[rows[:, 0]] - _measure(right[name])[rows[:, 1]])
        extra = extra + np.nan_to_num(apart, nan=np.inf)
    order = np.lexsort((rows[:, 1], rows[:, 0], extra, distance))
    used_left, used_right, pairs = set(), set(), []
    for a, b in rows[order].tolist():
        if a not in used_left and b not in used_right:
            used_left.add(a)
            used_right.add(b)
            pairs.append((a, b))
    return sorted(pairs)


def _result(
    left: pd.DataFrame,
    right: pd.DataFrame,
    pairs: list[tuple[int, int]],
    keys: dict[str, str],
    told: dict[str, float],
) -> dict[str, Any]:
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    mine, yours = left.iloc[ours], right.iloc[theirs]
    rows = pd.DataFrame({"left_row": mine.index, "right_row": yours.index})
    matched = pd.concat(
        [
            rows,
            mine.add_suffix("_left").reset_index(drop=True),
            yours.add_suffix("_right").reset_index(drop=True),
        ],
        axis=1,
    )
    labels = rows.assign(**{name: mine[name].to_numpy() for name in keys})
    different = [
        _differences(mine[name], yours[name], labels, name, tolerance)
        for name, tolerance in told.items()
    ]
    columns = [*labels.columns, "column", "left", "right", "difference"]
    only_left = left.iloc[sorted(set(range(len(left))) - set(ours))]
    only_right = right.iloc[sorted(set(range(len(right))) - set(theirs))]
    changed = pd.concat(different) if different else pd.DataFrame(columns=columns)
    summary: dict[str, Any] = {
        "left_rows": len(left),
        "right_rows": len(right),
        "matched": len(pairs),
        "different": int(changed["left_row"].nunique()) if len(changed) else 0,
        "only_left": len(only_left),
        "only_right": len(only_right),
    }
    for name in told:
        if pd.api.types.is_numeric_dtype(left[name]):
            summary[name] = {
                "left": float(left[name].sum()),
                "right": float(right[name].sum()),
                "difference": float(left[name].sum() - right[name].sum()),
                "of_matched": float(mine[name].sum() - yours[name].sum()),
                "of_only_left": float(only_left[name].sum()),
                "of_only_right": float(-only_right[name].sum()),
            }
    return {
        "matched": matched,
        "different": changed.reset_index(drop=True),
        "only_left": only_left,
        "only_right": only_right,
        "summary": summary,
    }


def _differences(
    mine: pd.Series, yours: pd.Series, labels: pd.DataFrame, name: str, tolerance: float
) -> pd.DataFrame:
    """Where a compared column differs, or is missing on one side only."""
    ours, theirs = _measure(mine), _measure(yours)
    apart = ours - theirs
    one_missing = np.isnan(ours) != np.isnan(theirs)
    differs = one_missing | (np.abs(np.nan_to_num(apart)) > _slack(tolerance))
    return labels[differs].assign(
        column=name,
        left=mine.to_numpy()[differs],
        right=yours.to_numpy()[differs],
        difference=apart[differs],
    )
