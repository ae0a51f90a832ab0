"""Read files into DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import cave


@cave.skill(version="1.0.0")
def load_csv(path: Path, *, separator: str | None = None, rows: int | None = None) -> pd.DataFrame:
    """A csv file as a DataFrame: encoding, separator and decimal mark are noticed.

    Columns with leading zeros stay texts. `rows` reads only so many.
    """
    import csv
    import re

    _check(path)
    with path.open("rb") as file:
        head = file.read(200_000)
    encoding = _encoding(head, path)
    sample = head.decode(encoding, errors="ignore")
    if separator is None:
        try:
            separator = csv.Sniffer().sniff(sample[:20_000], delimiters=",;\t|").delimiter
        except csv.Error:
            usual = "\t" if path.suffix.lower() == ".tsv" else ","
            separator = max((usual, *",;\t|"), key=lambda mark: _table_rows(sample, mark)[1])
    header, _ = _table_rows(sample, separator)
    texts = pd.read_csv(
        path, sep=separator, encoding=encoding, dtype=str, nrows=rows, skipinitialspace=True,
        skiprows=header,
    )  # fmt: skip
    comma = separator != "," and bool(re.search(r"\d,\d{1,2}(?:\D|$)", sample))
    made = texts.apply(lambda column: _typed(column, comma=comma))
    made.attrs["read_as"] = {
        "encoding": encoding,
        "separator": separator,
        "decimal": "," if comma else ".",
        "header": header,
    }
    return made


@cave.skill(version="1.0.0")
def load_excel(
    path: Path, *, sheet: str | None = None, header: int | None = None
) -> dict[str, pd.DataFrame]:
    """The sheets of a workbook by name, each a DataFrame without title rows and empty edges.

    `header` is the row of the column names, counted from 0; by default it is found.
    """
    _check(path)
    raw = pd.read_excel(path, sheet_name=[sheet] if sheet else None, header=None, dtype=object)
    return {str(name): _table(frame, header) for name, frame in raw.items()}


@cave.skill(version="1.0.0")
def load_parquet(path: Path, *, columns: list[str] | None = None) -> pd.DataFrame:
    """A parquet file, or a folder of them, as a DataFrame; `columns` reads only those."""
    if not path.exists():
        _check(path)
    return pd.read_parquet(path, columns=columns)


@cave.skill(version="1.0.0")
def load_json(path: Path, *, records: str | None = None) -> pd.DataFrame:
    """Records of a JSON or JSON-lines file as a DataFrame; nested ones become columns `a.b`.

    `records` names where they are (`data.items`); by default the first list of records is taken.
    """
    import json

    _check(path)
    text = path.read_text(encoding="utf-8-sig")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = [json.loads(line) for line in text.splitlines() if line.strip()]
    where = records or ""
    if records:
        for key in records.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
    else:
        where, value = _records(value)
    made = pd.json_normalize(value)
    made.attrs["read_as"] = {"records": where or "the whole file"}
    return made


@cave.skill(version="1.0.0")
def load_pdf(path: Path, *, pages: list[int] | None = None) -> pd.DataFrame:
    """The text of a PDF, one row for each page: `page` (from 1) and `text`."""
    try:
        import pypdf
    except ImportError as error:
        raise ImportError("PDF needs pypdf; type: pip install 'cave-runtime[pdf]'") from error
    _check(path)
    reader = pypdf.PdfReader(path)
    wanted = pages or range(1, len(reader.pages) + 1)
    texts = [(number, reader.pages[number - 1].extract_text() or "") for number in wanted]
    made = pd.DataFrame(texts, columns=["page", "text"])
    made.attrs["scanned"] = bool(len(made)) and not made.text.str.strip().any()
    return made


def _check(path: Path) -> None:
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*") if p.is_file())[:10]
        raise FileNotFoundError(f"there is no file {str(path)!r}; in that folder are {near}")


def _encoding(head: bytes, path: Path) -> str:
    import codecs

    for mark, name in ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16")):
        if head.startswith(mark):
            return name
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16"
    if b"\0" in head:
        raise ValueError(f"{path.name!r} holds binary data, not text")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                decoder.decode(part)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _table_rows(sample: str, separator: str) -> tuple[int, int]:
    """Lines above the first row of the usual width, and how many rows have that width."""
    import csv
    from collections import Counter

    lines = csv.reader(sample.splitlines()[:50], delimiter=separator)
    rows, above = [], 0
    for row in lines:
        if row:
            rows.append((above, len(row)))
        above = lines.line_num
    width, count = max(
        Counter(n for _, n in rows if n > 1).items(), key=lambda it: (it[1], it[0]), default=(0, 0)
    )
    if count < 2:
        return 0, count
    return next(at for at, n in rows if n >= width), count


def _typed(column: pd.Series, *, comma: bool) -> pd.Series:
    """Numbers where all values are, and none has a leading zero."""
    present = column.dropna().str.strip()
    if not len(present) or present.str.match(r"^[-+]?0\d").any():
        return column
    bare = present
    if comma and present.str.fullmatch(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?").all():
        bare = present.str.replace(".", "").str.replace(",", ".")
    if present.str.lower().isin(["true", "false"]).all():
        return (
            present.str.lower().eq("true").reindex(column.index)
            if len(present) == len(column)
            else column
        )
    numbers = pd.to_numeric(bare, errors="coerce")
    return column if numbers.isna().any() else numbers.reindex(column.index)


def _table(frame: pd.DataFrame, header: int | None) -> pd.DataFrame:
    """The table in a sheet: names from the header row, types from the values."""
    if header is None:
        whole = frame.dropna(axis=1, how="all")
        filled = whole.notna().sum(axis=1)
        header = int(filled[filled >= filled.max() * 0.8].index[0]) if len(filled) else 0
    body = frame.iloc[header + 1 :]
    kept = [at for at in frame.columns if frame.iloc[header:, at].notna().any()]
    names: list[str] = []
    for at in kept:
        name = frame.iloc[header, at] if len(frame) else None
        base = str(name).strip() if pd.notna(name) else f"column_{at + 1}"
        names.append(base if base not in names else f"{base}_{at + 1}")
    made = body[kept].set_axis(names, axis=1).dropna(how="all").reset_index(drop=True)
    made = made.infer_objects()
    made.attrs["read_as"] = {"header": header}
    return made


def _records(value: Any) -> tuple[str, Any]:
    """Where the first list of records is, and the list."""
    if isinstance(value, list):
        return "", value
    todo = [("", value)]
    while todo:
        where, found = todo.pop(0)
        if isinstance(found, list) and found and all(isinstance(item, dict) for item in found):
            return where, found
        if isinstance(found, dict):
            todo += [(f"{where}.{key}".strip("."), part) for key, part in found.items()]
    return "", value
