"""Databases, clients and objects of libraries, after the process that had them was killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.inkernel.image import _cases
from tests.inkernel.image._cases import Case

SECRETS = {
    "CASE_DB_PASSWORD": "hunter2-database",
    "CASE_TOKEN": "tok-5f3a9c-header",
    "CASE_URL": "postgresql://me:pw-inside-url@db/x",
}
OTHERS = ("nowhere-else-secret", "nowhere-else-token", "cookie-secret-value")

CASES = {
    "sqlite file": Case(
        "import sqlite3 as s; c = s.connect('a.db', detect_types=s.PARSE_COLNAMES, timeout=7)\n"
        "c.row_factory = s.Row; c.execute('create table t (x)'); c.execute('insert into t values (1)')\n"
        "c.commit(); c.execute('pragma foreign_keys = 1'); c.isolation_level = None\n"
        "w = s.connect('a.db'); row = c.execute('select x as \"a b\", 2 as y from t').fetchone()\n"
        "cur = c.cursor(); cur.arraysize = 5; closed = s.connect('a.db'); closed.close()",
        "import sqlite3, pytest\n"
        "assert [r['x'] for r in c.execute('select x from t')] == [1] and c.isolation_level is None\n"
        "assert c.execute('pragma foreign_keys').fetchone()[0] == 1\n"
        "assert c.execute('pragma busy_timeout').fetchone()[0] == 7000\n"
        "assert row['a b'] == 1 and tuple(row) == (1, 2) and cur.arraysize == 5\n"
        "assert cur.connection is c\n"
        "assert c.execute(\"select '2020-01-01' as 'd [date]'\").fetchone()[0].year == 2020\n"
        "with pytest.raises(sqlite3.ProgrammingError): closed.execute('select 1')",
        "rebuilt",
    ),
    "sqlite declared types": Case(
        "import sqlite3 as s; c = s.connect('b.db', detect_types=s.PARSE_DECLTYPES)\n"
        "c.execute('create table t (d date)'); c.execute(\"insert into t values ('2021-02-03')\")\n"
        "c.commit()",
        "assert c.execute('select d from t').fetchone()[0].year == 2021",
        "rebuilt",
    ),
    "sqlite uncommitted": Case(
        "import sqlite3 as s; c = s.connect('c.db'); c.execute('create table t (x)')\n"
        "c.execute('insert into t values (1)'); c.commit(); c.execute('insert into t values (2)')\n"
        "c.create_function('mine', 1, abs); c.execute('create temp table tt (x)')",
        "assert c.execute('select x from t').fetchall() == [(1,)] and not c.in_transaction\n"
        "text = notes[0][3]; assert 'not committed' in text and 'mine' in text and 'tt' in text",
        "rebuilt",
    ),
    "sqlite in memory": Case(
        "import sqlite3 as s; c = s.connect(':memory:'); c.execute('create table t (x)')\n"
        "c.executemany('insert into t values (?)', [(i,) for i in range(50000)]); c.commit()\n"
        "d = s.connect(':memory:'); d.execute('create table t (x)')\n"
        "d.execute('insert into t values (1)'); e = s.connect(':memory:')\n"
        "c.execute(\"attach 'a2.db' as other\"); c.execute('create table if not exists other.o (y)')",
        "assert c.execute('select count(*) from t').fetchone() == (50000,)\n"
        "assert c.execute('select count(*) from other.o').fetchone() == (0,)\n"
        "assert d.execute('select * from t').fetchall() == [(1,)]; e.execute('create table t (x)')\n"
        "assert any('counts as committed' in n[3] for n in notes)",
        "rebuilt",
    ),
    "sqlite cursor among rows": Case(
        "import sqlite3 as s; c = s.connect(':memory:')\n"
        "cur = c.execute('select 1 union select 2'); cur.fetchone()\n"
        "done = c.execute('select 1'); done.fetchall()",
        "assert 'not fetched' in repr(cur); assert done.execute('select 3').fetchone() == (3,)",
        "lost",
    ),
    "sqlite of another thread, and gone": Case(
        "import sqlite3 as s, threading; made = []; g = s.connect('gone.db')\n"
        "t = threading.Thread(target=lambda: made.append(s.connect('d.db'))); t.start(); t.join()\n"
        "c = made[0]; del t, made",
        "assert 'another thread' in repr(c) and 'is gone' in repr(g)",
        "lost",
        after="import os; os.unlink('gone.db')",
    ),
    "duckdb": Case(
        "import duckdb; c = duckdb.connect('e.duckdb'); c.execute('create table t as select 1 x')\n"
        "m = duckdb.connect(); r = c.sql('select * from t')",
        "assert c.execute('select x from t').fetchall() == [(1,)]\n"
        "assert 'in memory only' in repr(m) and 'run it again' in repr(r)",
        "lost",
    ),
    "engines": Case(
        "import os, sqlalchemy as sa; e = sa.create_engine('sqlite:///f.db', echo=False)\n"
        "meta = sa.MetaData(); t = sa.Table('t', meta, sa.Column('x', sa.Integer)); meta.create_all(e)\n"
        "with e.begin() as k: k.execute(t.insert().values(x=4))\n"
        "del k; o = e.execution_options(isolation_level='AUTOCOMMIT')",
        "import sqlalchemy as sa\n"
        "with e.connect() as k: assert k.execute(sa.select(t)).fetchall() == [(4,)]\n"
        "with o.connect() as k: assert k.execute(sa.select(t)).fetchall() == [(4,)]",
        "rebuilt",
    ),
    "engines with passwords": Case(
        "import os, sys, types, sqlalchemy as sa\n"
        "with open('psycopg2.py', 'w') as out: out.write('paramstyle = \"pyformat\"; __version__ = "
        '"2.9"; extensions = extras = None\')\n'
        "make = lambda p: sa.create_engine(sa.URL.create('postgresql+psycopg2', 'me', p, 'db', 5432, 'x'),\n"
        "                                  pool_size=3, pool_pre_ping=True)\n"
        "a = make(os.environ['CASE_DB_PASSWORD']); b = make('nowhere-else-secret')\n"
        "u = sa.make_url(os.environ['CASE_URL']); m = sa.create_engine('sqlite://')\n"
        "del make, out",
        "assert a.url.password is None and a.pool.size() == 3 and a.url.host == 'db'; assert 'in memory only' in repr(m); assert repr(u).count('***') or not u.password\n"
        "assert any('CASE_DB_PASSWORD' in n[3] for n in notes)\n"
        "assert any('is not kept' in n[3] for n in notes if n[1] == 'b')",
        "lost",
    ),
    "orm sessions": Case(
        "import sqlalchemy as sa; from sqlalchemy.orm import sessionmaker, Session\n"
        "e = sa.create_engine('sqlite:///g.db'); make = sessionmaker(e, expire_on_commit=False)\n"
        "s = make(); s.execute(sa.text('create table if not exists t (x)')); s.commit()\n"
        "p = Session(e); del sessionmaker, Session",
        "import sqlalchemy as sa; assert s.bind is e and s.execute(sa.text('select 1')).scalar() == 1\n"
        "assert make().bind is e and make().expire_on_commit is False and p.get_bind() is e",
        "rebuilt",
    ),
    "requests": Case(
        "import os, requests; s = requests.Session(); s.headers['X-Plain'] = 'yes'\n"
        "s.headers['Authorization'] = 'Bearer ' + os.environ['CASE_TOKEN']\n"
        "s.headers['X-Api-Key'] = 'nowhere-else-token'; s.params = {'q': '1'}; s.verify = False\n"
        "s.auth = ('me', os.environ['CASE_DB_PASSWORD']); s.cookies.set('lang', 'de')\n"
        "s.cookies.set('sessionid', 'cookie-secret-value')\n"
        "a = requests.auth.HTTPBasicAuth('me', 'nowhere-else-secret')",
        "assert s.headers['X-Plain'] == 'yes' and 'X-Api-Key' not in s.headers\n"
        "assert s.params == {'q': '1'} and s.verify is False and s.cookies.get_dict() == "
        "{'lang': 'de'}\n"
        "assert s.get_adapter('https://x') and a.username == 'me' and 'Authorization' not in s.headers\n"
        "import requests\n"
        "p = s.prepare_request(requests.Request('GET', 'http://x/')); assert 'q=1' in p.url",
        "changed",
    ),
    "httpx": Case(
        "import os, httpx2; c = httpx2.Client(headers={'x-a': 'b', 'authorization': "
        "'nowhere-else-token'},\n    base_url='https://x.test/v1', timeout=7, auth=('me', "
        "'nowhere-else-secret'))",
        "assert c.headers['x-a'] == 'b' and 'authorization' not in c.headers\n"
        "assert str(c.base_url) == 'https://x.test/v1/' and c.timeout.read == 7; c.close()",
        "changed",
    ),
    "images": Case(
        "from PIL import Image; Image.new('RGB', (4, 3), 'red').save('a.png')\n"
        "i = Image.open('a.png'); a = [Image.new('RGB', (2, 2), n) for n in ('red', 'green', 'blue')]\n"
        "a[0].save('b.gif', save_all=True, append_images=a[1:]); g = Image.open('b.gif'); g.seek(2)\n"
        "del Image, a",
        "assert i.getpixel((0, 0)) == (255, 0, 0) and i.size == (4, 3)\n"
        "assert g.tell() == 2 and g.n_frames == 3; g.seek(0)",
        "rebuilt",
    ),
    "figures": Case(
        "import matplotlib; matplotlib.use('agg'); from matplotlib.figure import Figure\n"
        "f = Figure(); ax = f.add_subplot(); ax.plot([1, 2]); del Figure",
        "assert ax.figure is f and len(ax.lines) == 1; f.savefig('c.png')",
    ),
    "chunks": Case(
        "import pandas as pd, pyarrow as pa; open('d.csv', 'w').write('a\\n1\\n2\\n')\n"
        "r = pd.read_csv('d.csv', chunksize=1); next(r)\n"
        "b = pa.RecordBatchReader.from_batches(pa.schema([('a', pa.int64())]), [])",
        "assert 'piece by piece' in repr(r) and repr(b).startswith('<lost')",
        "lost",
    ),
    "widgets": Case(
        "import ipywidgets as w; s = w.IntSlider(value=7, max=20, description='n')\n"
        "b = w.VBox([s, w.Text('t')])",
        "assert s.value == 7 and s.max == 20 and b.children[0] is s and b.children[1].value == 't'",
        "rebuilt",
    ),
    "models": Case(
        "from sklearn.pipeline import make_pipeline as m; from sklearn.preprocessing import "
        "StandardScaler as S\nfrom sklearn.linear_model import LinearRegression as L\n"
        "p = m(S(), L()).fit([[1], [2], [3]], [2, 4, 6]); del m, S, L",
        "assert abs(p.predict([[4]])[0] - 8) < 1e-9",
    ),
    "plain enough": Case(
        "import uuid, ipaddress, argparse, zoneinfo, datetime, decimal, fractions, pathlib, string\n"
        "u = uuid.uuid4(); i = ipaddress.ip_network('10.0.0.0/8'); z = datetime.datetime(2024, 7, 1, "
        "tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')); t = str(u)\n"
        "p = argparse.ArgumentParser(); p.add_argument('--n', type=int)",
        "assert str(u) == t and i.num_addresses == 2 ** 24 and z.utcoffset().seconds == 7200\n"
        "assert p.parse_args(['--n', '3']).n == 3",
    ),
    "bars": Case(
        "from tqdm import tqdm as q; b = q(total=3, file=open('/dev/null', 'w')); b.update(1); del q",
        "assert 'loop that has ended' in repr(b)",
        "lost",
    ),
    "resources": Case(
        "import os; from tests import _inkernel; cave = _inkernel.load('image.plugins').facade\n"
        "del _inkernel; os.environ['CASE_HERE'] = '1'\n"
        "class Link:\n    def __init__(self, to): self.to = to; self.s = object().__repr__\n"
        "@cave.resource(name='warehouse', env=[])\ndef connect(to): return Link(to)\n"
        "@cave.resource(name='vault', env=['CASE_HERE'])\ndef vault(): return Link('v')\n"
        "@cave.persistent(save=lambda o: o.x, load=lambda x: Box(x))\n"
        "class Box:\n    def __init__(self, x): self.x = x; self.lock = open('/dev/null')\n"
        "a = connect('db'); also = [a]; v = vault(); b = Box([1]); plain = Link('p'); del cave",
        "assert a.to == 'db' and also[0] is a and type(a) is Link and b.x == [1] and b.lock\n"
        "assert 'needs CASE_HERE' in repr(v)",
        "lost",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _cases.run(CASES, Path(tmp_path_factory.mktemp("libraries")), SECRETS)


@pytest.mark.parametrize("name", CASES)
def test_kinds_of_libraries(name: str, results: dict[str, Any]) -> None:
    """Each kind works on, or says why it does not."""
    _cases.check(results[name], CASES[name])


def test_no_secret_is_written(results: dict[str, Any]) -> None:
    """No password, token or cookie is in the bytes of a stream, whether the environment has it or not."""
    values = (*SECRETS.values(), *OTHERS, "pw-inside-url")
    assert [value for value in values if value.encode() in results["stream"]] == []
