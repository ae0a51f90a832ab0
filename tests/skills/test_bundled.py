"""The skills that come with cave, on real data and real files."""

from __future__ import annotations

import json
import platform
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import sqlalchemy
from PIL import Image

import cave
from cave.kernel import values
from cave.ports import KernelFacts
from cave.skills import FolderSkill, bundled
from cave.skills.folder import check

SKILLS = {path.name: FolderSkill.at(path) for path in sorted(bundled().iterdir()) if path.is_dir()}
USE = {skill.name: skill for folder in SKILLS.values() for skill in folder.functions}


def use(name: str, *args: Any, **kwargs: Any) -> Any:
    return USE[name](*args, **kwargs)


@pytest.fixture(scope="module")
def wine() -> pd.DataFrame:
    """178 Italian wines by three growers: 13 measures and the class."""
    from sklearn import datasets  # slow to import, and every worker collects this file

    frame: pd.DataFrame = datasets.load_wine(as_frame=True).frame
    return frame


# -- all of them -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["charts", "dataframes", "files", "reconcile", "sql"])
def test_each_is_an_agent_skill_worth_reading(name: str) -> None:
    """No fault; instructions with examples and edge cases, in which every function is named."""
    skill = SKILLS[name]
    assert check(skill.folder) == []
    assert "Use " in skill.description
    assert 20 < len(skill.body.splitlines()) < 500
    assert "## Examples" in skill.body
    assert "## Edge cases" in skill.body
    assert skill.functions
    for function in skill.functions:
        assert f"{function.name}(" in skill.body
        assert (function.runs, function.effect) == ("kernel", "none")
        assert function.version == "1.0.0"
    assert set(skill.offers) == {function.name for function in skill.functions}


LOAD = """
import pickle
from cave.inkernel import byvalue
data, buffers, names = pickle.load(open("parcel", "rb"))
unpickler = byvalue.Unpickler(data, buffers, byvalue.Home({"__name__": "__main__"}))
made = {name: unpickler.load() for name in names}
import pandas as pd
df = pd.DataFrame({"a": ["1", "2"], "b": ["x", "y"]})
open("t.csv", "w").write(df.to_csv(index=False))
import pathlib, sqlite3
assert made["clean_table"](df)[0].a.sum() == 3
assert len(made["profile_table"](df)) == 2
assert made["check_join"](df, df, "a")["inner_rows"] == 2
loaded = made["load_csv"](pathlib.Path("t.csv"))
assert loaded.a.sum() == 3
db = sqlite3.connect("t.db")
loaded.to_sql("t", db, index=False)
assert made["run_query"]("select a from t where b = :b", db, {"b": "y"}).a[0] == 2
assert made["match_tables"](df, df, "a")["summary"]["matched"] == 2
assert made["draw_image"](loaded, "bar", x="b", y="a", path=pathlib.Path("c.png")) == "c.png"
print(len(made), "work here")
"""


def test_all_functions_work_in_a_process_that_has_not_their_files(tmp_path: Path) -> None:
    """They travel by value, helpers included, as they do into kernels."""
    import pickle

    packages = {"pandas": pd.__version__, "numpy": np.__version__}
    facts = KernelFacts(0, platform.python_version(), "", packages, "open", Path(), 0.0)
    functions = {name: skill.carried for name, skill in USE.items()}
    data, *buffers = (bytes(part) for part in values.pack(functions, peer=facts).buffers)
    (tmp_path / "parcel").write_bytes(pickle.dumps((data, buffers, list(functions))))
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{len(USE)} work here\n", done.stderr


# -- dataframes ------------------------------------------------------------------------------


def test_a_profile_has_a_row_for_each_column(wine: pd.DataFrame) -> None:
    """Types, missing, distinct and ranges are those of the data."""
    holed = wine.assign(text="7", day="2026-01-31", odd=[[1]] * len(wine))
    holed.loc[:9, "alcohol"] = np.nan
    table = use("profile_table", holed).set_index("column")
    assert len(table) == len(wine.columns) + 3
    assert table.missing["alcohol"] == 10
    assert table.distinct["target"] == 3
    assert table["max"]["proline"] == wine.proline.max() == 1680
    assert table["mean"]["hue"] == pytest.approx(wine.hue.mean())
    assert (table.looks_like["text"], table.looks_like["day"]) == ("number", "date")
    assert pd.isna(table.distinct["odd"])
    assert len(use("profile_table", pd.DataFrame())) == 0


