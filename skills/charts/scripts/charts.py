"""Draw charts into files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pandas as pd

import cave

Kind = Literal["bar", "line", "scatter", "hist", "box", "heat"]
Names = tuple[str, str | None, str | None, str | None]
"""Columns for x, y, by and value."""


@cave.skill(version="1.0.0")
def draw_image(
    df: pd.DataFrame,
    kind: Kind,
    *,
    x: str,
    path: Path,
    y: str | None = None,
    by: str | None = None,
    value: str | None = None,
    title: str = "",
    width: float = 8.0,
    height: float = 4.5,
) -> str:
    """A chart as .png, .svg or .pdf, drawn with matplotlib; gives the path of the file.

    `by` makes one series for each of its values; width and height are in inches.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _rows(df, kind, (x, y, by, value))
    if path.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise ValueError(f"{path.name!r}: an image ends with .png, .svg or .pdf")
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _drawn(axes, rows, kind, (x, y, by, value))
    axes.set_title(title, loc="left", fontweight="bold")
    if kind != "heat":
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(x)
        axes.set_ylabel("rows" if kind == "hist" else (y or ""))
        if by is not None and axes.get_legend_handles_labels()[1]:
            axes.legend(title=by, frameon=False)
    if any(len(label.get_text()) > 12 for label in axes.get_xticklabels()):
        axes.tick_params(axis="x", rotation=30)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):  # texts stay texts
        figure.savefig(path, dpi=150)
    return str(path)


