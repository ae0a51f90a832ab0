"""Profile, clean and check tables."""

from __future__ import annotations

import pandas as pd

import cave


@cave.skill(version="1.0.0")
def profile_table(df: pd.DataFrame) -> pd.DataFrame:
    """One row for each column: type, missing, distinct, range, an example, what it looks like.

    Use it first with every table that is new.
    """
    rows = []
    for at, name in enumerate(df.columns):
        column = df.iloc[:, at]
        present = column.dropna()
        try:
            distinct: int | None = int(present.nunique())
        except TypeError:  # lists and dicts have no hash
            distinct = None
        ordered = pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(
            column
        )
        rows.append(
            {
                "column": name,
                "type": str(column.dtype),
                "missing": int(column.isna().sum()),
                "distinct": distinct,
                "min": present.min() if ordered and len(present) else None,
                "max": present.max() if ordered and len(present) else None,
                "mean": float(present.mean()) if _is_number(column) and len(present) else None,
                "example": present.iloc[0] if len(present) else None,
                "looks_like": _looks_like(present),
            }
        )
    return pd.DataFrame(rows)


@cave.skill(version="1.0.0", outputs=("cleaned", "report"))
def clean_table(
    df: pd.DataFrame,
    *,
    rename: bool = True,
    drop_duplicates: bool = True,
    dayfirst: bool | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """A cleaned copy, and a list of what was done.

    Names become snake_case; texts are trimmed, empty ones missing; texts that are all numbers
    or all dates become such; empty rows and columns and exact duplicates go.
    """
    made, report = df.copy(), []
    if rename:
        names = _names(list(made.columns))
        changed = [
            f"{old} -> {new}" for old, new in zip(made.columns, names, strict=True) if old != new
        ]
        made.columns = names
        report += [f"renamed {', '.join(changed)}"] if changed else []
    columns = {}
    for at, name in enumerate(made.columns):
        column, done = _cleaned(made.iloc[:, at], dayfirst=dayfirst)
        columns[at] = column
        report += [f"{name}: {text}" for text in done]
    made = pd.concat(columns.values(), axis=1) if columns else made
    empty = [name for name in made.columns if made[name].isna().all().all()] if len(made) else []
    if empty:
        made = made.drop(columns=empty)
        report.append(f"dropped empty columns {', '.join(map(str, empty))}")
    rows = len(made)
    made = made.dropna(how="all")
    if len(made) < rows:
        report.append(f"dropped {rows - len(made)} empty rows")
    if drop_duplicates:
        try:
            twice = made.duplicated()
        except TypeError:  # lists and dicts have no hash
            twice = made.astype(str).duplicated()
        if twice.any():
            made = made[~twice]
            report.append(f"dropped {int(twice.sum())} rows that were there twice")
    return made.reset_index(drop=True), report


@cave.skill(version="1.0.0")
def check_join(
    left: pd.DataFrame, right: pd.DataFrame, on: str | list[str] | dict[str, str]
) -> dict[str, object]:
    """What a merge would do, before it is done: duplicates, rows without a partner, rows made.

    `on` is a column, several, or a mapping from columns of `left` to columns of `right`.
    """
    pairs = (
        on
        if isinstance(on, dict)
        else {name: name for name in ([on] if isinstance(on, str) else on)}
    )
    for name, frame, columns in (("left", left, pairs), ("right", right, pairs.values())):
        absent = [column for column in columns if column not in frame.columns]
        if absent:
            raise KeyError(f"{name} has no column {absent[0]!r}; it has {list(frame.columns)}")
    keys = left[list(pairs)], right[list(pairs.values())].set_axis(list(pairs), axis=1)
    whole = [key.dropna() for key in keys]
    types = {
        name: (str(keys[0][name].dtype), str(keys[1][name].dtype))
        for name in pairs
        if _family(keys[0][name]) != _family(keys[1][name])
    }
    if types:
        whole = [key.astype(str) for key in whole]
    counts = [key.value_counts() for key in whole]
    shared = counts[0].index.intersection(counts[1].index)
    found = {
        "left_rows": len(left),
        "right_rows": len(right),
        "left_missing_keys": len(left) - len(whole[0]),
        "right_missing_keys": len(right) - len(whole[1]),
        "left_duplicates": int((counts[0] - 1).sum()),
        "right_duplicates": int((counts[1] - 1).sum()),
        "left_only": int(counts[0].drop(shared).sum()),
        "right_only": int(counts[1].drop(shared).sum()),
        "inner_rows": int((counts[0].loc[shared] * counts[1].loc[shared]).sum()),
        "examples": {
            "left_only": [_plain(key) for key in counts[0].drop(shared).index[:5]],
            "right_only": [_plain(key) for key in counts[1].drop(shared).index[:5]],
        },
        "hint": "",
    }
    if types:
        told = "; ".join(f"{name} is {a} and {b}" for name, (a, b) in types.items())
        found["hint"] = f"the keys have different types ({told}); make them one before you merge"
    elif found["left_only"]:
        found["hint"] = _nearly(*whole, shared)
    return found


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _is_text(column: pd.Series) -> bool:
    return len(column) > 0 and all(isinstance(value, str) for value in column)


def _looks_like(present: pd.Series) -> str:
    if not _is_text(present):
        return ""
    if _numbers(present) is not None:
        return "number"
    return "date" if _dates(present, dayfirst=None) is not None else ""


def _numbers(texts: pd.Series) -> pd.Series | None:
    """The numbers that all texts are; None where one is not, or is an identifier."""
    bare = texts.str.strip().str.replace(r"^([-+]?)[€$£]\s*|\s*(?:[€$£%])$", r"\1", regex=True)
    if bare.str.match(r"^[-+]?0\d").any():
        return None
    english = r"[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
    german = r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?"
    if bare.str.fullmatch(english).all():
        ambiguous = bare.str.contains(",") & ~bare.str.contains(r"\.|,.*,")
        if ambiguous.any() and bare.str.fullmatch(german).all():
            return None  # 1,234 alone may be either
        return pd.to_numeric(bare.str.replace(",", ""))
    if bare.str.fullmatch(german).all():
        return pd.to_numeric(bare.str.replace(".", "").str.replace(",", "."))
    return None


def _dates(texts: pd.Series, *, dayfirst: bool | None) -> pd.Series | None:
    bare = texts.str.strip()
    if bare.str.match(r"^\d{4}-\d{1,2}-\d{1,2}(?:[T ].*)?$").all():
        parsed = pd.to_datetime(bare, errors="coerce", format="ISO8601")
        return None if parsed.isna().any() else parsed
    parts = bare.str.extract(r"^(\d{1,2})([./-])(\d{1,2})\2(\d{4})$")
    if parts.isna().any().any():
        return None
    first, second = parts[0].astype(int), parts[2].astype(int)
    fits = {True: (second <= 12).all(), False: (first <= 12).all()}
    order = dayfirst
    if order is None:
        if parts[1].eq(".").all():
            order = True
        elif fits[True] != fits[False]:
            order = bool(fits[True])
        else:
            return None
    day, month = (first, second) if order else (second, first)
    frame = pd.DataFrame({"year": parts[3].astype(int), "month": month, "day": day})
    parsed = pd.to_datetime(frame, errors="coerce")
    return None if parsed.isna().any() else parsed


def _cleaned(column: pd.Series, *, dayfirst: bool | None) -> tuple[pd.Series, list[str]]:
    present = column.dropna()
    if not _is_text(present):
        return column, []
    done = []
    trimmed = present.str.strip()
    if (trimmed != present).any():
        done.append(f"trimmed {int((trimmed != present).sum())} texts")
    empty = trimmed.str.lower().isin(["", "n/a", "na", "null", "none", "-"])
    if empty.any():
        done.append(f"{int(empty.sum())} empty texts are missing values")
    kept = trimmed[~empty]
    if not len(kept):
        return kept.reindex(column.index), done
    for kind, parsed in (("numbers", _numbers(kept)), ("dates", _dates(kept, dayfirst=dayfirst))):
        if parsed is not None:
            return parsed.rename(column.name).reindex(column.index), [*done, f"texts are {kind}"]
    if kept.str.match(r"^\d{1,2}/\d{1,2}/\d{4}$").all():
        done.append("may be dates, day or month first: give dayfirst=")
    return kept.reindex(column.index), done


def _names(names: list[object]) -> list[str]:
    import re

    made: list[str] = []
    for at, name in enumerate(names):
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name))
        base = re.sub(r"\W+", "_", spaced).strip("_").lower() or f"column_{at + 1}"
        new, number = base, 2
        while new in made:
            new, number = f"{base}_{number}", number + 1
        made.append(new)
    return made


def _family(column: pd.Series) -> str:
    if pd.api.types.is_bool_dtype(column):
        return "bool"
    if pd.api.types.is_numeric_dtype(column):
        return "number"
    return "date" if pd.api.types.is_datetime64_any_dtype(column) else "text"


def _plain(key: object) -> object:
    values = [
        v.item() if hasattr(v, "item") else v for v in (key if isinstance(key, tuple) else (key,))
    ]
    return values[0] if len(values) == 1 else values


def _nearly(left: pd.DataFrame, right: pd.DataFrame, shared: pd.Index) -> str:
    """Says how many keys would match if case and spaces did not count."""

    def bare(frame: pd.DataFrame) -> set[str]:
        texts = frame.astype(str).apply(lambda c: c.str.strip().str.casefold())
        return set(texts.agg("\x1f".join, axis=1))

    more = len(bare(left) & bare(right)) - len(shared)
    return f"{more} more keys match when case and spaces around do not count" if more > 0 else ""