DIRTY = {
    "Order No": ["001", "002", "003", "003", None],
    "grossAmount": [" 1,234.50", "12.00", "-7", "-7", None],
    "Netto": ["1.234,50", "12,00", "-7,00", "-7,00", None],
    "when": ["31.01.2026", "01.02.2026", "15.02.2026", "15.02.2026", None],
    "us": ["01/31/2026", "02/01/2026", "02/15/2026", "02/15/2026", None],
    "unclear": ["01/02/2026", "03/04/2026", "05/06/2026", "05/06/2026", None],
    "note": ["  a", "n/a", "b ", "b ", None],
    "nothing": [None, None, "", "", None],
}


def test_cleaning_makes_types_and_says_what_it_did() -> None:
    """Numbers of both notations, dates of both orders; identifiers and the unclear stay."""
    dirty = pd.DataFrame(DIRTY)
    before = dirty.copy()
    made, report = use("clean_table", dirty)
    pd.testing.assert_frame_equal(dirty, before)
    assert list(made.columns) == [
        "order_no", "gross_amount", "netto", "when", "us", "unclear", "note"
    ]  # fmt: skip
    assert made.order_no.tolist() == ["001", "002", "003"]
    assert made.gross_amount.tolist() == made.netto.tolist() == [1234.5, 12.0, -7.0]
    assert made.when.tolist() == made.us.tolist()
    assert made.when[0] == pd.Timestamp("2026-01-31")
    assert made.unclear[0] == "01/02/2026"
    assert made.note.isna().tolist() == [False, True, False]
    text = "\n".join(report)
    assert "grossAmount -> gross_amount" in text
    assert "unclear: may be dates, day or month first" in text
    assert "dropped empty columns nothing" in text
    assert "dropped 1 rows that were there twice" in text
    given, _ = use("clean_table", dirty, dayfirst=True)
    assert given.unclear[0] == pd.Timestamp("2026-02-01")


@pytest.mark.parametrize("texts", [["1,234", "5,678"], ["12", "x"], ["1.2.3", "4"], ["007", "8"]])
def test_what_is_not_surely_a_number_stays_text(texts: list[str]) -> None:
    """`1,234` may be a thousand or one; nobody guesses."""
    made, _ = use("clean_table", pd.DataFrame({"a": texts}))
    assert made.a.tolist() == texts


def test_clean_data_stays_as_it_is(wine: pd.DataFrame) -> None:
    """Only the names change, and duplicates go."""
    made, report = use("clean_table", wine, rename=False, drop_duplicates=False)
    pd.testing.assert_frame_equal(made, wine)
    assert report == []


def test_a_join_is_checked_before_it_is_made() -> None:
    """The rows that it says are those that pandas makes; near misses are hinted at."""
    left = pd.DataFrame({"customer": ["a", "a", "B ", "c", None], "x": range(5)})
    right = pd.DataFrame({"id": ["a", "b", "d", "d"], "y": range(4)})
    found = use("check_join", left, right, {"customer": "id"})
    made = left.dropna().merge(right, left_on="customer", right_on="id")
    assert found["inner_rows"] == len(made) == 2
    assert (found["left_duplicates"], found["right_duplicates"]) == (1, 1)
    assert (found["left_only"], found["right_only"], found["left_missing_keys"]) == (2, 3, 1)
    assert found["examples"]["left_only"] == ["B ", "c"]
    assert found["hint"].startswith("1 more keys match when case")
    typed = use("check_join", pd.DataFrame({"k": [1]}), pd.DataFrame({"k": ["1"]}), "k")
    assert "k is int64 and" in typed["hint"]
    with pytest.raises(KeyError, match="right has no column 'k'"):
        use("check_join", pd.DataFrame({"k": [1]}), pd.DataFrame({"j": [1]}), "k")


# -- sql -------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path, wine: pd.DataFrame) -> Path:
    path = tmp_path / "wine.sqlite"
    connection = sqlite3.connect(path)
    wine.to_sql("wine", connection, index=False)
    connection.close()
    return path


QUERY = "select target, count(*) as n from wine where alcohol > :least group by target order by 1"


