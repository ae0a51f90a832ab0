"""Files, archives, temporary files, mapped memory, after their process was killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.inkernel.image import _cases
from tests.inkernel.image._cases import Case

_LINES = 'open("{0}", "w").write("".join(f"line {{i}}\\n" for i in range(2000)))\n'

CASES = {
    "text read mid line": Case(
        r"""
        open('a.txt', 'w').write('hällo\nwörld\n')
        f = open('a.txt')
        f.read(3)
        """,
        r"""
        assert f.read() == 'lo\nwörld\n'
        assert f.name == 'a.txt' and f.mode == 'r'
        """,
        "rebuilt",
    ),
    "text iterated": Case(
        _LINES.format("b.txt") + 'f = open("b.txt"); next(f); next(f)',
        r"""
        assert next(f) == 'line 2\n'
        assert len(list(f)) == 1997
        """,
        "rebuilt",
        after=r"""
        assert next(f) == 'line 2\n', 'the live file goes on'
        """,
    ),
    "text iterated, carriage returns, umlauts": Case(
        r"""
        open('c.txt', 'wb').write('äöü €\r\n'.encode() * 5000)
        f = open('c.txt', encoding='utf-8')
        for i in range(1500):
            next(f)
        """,
        r"""
        assert next(f) == 'äöü €\n'
        assert len(list(f)) == 3499
        """,
        "rebuilt",
        after=r"""
        assert next(f) == 'äöü €\n'
        assert len(list(f)) == 3499
        """,
    ),
    "text written": Case(
        r"""
        f = open('d.txt', 'w')
        g = f
        f.write('one\n')
        """,
        r"""
        assert f is g
        f.write('two\n')
        f.close()
        assert open('d.txt').read() == 'one\ntwo\n'
        """,
        "rebuilt",
    ),
    "text appended": Case(
        r"""
        open('e.txt', 'w').write('old\n')
        f = open('e.txt', 'a')
        f.write('one\n')
        """,
        r"""
        f.write('two\n')
        f.close()
        assert open('e.txt').read() == 'old\none\ntwo\n'
        """,
        "rebuilt",
    ),
    "text made exclusively": Case(
        """
        f = open('f.txt', 'x')
        f.write('one')
        """,
        """
        assert f.mode == 'x'
        f.write('two')
        f.close()
        assert open('f.txt').read() == 'onetwo'
        """,
        "rebuilt",
    ),
    "text r+ and w+": Case(
        """
        open('g.txt', 'w').write('abcdef')
        f = open('g.txt', 'r+')
        f.read(2)
        f.seek(f.tell())
        g = open('h.txt', 'w+')
        g.write('xyz')
        g.seek(1)
        """,
        """
        f.write('X')
        f.seek(0)
        assert f.read() == 'abXdef'
        assert g.read() == 'yz'
        g.write('!')
        g.seek(0)
        assert g.read() == 'xyz!'
        """,
        "rebuilt",
    ),
    "text settings": Case(
        r"""
        open('i.txt', 'wb').write(b'a\r\nb\xff\r\n')
        f = open('i.txt', encoding='latin-1', newline='', errors='replace')
        f.readline()
        g = open('j.txt', 'w', newline='\r\n', buffering=1)
        """,
        r"""
        assert f.readline() == 'bÿ\r\n'
        assert f.errors == 'replace'
        g.write('x\n')
        assert open('j.txt', 'rb').read() == b'x\r\n'
        assert g.line_buffering
        """,
        "rebuilt",
    ),
    "binary": Case(
        """
        open('k.bin', 'wb').write(bytes(range(100)))
        f = open('k.bin', 'rb')
        f.read(10)
        g = open('l.bin', 'wb')
        g.write(b'12')
        h = open('k.bin', 'rb', buffering=0)
        h.read(5)
        """,
        r"""
        assert f.read(1) == b'\n'
        g.write(b'3')
        g.close()
        assert h.read(1) == b'\x05'
        assert open('l.bin', 'rb').read() == b'123'
        assert g.mode == 'wb'
        """,
        "rebuilt",
    ),
    "layers stay together": Case(
        """
        open('m.txt', 'w').write('abc')
        f = open('m.txt')
        b = f.buffer
        r = b.raw
        """,
        """
        assert f.buffer is b and b.raw is r
        """,
        "rebuilt",
    ),
    "closed": Case(
        """
        f = open('n.txt', 'w')
        f.close()
        b = open('n.txt', 'rb')
        b.close()
        import io
        s = io.StringIO()
        s.close()
        """,
        """
        assert f.closed and b.closed and s.closed and (f.name == 'n.txt') and (f.mode == 'w')
        import pytest
        with pytest.raises(ValueError, match='closed'):
            f.write('x')
        """,
    ),
    "file gone": Case(
        """
        open('o.txt', 'w').write('abc')
        f = open('o.txt')
        """,
        """
        assert 'is gone' in repr(f)
        """,
        "lost",
        after="""
        os = __import__('os')
        os.unlink('o.txt')
        """,
    ),
    "file changed": Case(
        """
        open('p.txt', 'w').write('abc')
        f = open('p.txt')
        f.read(1)
        """,
        """
        assert f.read() == 'bcdef'
        assert '6 bytes, and had 3' in notes[-1][3]
        """,
        "changed",
        after="""
        open('p.txt', 'w').write('abcdef')
        """,
    ),
    "deleted while open": Case(
        """
        import os, tempfile
        f = open('q.txt', 'w+')
        f.write('abc')
        f.seek(1)
        os.unlink('q.txt')
        t = tempfile.TemporaryFile()
        t.write(b'12345')
        t.seek(2)
        """,
        """
        assert f.read() == 'bc'
        f.write('d')
        assert t.read() == b'345'
        t.write(b'6')
        """,
        "rebuilt",
    ),
    "relative to another folder": Case(
        """
        import os
        os.makedirs('sub', exist_ok=True)
        os.chdir('sub')
        f = open('r.txt', 'w')
        f.write('1')
        os.chdir('..')
        """,
        """
        f.write('2')
        f.close()
        assert open('sub/r.txt').read() == '12'
        """,
        "rebuilt",
    ),
    "pipes and sockets": Case(
        """
        import os, socket
        r, w = os.pipe()
        f = os.fdopen(r)
        g = os.fdopen(w, 'wb')
        s, t = socket.socketpair()
        m = s.makefile()
        """,
        """
        assert 'pipe' in repr(f) and 'pipe' in repr(g) and ('connection' in repr(s))
        assert 'lost' in repr(m)
        """,
        "lost",
    ),
    "standard streams": Case(
        """
        import sys
        a = sys.stdout
        b = sys.stderr
        c = sys.stdin
        d = sys.__stdout__
        e = a.buffer
        """,
        """
        import sys
        assert a is sys.stdout and b is sys.stderr and (c is sys.stdin)
        assert e is sys.stdout.buffer
        """,
    ),
    "devices": Case(
        """
        f = open('/dev/null', 'w')
        """,
        """
        f.write('x')
        f.flush()
        """,
        "rebuilt",
    ),
    "in memory": Case(
        r"""
        import io
        s = io.StringIO('abc\ndef')
        s.readline()
        b = io.BytesIO(b'xyz')
        b.read(1)
        w = io.TextIOWrapper(io.BytesIO('äb'.encode()), encoding='utf-8')
        w.read(1)
        """,
        """
        assert s.read() == 'def' and b.read() == b'yz' and (w.read() == 'b')
        """,
        "rebuilt",
    ),
    "csv": Case(
        r"""
        import csv
        open('s.csv', 'w').write('a;b\n1;2\n3;4\n')
        f = open('s.csv', newline='')
        r = csv.DictReader(f, delimiter=';')
        next(r)
        w = csv.writer(open('t.csv', 'w', newline=''), delimiter='|')
        w.writerow([1, 2])
        d = csv.DictWriter(open('u.csv', 'w', newline=''), ['x'])
        d.writeheader()
        l = csv.reader(['1,2', '3,4'])
        next(l)
        k = l.dialect
        """,
        """
        assert next(r) == {'a': '3', 'b': '4'}
        w.writerow([3, 4])
        d.writerow({'x': 5})
        import gc
        for it in (w, d.writer):
            for x in gc.get_referents(it):
                if getattr(x, '__name__', '') == 'write':
                    x.__self__.flush()
        assert open('t.csv').read().split() == ['1|2', '3|4']
        assert open('u.csv').read().split() == ['x', '5']
        assert next(l) == ['3', '4']
        """,
        "rebuilt",
    ),
    "compressed, read": Case(
        """
        import gzip, bz2, lzma, io
        for m, n in ((gzip, 'gz'), (bz2, 'bz2'), (lzma, 'xz')):
            with m.open('v.' + n, 'wb') as out:
                out.write(b'0123456789')
        g = gzip.open('v.gz')
        g.read(4)
        b = bz2.open('v.bz2')
        b.read(5)
        x = lzma.open('v.xz')
        t = gzip.open('v.gz', 'rt')
        t.read(2)
        i = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b'abc')))
        i.read(1)
        c = gzip.open('v.gz')
        c.close()
        del out
        """,
        """
        assert g.read() == b'456789' and b.read() == b'56789' and (x.read(2) == b'01')
        assert t.read() == '23456789' and i.read() == b'bc' and c.closed
        """,
        "rebuilt",
    ),
    "compressed, written": Case(
        """
        import gzip
        g = gzip.open('w.gz', 'wb')
        g.write(b'1')
        """,
        """
        assert 'being written' in repr(g)
        """,
        "lost",
    ),
    "archives, read": Case(
        """
        import zipfile, tarfile
        with zipfile.ZipFile('x.zip', 'w') as z:
            z.writestr('a.txt', 'hello')
        with tarfile.open('x.tgz', 'w:gz') as t:
            t.add('x.zip')
        z = zipfile.ZipFile('x.zip')
        t = tarfile.open('x.tgz')
        p = zipfile.Path('x.zip')
        c = zipfile.ZipFile('x.zip')
        c.close()
        e = tarfile.open('x.tgz')
        e.close()
        """,
        """
        assert z.read('a.txt') == b'hello' and t.getnames() == ['x.zip']
        assert (p / 'a.txt').read_text() == 'hello' and c.fp is None and e.closed
        """,
        "rebuilt",
    ),
    "archives, written": Case(
        """
        import zipfile, tarfile
        z = zipfile.ZipFile('y.zip', 'w')
        t = tarfile.open('y.tar', 'w')
        """,
        """
        assert 'being written' in repr(z) and 'being written' in repr(t)
        """,
        "lost",
    ),
    "temporary": Case(
        """
        import tempfile, os
        n = tempfile.NamedTemporaryFile()
        n.write(b'ab')
        d = tempfile.TemporaryDirectory()
        open(d.name + '/x', 'w').close()
        path = (n.name, d.name)
        s = tempfile.SpooledTemporaryFile(100)
        s.write(b'xyz')
        s.seek(1)
        u = tempfile.SpooledTemporaryFile(2, mode='w+')
        u.write('long text')
        u.seek(5)
        c = tempfile.TemporaryDirectory()
        c.cleanup()
        """,
        """
        import os
        assert (n.name, d.name) == path
        n.write(b'c')
        n.seek(0)
        assert n.read() == b'abc' and os.listdir(d.name) == ['x'] and (s.read() == b'yz')
        assert u.read() == 'text'
        n.close()
        d.cleanup()
        c.cleanup()
        assert not os.path.exists(path[0]) and (not os.path.exists(path[1]))
        """,
        "rebuilt",
    ),
    "temporary and gone": Case(
        """
        import tempfile
        n = tempfile.NamedTemporaryFile()
        d = tempfile.TemporaryDirectory()
        """,
        """
        assert 'is gone' in repr(n) and 'is gone' in repr(d)
        """,
        "lost",
        after="""
        n.close()
        d.cleanup()
        """,
    ),
    "mapped": Case(
        """
        import mmap
        a = mmap.mmap(-1, 5000)
        a.write(b'abc')
        open('z.bin', 'wb').write(b'0' * 9000)
        f = open('z.bin', 'r+b')
        m = mmap.mmap(f.fileno(), 4000, offset=4096)
        m.seek(7)
        g = open('z.bin', 'rb')
        r = mmap.mmap(g.fileno(), 0, access=mmap.ACCESS_READ)
        """,
        r"""
        assert a[:4] == b'abc\x00' and a.tell() == 3
        assert m.tell() == 7
        m[0:2] = b'xy'
        m.flush()
        assert open('z.bin', 'rb').read()[4095:4099] == b'0xy0'
        assert r[4096:4098] == b'xy'
        import pytest
        with pytest.raises(TypeError):
            r[0:1] = b'x'
        """,
        "rebuilt",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _cases.run(CASES, Path(tmp_path_factory.mktemp("files")))


@pytest.mark.parametrize("name", CASES)
def test_files(name: str, results: dict[str, Any]) -> None:
    """Each kind of file works on where it was, or says why it does not."""
    _cases.check(results[name], CASES[name])
