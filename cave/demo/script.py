"""The cells that the scripted operator plays in `cave demo`, with the requests they answer."""

from __future__ import annotations

from dataclasses import dataclass

from cave.operators.scripted import Finish, Plain, ScriptedOperator


@dataclass(frozen=True, slots=True)
class Request:
    """One turn of the demo: what is asked, which variable is expected, and the played steps."""

    prompt: str
    returns: str | None
    steps: tuple[Plain, ...]


COUNT = """\
flown = flights.dropna(subset=['arrival_delay'])
late = flown.groupby('carrier')['arrival_delay'].agg(['size', 'mean'])"""

MEND = """\
flown = flights.dropna(subset=['arr_delay'])
late = (flown.groupby('carrier')['arr_delay']
        .agg(flights='size', mean_delay='mean', late_share=lambda d: (d > 15).mean())
        .sort_values('mean_delay', ascending=False).round(3).reset_index())
late"""

JOIN = """\
late = late.merge(airlines, on='carrier', how='left', validate='one_to_one')
assert late['name'].notna().all()
worst = late.iloc[0]
print(f"{worst['name']}: {worst['mean_delay']:.1f} minutes late on average, "
      f"{worst['late_share']:.0%} of {worst['flights']} flights over 15 minutes")"""

FILL = """\
import sqlite3
db = sqlite3.connect('week.db')
rows = flights.to_sql('flights', db, if_exists='replace', index=False)
rows += planes.to_sql('planes', db, if_exists='replace', index=False)
print(f'{rows:,} rows written')"""

BUSIEST = """\
import pandas as pd
models = pd.read_sql('''
    select manufacturer, model, count(*) as flights, round(avg(arr_delay), 1) as delay
    from flights join planes using (tailnum)
    group by manufacturer, model order by flights desc limit 5''', db)
models"""

KNOWN = """\
known, every = db.execute('''
    select count(planes.tailnum), count(*) from flights
    left join planes using (tailnum)''').fetchone()
print(f'{known:,} of {every:,} flights ({known / every:.0%}) have a known aircraft.')"""

REQUESTS = (
    Request(
        "`flights` holds a week of flights out of New York and `airlines` the names of the "
        "carriers. Make a frame `late` with one row per carrier: carrier, flights, mean_delay "
        "(the mean arrival delay in minutes) and late_share (the share of flights that arrived "
        "more than 15 minutes late), the worst first.",
        "late",
        (
            ("Count flights and delays per carrier", COUNT),
            ("The column is called arr_delay: mend it", MEND),
            Finish("`late` has one row per carrier; flights that never arrived are left out."),
        ),
    ),
    Request(
        "Add the airline's name from `airlines` to `late` as column `name`, and say who is worst.",
        "late",
        (("Join the names; check that none is missing", JOIN), Finish()),
    ),
    Request(
        "Keep the week in a SQLite database `week.db` with tables flights and planes (frame "
        "`planes`), through a connection `db` that stays open. Then ask it for the five aircraft "
        "models with the most flights, as frame `models`.",
        "models",
        (
            ("Open the database and fill it", FILL),
            ("Ask the open connection", BUSIEST),
            Finish("The connection `db` is still open; `models` has the five busiest models."),
        ),
    ),
    Request(
        "With the connection `db` that is still open: which share of the flights is in `planes` "
        "at all? Give one sentence.",
        None,
        (("One query on the live connection", KNOWN), Finish()),
    ),
)


def operator() -> ScriptedOperator:
    """The operator that plays the demo without a model."""
    return ScriptedOperator([step for request in REQUESTS for step in request.steps])