def test_a_query_runs_on_every_kind_of_connection(database: Path, wine: pd.DataFrame) -> None:
    """sqlite3, SQLAlchemy's engine and connection, duckdb, a path and a URL give the same."""
    expected = wine[wine.alcohol > 13].groupby("target").size().tolist()
    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    lite, duck = sqlite3.connect(database), duckdb.connect()
    duck.register("wine", wine)
    with engine.connect() as opened:
        for on in (lite, engine, opened, duck, database, str(database), str(engine.url)):
            frame = use("run_query", QUERY, on, {"least": 13})
            assert frame.n.tolist() == expected
            assert not frame.attrs["truncated"]
            tables = use("list_tables", on)
            assert set(tables.table) == {"wine"}
            assert tables.column.tolist() == list(wine.columns)
    lite.close()
    duck.close()
    engine.dispose()


def test_a_query_says_when_there_is_more(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first rows come, and the rest is told."""
    frame = use("run_query", "select * from wine;", database, limit=10)
    assert len(frame) == 10
    assert frame.attrs["truncated"]
    assert "the first 10 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "sql",
    [
        "delete from wine",
        "drop table wine",
        "select 1; delete from wine",
        "with x as (select 1) insert into wine select * from x",
        "with x as (select 1) delete from wine",
        "-- select\nupdate wine set hue = 0",
        "/* select */ delete from wine",
        "",
    ],
)
def test_nothing_but_a_query_runs(sql: str, database: Path) -> None:
    """Changes are refused, also those that hide behind comments and WITH."""
    connection = sqlite3.connect(database)
    with pytest.raises(ValueError, match=r"only one query can run|would change the database"):
        use("run_query", sql, connection)
    assert connection.execute("select count(*) from wine").fetchone() == (178,)
    connection.close()


@pytest.mark.parametrize(
    "sql", ["select 'a; delete from wine' as x", "SELECT ':x' AS x -- ; drop", "values (1)"]
)
def test_texts_and_comments_are_no_statements(sql: str, database: Path) -> None:
    """What stands in quotes is data."""
    assert len(use("run_query", sql, database)) == 1


def test_what_is_no_connection_is_named(tmp_path: Path) -> None:
    """A wrong path and a wrong object say so."""
    with pytest.raises(FileNotFoundError, match=r"no database file '.*x\.sqlite'"):
        use("run_query", "select 1", tmp_path / "x.sqlite")
    with pytest.raises(TypeError, match="DataFrame is no connection"):
        use("run_query", "select 1", pd.DataFrame())


# -- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,name,x\n001,ä,1.5\n002,b,2\n".encode(), ("utf-8", ",", ".")),
        ("id;name;x\n001;ä;1,5\n002;b;2\n".encode("cp1252"), ("cp1252", ";", ",")),
        ("id\tname\tx\n001\tä\t1.5\n002\tb\t2\n".encode("utf-16"), ("utf-16", "\t", ".")),
        ("id|name|x\n001|ä|1.5\n002|b|2\n".encode("utf-8-sig"), ("utf-8-sig", "|", ".")),
    ],
)
def test_csv_files_of_every_dialect_are_read(
    content: bytes, expected: tuple[str, str, str], tmp_path: Path
) -> None:
    """Encoding, separator and decimal mark are noticed; identifiers stay texts."""
    file = tmp_path / "some.csv"
    file.write_bytes(content)
    frame = use("load_csv", file)
    assert frame.id.tolist() == ["001", "002"]
    assert frame.name.tolist() == ["ä", "b"]
    assert frame.x.tolist() == [1.5, 2.0]
    assert tuple(frame.attrs["read_as"].values()) == (*expected, 0)
    assert len(use("load_csv", str(file), rows=1)) == 1
    file.write_bytes(b"Titel\n\nid;x\n001;1,5\n002;2,0\n")
    titled = use("load_csv", file)
    assert titled.attrs["read_as"]["header"] == 2
    assert titled.to_dict("list") == {"id": ["001", "002"], "x": [1.5, 2.0]}


def test_tables_come_back_from_csv_parquet_and_excel(tmp_path: Path, wine: pd.DataFrame) -> None:
    """What was written is what is read, whatever the format."""
    wine.to_csv(tmp_path / "w.csv", index=False)
    wine.to_parquet(tmp_path / "w.parquet")
    wine.to_excel(tmp_path / "w.xlsx", index=False, sheet_name="wine")
    same = {
        "csv": use("load_csv", tmp_path / "w.csv"),
        "parquet": use("load_parquet", tmp_path / "w.parquet"),
        "xlsx": use("load_excel", tmp_path / "w.xlsx")["wine"],
    }
    for frame in same.values():
        pd.testing.assert_frame_equal(frame, wine, check_dtype=False)
    few = use("load_parquet", tmp_path / "w.parquet", columns=["hue"])
    assert list(few.columns) == ["hue"]


def test_excel_tables_are_found_below_titles(tmp_path: Path) -> None:
    """Title rows, empty rows and empty columns around the table are left out; types are found."""
    rows: list[list[Any]] = [
        ["Budget 2026", None, None, None],
        [None, None, None, None],
        [None, "id", "name", "amount"],
        [None, "001", "a", 1.5],
        [None, None, None, None],
        [None, "002", "b", 2],
    ]
    with pd.ExcelWriter(tmp_path / "b.xlsx") as book:
        pd.DataFrame(rows).to_excel(book, sheet_name="one", index=False, header=False)
        pd.DataFrame({"k": [1]}).to_excel(book, sheet_name="two", index=False)
    sheets = use("load_excel", tmp_path / "b.xlsx")
    assert list(sheets) == ["one", "two"]
    assert sheets["one"].to_dict("list") == {
        "id": ["001", "002"],
        "name": ["a", "b"],
        "amount": [1.5, 2.0],
    }
    assert sheets["one"].attrs["read_as"] == {"header": 2}
    assert list(use("load_excel", tmp_path / "b.xlsx", sheet="two")) == ["two"]


def test_json_records_are_found_and_flattened(tmp_path: Path) -> None:
    """A list, records inside of an answer, lines; nested fields become dotted columns."""
    records = [{"a": 1, "b": {"c": "x"}}, {"a": 2, "b": {"c": "y"}}]
    for name, text in {
        "list.json": json.dumps(records),
        "answer.json": json.dumps({"n": 2, "data": {"items": records}}),
        "lines.jsonl": "\n".join(map(json.dumps, records)),
    }.items():
        (tmp_path / name).write_text(text)
        frame = use("load_json", tmp_path / name)
        assert frame.to_dict("list") == {"a": [1, 2], "b.c": ["x", "y"]}
    frame = use("load_json", tmp_path / "answer.json", records="data.items")
    assert frame.attrs["read_as"] == {"records": "data.items"}


def test_the_text_of_pdf_pages_is_read(tmp_path: Path) -> None:
    """One row a page; a PDF without text is said to be scanned."""
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    with mpl.rc_context({"pdf.fonttype": 42}), PdfPages(tmp_path / "i.pdf") as pages:
        for number in (1, 2):
            figure = Figure()
            figure.text(0.1, 0.5, f"Invoice {number} Total 119.00")
            pages.savefig(figure)
    frame = use("load_pdf", tmp_path / "i.pdf")
    assert frame.page.tolist() == [1, 2]
    assert "Invoice 2 Total 119.00" in frame.text[1]
    assert frame.attrs["scanned"] is False
    assert use("load_pdf", tmp_path / "i.pdf", pages=[2]).page.tolist() == [2]
    Image.new("RGB", (50, 50)).save(tmp_path / "scan.pdf")
    assert use("load_pdf", tmp_path / "scan.pdf").attrs["scanned"] is True


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file lists its neighbours; binary data is no csv."""
    (tmp_path / "sales.csv").write_bytes(b"\x89PNG\x00\x00")
    with pytest.raises(FileNotFoundError, match=r"sale\.csv'; in that folder are \['sales\.csv'\]"):
        use("load_csv", tmp_path / "sale.csv")
    with pytest.raises(ValueError, match=r"'sales\.csv' holds binary data"):
        use("load_csv", tmp_path / "sales.csv")


# -- charts ----------------------------------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {"kind": "bar", "x": "grower", "y": "proline"},
    {"kind": "bar", "x": "grower", "y": "proline", "by": "strong"},
    {"kind": "line", "x": "day", "y": "alcohol", "by": "grower"},
    {"kind": "scatter", "x": "alcohol", "y": "od280/od315_of_diluted_wines", "by": "grower"},
    {"kind": "hist", "x": "hue", "by": "grower"},
    {"kind": "box", "x": "grower", "y": "alcohol"},
    {"kind": "heat", "x": "grower", "y": "strong", "value": "proline"},
]


