"""The demo, and the real data that it works on.

The tables are a week of flights out of New York; `data/README.md` says where they come
from, under which licence, and how they were cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Table = Literal["flights", "airlines", "planes"]

_DATA = Path(__file__).parent / "data"


def data_path(name: Table) -> Path:
    """The CSV file of one table. Raises `FileNotFoundError` when there is no such table."""
    path = _DATA / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in _DATA.glob("*.csv")))
        raise FileNotFoundError(f"no demo table {name!r}; there are {known}")
    return path


def load(name: Table) -> pd.DataFrame:
    """One table as a DataFrame: `flights` 6,104 x 17, `airlines` 16 x 2, `planes` 1,628 x 9."""
    import pandas as pd

    dates = ["time_hour"] if name == "flights" else []
    return pd.read_csv(data_path(name), parse_dates=dates)
