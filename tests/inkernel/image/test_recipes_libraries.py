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
        """
        import sqlite3 as s
        c = s.connect('a.db', detect_types=s.PARSE_COLNAMES, timeout=7)
        c.row_factory = s.Row
        c.execute('create table t (x)')
        c.execute('insert into t values (1)')
        c.commit()
        c.execute('pragma foreign_keys = 1')
        c.isolation_level = None
        w = s.connect('a.db')
        row = c.execute('select x as "a b", 2 as y from t').fetchone()
        cur = c.cursor()
        cur.arraysize = 5
        closed = s.connect('a.db')
        closed.close()
        """,
        """
        import sqlite3, pytest
        assert [r['x'] for r in c.execute('select x from t')] == [1] and c.isolation_level is None
        assert c.execute('pragma foreign_keys').fetchone()[0] == 1
        assert c.execute('pragma busy_timeout').fetchone()[0] == 7000
        assert row['a b'] == 1 and tuple(row) == (1, 2) and (cur.arraysize == 5)
        assert cur.connection is c
        assert c.execute("select '2020-01-01' as 'd [date]'").fetchone()[0].year == 2020
        with pytest.raises(sqlite3.ProgrammingError):
            closed.execute('select 1')
        """,
        "rebuilt",
    ),
    "sqlite declared types": Case(
        """
        import sqlite3 as s
        c = s.connect('b.db', detect_types=s.PARSE_DECLTYPES)
        c.execute('create table t (d date)')
        c.execute("insert into t values ('2021-02-03')")
        c.commit()
        """,
        """
        assert c.execute('select d from t').fetchone()[0].year == 2021
        """,
        "rebuilt",
    ),
    "sqlite uncommitted": Case(
        """
        import sqlite3 as s
        c = s.connect('c.db')
        c.execute('create table t (x)')
        c.execute('insert into t values (1)')
        c.commit()
        c.execute('insert into t values (2)')
        c.create_function('mine', 1, abs)
        c.execute('create temp table tt (x)')
        """,
        """
        assert c.execute('select x from t').fetchall() == [(1,)] and (not c.in_transaction)
        text = notes[0][3]
        assert 'not committed' in text and 'mine' in text and ('tt' in text)
        """,
        "rebuilt",
    ),
    "sqlite in memory": Case(
        """
        import sqlite3 as s
        c = s.connect(':memory:')
        c.execute('create table t (x)')
        c.executemany('insert into t values (?)', [(i,) for i in range(50000)])
        c.commit()
        d = s.connect(':memory:')
        d.execute('create table t (x)')
        d.execute('insert into t values (1)')
        e = s.connect(':memory:')
        c.execute("attach 'a2.db' as other")
        c.execute('create table if not exists other.o (y)')
        """,
        """
        assert c.execute('select count(*) from t').fetchone() == (50000,)
        assert c.execute('select count(*) from other.o').fetchone() == (0,)
        assert d.execute('select * from t').fetchall() == [(1,)]
        e.execute('create table t (x)')
        assert any(('counts as committed' in n[3] for n in notes))
        """,
        "rebuilt",
    ),
    "sqlite cursor among rows": Case(
        """
        import sqlite3 as s
        c = s.connect(':memory:')
        cur = c.execute('select 1 union select 2')
        cur.fetchone()
        done = c.execute('select 1')
        done.fetchall()
        """,
        """
        assert 'not fetched' in repr(cur)
        assert done.execute('select 3').fetchone() == (3,)
        """,
        "lost",
    ),
    "sqlite of another thread, and gone": Case(
        """
        import sqlite3 as s, threading
        made = []
        g = s.connect('gone.db')
        t = threading.Thread(target=lambda: made.append(s.connect('d.db')))
        t.start()
        t.join()
        c = made[0]
        del t, made
        """,
        """
        assert 'another thread' in repr(c) and 'is gone' in repr(g)
        """,
        "lost",
        after="""
        import os
        os.unlink('gone.db')
        """,
    ),
    "duckdb": Case(
        """
        import duckdb
        c = duckdb.connect('e.duckdb')
        c.execute('create table t as select 1 x')
        m = duckdb.connect()
        r = c.sql('select * from t')
        """,
        """
        assert c.execute('select x from t').fetchall() == [(1,)]
        assert 'in memory only' in repr(m) and 'run it again' in repr(r)
        """,
        "lost",
    ),
    "engines": Case(
        """
        import os, sqlalchemy as sa
        e = sa.create_engine('sqlite:///f.db', echo=False)
        meta = sa.MetaData()
        t = sa.Table('t', meta, sa.Column('x', sa.Integer))
        meta.create_all(e)
        with e.begin() as k:
            k.execute(t.insert().values(x=4))
        del k
        o = e.execution_options(isolation_level='AUTOCOMMIT')
        """,
        """
        import sqlalchemy as sa
        with e.connect() as k:
            assert k.execute(sa.select(t)).fetchall() == [(4,)]
        with o.connect() as k:
            assert k.execute(sa.select(t)).fetchall() == [(4,)]
        """,
        "rebuilt",
    ),
    "engines with passwords": Case(
        """
        import os, sys, types, sqlalchemy as sa
        with open('psycopg2.py', 'w') as out:
            out.write('paramstyle = "pyformat"; __version__ = "2.9"; extensions = extras = None')
        url = sa.URL.create('postgresql+psycopg2', 'me', None, 'db', 5432, 'x')
        make = lambda p: sa.create_engine(url.set(password=p), pool_size=3, pool_pre_ping=True)
        a = make(os.environ['CASE_DB_PASSWORD'])
        b = make('nowhere-else-secret')
        u = sa.make_url(os.environ['CASE_URL'])
        m = sa.create_engine('sqlite://')
        del make, out
        """,
        """
        assert a.url.password is None and a.pool.size() == 3 and (a.url.host == 'db')
        assert 'in memory only' in repr(m)
        assert repr(u).count('***') or not u.password
        assert any(('CASE_DB_PASSWORD' in n[3] for n in notes))
        assert any(('is not kept' in n[3] for n in notes if n[1] == 'b'))
        """,
        "lost",
    ),
    "orm sessions": Case(
        """
        import sqlalchemy as sa
        from sqlalchemy.orm import sessionmaker, Session
        e = sa.create_engine('sqlite:///g.db')
        make = sessionmaker(e, expire_on_commit=False)
        s = make()
        s.execute(sa.text('create table if not exists t (x)'))
        s.commit()
        p = Session(e)
        del sessionmaker, Session
        """,
        """
        import sqlalchemy as sa
        assert s.bind is e and s.execute(sa.text('select 1')).scalar() == 1
        assert make().bind is e and make().expire_on_commit is False and (p.get_bind() is e)
        """,
        "rebuilt",
    ),
    "requests": Case(
        """
        import os, requests
        s = requests.Session()
        s.headers['X-Plain'] = 'yes'
        s.headers['Authorization'] = 'Bearer ' + os.environ['CASE_TOKEN']
        s.headers['X-Api-Key'] = 'nowhere-else-token'
        s.params = {'q': '1'}
        s.verify = False
        s.auth = ('me', os.environ['CASE_DB_PASSWORD'])
        s.cookies.set('lang', 'de')
        s.cookies.set('sessionid', 'cookie-secret-value')
        a = requests.auth.HTTPBasicAuth('me', 'nowhere-else-secret')
        """,
        """
        assert s.headers['X-Plain'] == 'yes' and 'X-Api-Key' not in s.headers
        assert s.params == {'q': '1'} and s.verify is False and s.get_adapter('https://x')
        assert s.cookies.get_dict() == {'lang': 'de'}
        assert a.username == 'me' and 'Authorization' not in s.headers
        import requests
        p = s.prepare_request(requests.Request('GET', 'http://x/'))
        assert 'q=1' in p.url
        """,
        "changed",
    ),
    "httpx": Case(
        """
        import os, httpx2
        headers = {'x-a': 'b', 'authorization': 'nowhere-else-token'}
        auth = ('me', 'nowhere-else-secret')
        c = httpx2.Client(headers=headers, base_url='https://x.test/v1', timeout=7, auth=auth)
        del headers, auth
        """,
        """
        assert c.headers['x-a'] == 'b' and 'authorization' not in c.headers
        assert str(c.base_url) == 'https://x.test/v1/' and c.timeout.read == 7
        c.close()
        """,
        "changed",
    ),
    "images": Case(
        """
        from PIL import Image
        Image.new('RGB', (4, 3), 'red').save('a.png')
        i = Image.open('a.png')
        a = [Image.new('RGB', (2, 2), n) for n in ('red', 'green', 'blue')]
        a[0].save('b.gif', save_all=True, append_images=a[1:])
        g = Image.open('b.gif')
        g.seek(2)
        del Image, a
        """,
        """
        assert i.getpixel((0, 0)) == (255, 0, 0) and i.size == (4, 3)
        assert g.tell() == 2 and g.n_frames == 3
        g.seek(0)
        """,
        "rebuilt",
    ),
    "figures": Case(
        """
        import matplotlib
        matplotlib.use('agg')
        from matplotlib.figure import Figure
        f = Figure()
        ax = f.add_subplot()
        ax.plot([1, 2])
        del Figure
        """,
        """
        assert ax.figure is f and len(ax.lines) == 1
        f.savefig('c.png')
        """,
    ),
    "chunks": Case(
        r"""
        import pandas as pd, pyarrow as pa
        open('d.csv', 'w').write('a\n1\n2\n')
        r = pd.read_csv('d.csv', chunksize=1)
        next(r)
        b = pa.RecordBatchReader.from_batches(pa.schema([('a', pa.int64())]), [])
        """,
        """
        assert 'piece by piece' in repr(r) and repr(b).startswith('<lost')
        """,
        "lost",
    ),
    "widgets": Case(
        """
        import ipywidgets as w
        s = w.IntSlider(value=7, max=20, description='n')
        b = w.VBox([s, w.Text('t')])
        """,
        """
        assert s.value == 7 and s.max == 20
        assert b.children[0] is s and b.children[1].value == 't'
        """,
        "rebuilt",
    ),
    "models": Case(
        """
        from sklearn.pipeline import make_pipeline as m
        from sklearn.preprocessing import StandardScaler as S
        from sklearn.linear_model import LinearRegression as L
        p = m(S(), L()).fit([[1], [2], [3]], [2, 4, 6])
        del m, S, L
        """,
        """
        assert abs(p.predict([[4]])[0] - 8) < 1e-09
        """,
    ),
    "plain enough": Case(
        """
        import uuid, ipaddress, argparse, zoneinfo, datetime, decimal, fractions, pathlib, string
        u = uuid.uuid4()
        i = ipaddress.ip_network('10.0.0.0/8')
        z = datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin'))
        t = str(u)
        p = argparse.ArgumentParser()
        p.add_argument('--n', type=int)
        """,
        """
        assert str(u) == t and i.num_addresses == 2 ** 24 and (z.utcoffset().seconds == 7200)
        assert p.parse_args(['--n', '3']).n == 3
        """,
    ),
    "bars": Case(
        """
        from tqdm import tqdm as q
        b = q(total=3, file=open('/dev/null', 'w'))
        b.update(1)
        del q
        """,
        """
        assert 'loop that has ended' in repr(b)
        """,
        "lost",
    ),
    "resources": Case(
        """
        import os
        from tests import _inkernel
        cave = _inkernel.load('image.plugins')
        del _inkernel
        os.environ['CASE_HERE'] = '1'

        class Link:

            def __init__(self, to):
                self.to = to
                self.s = object().__repr__

        @cave.resource(name='warehouse', env=[])
        def connect(to):
            return Link(to)

        @cave.resource(name='vault', env=['CASE_HERE'])
        def vault():
            return Link('v')

        @cave.persistent(save=lambda o: o.x, load=lambda x: Box(x))
        class Box:

            def __init__(self, x):
                self.x = x
                self.lock = open('/dev/null')
        a = connect('db')
        also = [a]
        v = vault()
        b = Box([1])
        plain = Link('p')
        del cave
        """,
        """
        assert a.to == 'db' and also[0] is a and (type(a) is Link) and (b.x == [1]) and b.lock
        assert 'needs CASE_HERE' in repr(v)
        """,
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


def test_secrets_of_the_environment_come_back(tmp_path: Path) -> None:
    """Where the new process has the variable too, passwords and tokens are what they were."""
    cases = {
        "all": Case(
            """
            import os, requests, httpx2, sqlalchemy as sa
            s = requests.Session()
            s.headers['Authorization'] = 'Bearer ' + os.environ['CASE_TOKEN']
            s.auth = ('me', os.environ['CASE_DB_PASSWORD'])
            u = sa.make_url(os.environ['CASE_URL'])
            c = httpx2.Client(headers={'x-api-key': os.environ['CASE_TOKEN']})
            """,
            """
            assert s.headers['Authorization'] == 'Bearer tok-5f3a9c-header'
            assert s.auth == ('me', 'hunter2-database') and u.password == 'pw-inside-url'
            assert c.headers['x-api-key'] == 'tok-5f3a9c-header'
            """,
            "rebuilt",
        )
    }
    results = _cases.run(cases, tmp_path, SECRETS, SECRETS)
    _cases.check(results["all"], cases["all"])
    assert [v for v in SECRETS.values() if v.encode() in results["stream"]] == []


def test_mapped_classes_are_lost_by_name(tmp_path: Path) -> None:
    """A declarative class is lost with a reason, and costs no other definition."""
    cases = {
        "orm": Case(
            """
            import sqlalchemy as sa
            from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, Session
            class Base(DeclarativeBase): pass
            class User(Base):
                __tablename__ = 'users'
                id: Mapped[int] = mapped_column(primary_key=True)
                name: Mapped[str]
            e = sa.create_engine('sqlite:///orm.db')
            Base.metadata.create_all(e)
            with Session(e) as s:
                s.add(User(name='a'))
                s.commit()
                user = s.scalars(sa.select(User)).one()
            def helper(n): return n + 1
            del s, Session, DeclarativeBase, Mapped, mapped_column
            """,
            """
            import sqlalchemy as sa
            assert 'cell that defines it' in repr(notes) and repr(user).startswith('<lost')
            assert helper(2) == 3
            with e.connect() as s:
                assert s.execute(sa.text('select name from users')).scalar() == 'a'
            """,
        )
    }
    result = _cases.run(cases, tmp_path)["orm"]
    assert not result["error"], result["error"] + repr(result["notes"])


def test_no_secret_is_written(results: dict[str, Any]) -> None:
    """No password, token or cookie is in the bytes of a stream."""
    values = (*SECRETS.values(), *OTHERS, "pw-inside-url")
    assert [value for value in values if value.encode() in results["stream"]] == []