@pytest.fixture
def drawn(wine: pd.DataFrame) -> pd.DataFrame:
    return wine.assign(
        grower=wine.target.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"}),
        strong=np.where(wine.alcohol > 13, "strong", "light"),
        day=pd.date_range("2026-01-01", periods=len(wine)),
    )


@pytest.mark.parametrize("chart", KINDS, ids=lambda c: "-".join(map(str, c.values())))
def test_every_kind_is_drawn_as_an_image(
    chart: dict[str, Any], drawn: pd.DataFrame, tmp_path: Path
) -> None:
    """A png of the size that was asked for, not one colour; a svg with its title as text."""
    png, svg = tmp_path / "out" / "c.png", tmp_path / "c.svg"
    backend = mpl.rcParams["backend"]
    assert use("draw_image", drawn, path=png, title="Wines", width=6, height=4, **chart) == str(png)
    assert mpl.rcParams["backend"] == backend
    with Image.open(png) as image:
        assert image.size == (900, 600)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10
    use("draw_image", drawn, path=svg, title="Wines & more", **chart)
    assert "Wines &amp; more" in svg.read_text()


@pytest.mark.parametrize("chart", KINDS, ids=lambda c: "-".join(map(str, c.values())))
def test_every_kind_is_drawn_as_a_page(
    chart: dict[str, Any], drawn: pd.DataFrame, tmp_path: Path
) -> None:
    """The page holds the data and its programs: it asks the network for nothing."""
    page = tmp_path / "c.html"
    assert use("draw_html", drawn, path=page, title="Wines", **chart) == str(page)
    text = page.read_text()
    assert "Wines" in text
    assert "Barolo" in text
    assert 'src="http' not in text
    svg = tmp_path / "c.svg"
    use("draw_html", drawn, path=svg, **chart)
    assert svg.read_text().count("<path") > 2