@cave.skill(version="1.0.0")
def draw_html(
    df: pd.DataFrame,
    kind: Kind,
    *,
    x: str,
    path: Path,
    y: str | None = None,
    by: str | None = None,
    value: str | None = None,
    title: str = "",
) -> str:
    """An interactive chart as .html that needs no network, or .png or .svg, drawn with Altair."""
    try:
        import altair as alt
    except ImportError as error:
        raise ImportError("this needs altair; type: pip install 'cave-runtime[charts]'") from error
    rows = _rows(df, kind, (x, y, by, value))
    if len(rows) > 20_000:
        raise ValueError(
            f"{len(rows):,} rows would all be in the page; aggregate to 20,000 at most"
        )
    if path.suffix.lower() not in {".html", ".png", ".svg"}:
        raise ValueError(f"{path.name!r}: this chart ends with .html, .png or .svg")
    chart = _encoded(alt, rows, kind, (x, y, by, value)).properties(
        title=title, width=640, height=360
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".html":
        chart.interactive().save(path, inline=True)
    else:
        chart.save(path, scale_factor=2) if path.suffix.lower() == ".png" else chart.save(path)
    return str(path)


def _rows(df: pd.DataFrame, kind: str, names: Names) -> pd.DataFrame:
    """The columns and rows that are drawn. Raises where the kind wants another column."""
    x, y, _, value = names
    if y is None and kind != "hist":
        raise ValueError(f"a {kind} chart needs y=, one of {list(df.columns)}")
    if value is None and kind == "heat":
        raise ValueError(f"a heat chart needs value=, one of {list(df.columns)}")
    drawn = [name for name in dict.fromkeys(names) if name is not None]
    for name in drawn:
        if name not in df.columns:
            raise KeyError(f"there is no column {name!r}; there are {list(df.columns)}")
    number = {"bar": y, "line": y, "box": y, "scatter": y, "hist": x, "heat": value}[kind]
    if not pd.api.types.is_numeric_dtype(df[number]):
        raise TypeError(
            f"column {number!r} is {df[number].dtype}, and a {kind} chart needs numbers"
        )
    rows = df[drawn].dropna()
    if not len(rows):
        raise ValueError("there is no row without missing values; nothing to draw")
    if len(rows) < len(df):
        print(f"{len(df) - len(rows):,} of {len(df):,} rows have missing values and are left out")
    return rows.reset_index(drop=True)


def _drawn(axes: Any, rows: pd.DataFrame, kind: str, names: Names) -> None:
    x, y, by, value = names
    series = [("", rows)] if by is None else list(rows.groupby(by, sort=True, observed=True))
    match kind:
        case "bar":
            table = rows.pivot_table(index=x, columns=by, values=y, aggfunc="sum", observed=True)
            table = table.loc[table.sum(axis=1).sort_values(ascending=False).index]
            table.plot.bar(ax=axes, rot=0, legend=False, width=0.8)
        case "line":
            for name, part in series:
                ordered = part.sort_values(x)
                axes.plot(ordered[x], ordered[y], label=str(name) or None)
        case "scatter":
            for name, part in series:
                axes.scatter(part[x], part[y], s=14, alpha=0.7, label=str(name) or None)
        case "hist":
            edges = min(30, max(5, int(len(rows) ** 0.5)))
            parts = [part[x] for _, part in series]
            axes.hist(parts, bins=edges, stacked=True, label=[str(name) for name, _ in series])
        case "box":
            groups = [(str(name), part[y]) for name, part in rows.groupby(x, observed=True)]
            axes.boxplot([part for _, part in groups])
            axes.set_xticks(range(1, len(groups) + 1), [name for name, _ in groups])
        case "heat":
            table = rows.pivot_table(index=y, columns=x, values=value, aggfunc="sum", observed=True)
            shown = axes.imshow(table.to_numpy(dtype=float), aspect="auto", cmap="viridis")
            axes.set_xticks(range(len(table.columns)), [str(name) for name in table.columns])
            axes.set_yticks(range(len(table.index)), [str(name) for name in table.index])
            axes.figure.colorbar(shown, ax=axes, label=value)


def _encoded(alt: Any, rows: pd.DataFrame, kind: str, names: Names) -> Any:
    """The Altair chart of a kind."""
    x, y, by, value = names

    def channel(of: Any, name: str, type_: str | None = None, **more: Any) -> Any:
        return of(field=_field(name), type=type_ or _type(rows[name]), title=name, **more)

    encoding: dict[str, Any] = {"x": channel(alt.X, x)}
    if y is not None:
        encoding["y"] = channel(alt.Y, y)
    if by is not None:
        encoding["color"] = channel(alt.Color, by, "nominal")
    base = alt.Chart(rows)
    match kind:
        case "bar":
            encoding["x"] = channel(alt.X, x, "nominal", sort="-y")
            if by is not None:
                encoding["xOffset"] = channel(alt.XOffset, by, "nominal")
            made = base.mark_bar()
        case "line":
            made = base.mark_line(point=len(rows) <= 100)
        case "scatter":
            made = base.mark_circle(opacity=0.7)
        case "hist":
            encoding["x"] = channel(alt.X, x, "quantitative", bin=alt.Bin(maxbins=30))
            encoding["y"] = alt.Y("count()", title="rows")
            made = base.mark_bar()
        case "box":
            encoding["x"] = channel(alt.X, x, "nominal")
            made = base.mark_boxplot()
        case _:
            encoding["color"] = channel(alt.Color, str(value), "quantitative")
            encoding["x"] = channel(alt.X, x, "nominal")
            encoding["y"] = channel(alt.Y, str(y), "nominal")
            made = base.mark_rect()
    if kind not in {"hist", "box"}:
        shown = [name for name in dict.fromkeys(names) if name is not None]
        encoding["tooltip"] = [channel(alt.Tooltip, name) for name in shown]
    return made.encode(**encoding)


def _field(name: str) -> str:
    """A column's name as Vega reads it: dots and brackets in it are no paths."""
    import re

    return re.sub(r"([.\[\]'\"\\])", r"\\\1", name)


def _type(column: pd.Series) -> str:
    if pd.api.types.is_datetime64_any_dtype(column):
        return "temporal"
    number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    return "quantitative" if number else "nominal"