@pytest.mark.parametrize(
    ("chart", "told"),
    [
        ({"kind": "bar", "x": "grower"}, "a bar chart needs y="),
        ({"kind": "bar", "x": "grower", "y": "no"}, "there is no column 'no'"),
        ({"kind": "line", "x": "day", "y": "grower"}, "a line chart needs numbers"),
        ({"kind": "heat", "x": "grower", "y": "strong"}, "needs value="),
        ({"kind": "pie", "x": "grower"}, "'kind' is 'pie', a str"),
    ],
)
def test_a_chart_that_cannot_be_says_why(
    chart: dict[str, Any], told: str, drawn: pd.DataFrame, tmp_path: Path
) -> None:
    """What is missing, or of the wrong kind, is named before anything is drawn."""
    for function in ("draw_image", "draw_html"):
        with pytest.raises((ValueError, KeyError, TypeError), match=told):
            use(function, drawn, path=tmp_path / "c.svg", **chart)
    assert not list(tmp_path.iterdir())


def test_rows_with_missing_values_are_counted(
    drawn: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left out in silence."""
    drawn.loc[:9, "alcohol"] = np.nan
    use("draw_image", drawn, "hist", x="alcohol", path=tmp_path / "c.png")
    assert "10 of 178 rows have missing values" in capsys.readouterr().out


# -- reconcile -------------------------------------------------------------------------------


@pytest.fixture
def books() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A ledger of 400 entries and a bank statement of them with known differences."""
    rng = np.random.default_rng(7)
    ledger = pd.DataFrame(
        {
            "document": [f"RE-{n:05}" for n in range(400)],
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 90, 400), "D"),
            "amount": rng.integers(1_000, 9_000_000, 400) / 100,
        }
    )
    bank = ledger.rename(columns={"document": "reference"}).drop(index=[5, 6, 7])
    bank.loc[10, "amount"] += 0.01
    bank.loc[11, "amount"] -= 100
    bank["reference"] = " " + bank.reference.str.lower()
    extra = pd.DataFrame(
        {"reference": ["fee"], "day": [pd.Timestamp("2026-02-01")], "amount": [-9.9]}
    )
    mixed = pd.concat([bank, extra], ignore_index=True).sample(frac=1, random_state=3)
    return ledger, mixed.reset_index(drop=True)


def test_every_row_is_in_one_place_and_the_sums_agree(
    books: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    """Missing, additional and differing rows are those that were made; the summary adds up."""
    ledger, bank = books
    found = use(
        "match_tables", ledger, bank, on={"document": "reference"}, compare={"amount": 0.005}
    )
    assert found["only_left"].index.tolist() == [5, 6, 7]
    assert found["only_right"].reference.tolist() == ["fee"]
    assert found["different"].left_row.tolist() == [10, 11]
    assert found["different"].difference.round(2).tolist() == [-0.01, 100.0]
    assert len(found["matched"]) == 397
    summary = found["summary"]
    amounts = summary["amount"]
    assert (summary["matched"], summary["different"]) == (397, 2)
    assert amounts["difference"] == pytest.approx(ledger.amount.sum() - bank.amount.sum())
    parts = amounts["of_matched"] + amounts["of_only_left"] + amounts["of_only_right"]
    assert parts == pytest.approx(amounts["difference"])
    tolerant = use(
        "match_tables", ledger, bank, on={"document": "reference"}, compare={"amount": 0.01}
    )
    assert tolerant["different"].left_row.tolist() == [11]


def test_exact_keys_count_case_and_spaces(books: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """Nothing matches where the bank writes references in lower case."""
    ledger, bank = books
    found = use("match_tables", ledger, bank, on={"document": "reference"}, exact=True)
    assert found["summary"]["matched"] == 0
    assert len(found["only_right"]) == len(bank)


def test_tolerances_match_without_a_key() -> None:
    """Amounts within a cent and days within three; the nearest pair wins, no row twice."""
    day = pd.Timestamp("2026-03-01")
    left = pd.DataFrame(
        {
            "amount": [100.0, 100.0, 55.5, 7.0, np.nan],
            "day": [day, day + pd.Timedelta(days=2), day, day, day],
        }
    )
    right = pd.DataFrame(
        {
            "amount": [100.01, 100.0, 55.5, 7.02, np.nan],
            "day": [day + pd.Timedelta(days=d) for d in (1, 0, 4, 0, 0)],
        }
    )
    found = use("match_tables", left, right, within={"amount": 0.01, "day": 3})
    pairs = found["matched"][["left_row", "right_row"]].to_numpy().tolist()
    assert pairs == [[0, 1], [1, 0]]
    assert found["only_left"].index.tolist() == [2, 3, 4]
    assert found["only_right"].index.tolist() == [2, 3, 4]


def test_keys_that_are_there_several_times_pair_by_the_nearest_amount() -> None:
    """Each row is used once; what is over is unmatched; types of keys do not matter."""
    left = pd.DataFrame({"k": [4711, 4711, 1], "amount": [10.0, 20.0, 1.0]})
    right = pd.DataFrame({"k": ["4711", "4711", "4711", None], "amount": [20.0, 99.0, 10.5, 1.0]})
    found = use("match_tables", left, right, on="k", compare=["amount"])
    assert found["matched"][["left_row", "right_row"]].to_numpy().tolist() == [[0, 2], [1, 0]]
    assert found["only_right"].index.tolist() == [1, 3]
    assert found["only_left"].k.tolist() == [1]


def test_dates_may_be_texts_and_times_have_zones() -> None:
    """ISO texts, dates and moments with a zone are all days to a tolerance."""
    left = pd.DataFrame({"k": [1, 2], "day": ["2026-01-01", "2026-01-05"]})
    zoned = pd.DataFrame(
        {"k": [1, 2], "day": pd.to_datetime(["2026-01-02", "2026-01-20"], utc=True)}
    )
    found = use("match_tables", left, zoned, on="k", within={"day": 2})
    assert found["matched"].left_row.tolist() == [0]


def test_large_tables_match_and_absurd_ones_are_refused() -> None:
    """100,000 rows by key and amount; a tolerance that allows everything asks for a key."""
    rng = np.random.default_rng(1)
    n = 100_000
    left = pd.DataFrame({"k": rng.integers(0, 50_000, n), "amount": rng.random(n).round(2)})
    right = left.sample(frac=1, random_state=2).reset_index(drop=True)
    found = use("match_tables", left, right, on="k", within={"amount": 0.0})
    assert found["summary"]["matched"] == n
    with pytest.raises(ValueError, match="more than 5,000,000 pairs are possible"):
        use("match_tables", left, right, within={"amount": 1.0})


def test_what_is_missing_in_the_call_is_named() -> None:
    """No key, a wrong column, a key as a number."""
    frame = pd.DataFrame({"k": [1]})
    with pytest.raises(ValueError, match="give on="):
        use("match_tables", frame, frame)
    with pytest.raises(KeyError, match="right has no column 'k'"):
        use("match_tables", frame, pd.DataFrame({"j": [1]}), on="k")
    with pytest.raises(cave.SkillError, match="'on"):
        use("match_tables", frame, frame, on=5)
    empty = use("match_tables", frame.iloc[:0], frame, on="k", compare=["k"])
    assert empty["summary"]["only_right"] == 1
