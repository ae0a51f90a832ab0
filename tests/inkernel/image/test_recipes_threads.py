"""Locks, threads, pools, tasks, processes and loggers, after their process was killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.inkernel.image import _cases
from tests.inkernel.image._cases import Case

CASES = {
    "free locks": Case(
        """
        import threading as t
        l = t.Lock()
        r = t.RLock()
        c = t.Condition()
        s = t.Semaphore(2)
        e = t.Event()
        e.set()
        b = t.Barrier(2)
        s.acquire()
        bs = t.BoundedSemaphore(3)
        """,
        """
        assert l.acquire(timeout=1)
        l.release()
        with r, r:
            pass
        with c:
            c.notify()
        assert s.acquire(timeout=1) and (not s.acquire(blocking=False))
        assert e.is_set()
        assert b.parties == 2 and bs._initial_value == 3
        """,
    ),
    "held locks": Case(
        """
        import threading as t
        l = t.Lock()
        l.acquire()
        r = t.RLock()
        r.acquire()
        o = t.RLock()
        x = t.Thread(target=o.acquire)
        x.start()
        x.join()
        del x
        """,
        """
        assert l.acquire(timeout=1) and r.acquire(timeout=1) and o.acquire(timeout=1)
        assert len([n for n in notes if 'was held' in n[3]]) == 3
        """,
        "rebuilt",
    ),
    "waiting for a condition": Case(
        """
        import threading as t
        c = t.Condition()
        e = t.Event()
        up = t.Event()

        def wait():
            with c:
                up.set()
                c.wait()
        kept.append(wait)
        x = t.Thread(target=wait, daemon=True)
        x.start()
        up.wait()
        with c:
            pass
        del wait, x, up
        """,
        """
        with c:
            c.notify_all()
        assert 'wait no more' in notes[0][3]
        """,
        "rebuilt",
    ),
    "thread local": Case(
        """
        import threading as t
        l = t.local()
        l.x = [1]
        """,
        """
        assert l.x == [1]
        l.y = 2
        """,
    ),
    "threads": Case(
        """
        import threading as t
        out = []
        n = t.Thread(target=out.append, args=(5,), name='n')
        d = t.Thread(target=out.append, args=(6,))
        d.start()
        d.join()
        m = t.main_thread()
        i = t.Timer(1000, out.append, (7,))
        """,
        """
        import threading
        n.start()
        n.join(5)
        assert out == [6, 5]
        assert not d.is_alive()
        d.join()
        assert m is threading.main_thread()
        assert i.interval == 1000 and i.args == (7,)
        """,
        "rebuilt",
    ),
    "running threads": Case(
        """
        import threading as t
        e = t.Event()
        x = t.Thread(target=e.wait, daemon=True)
        x.start()
        y = t.Timer(1000, print)
        y.daemon = True
        y.start()
        """,
        """
        assert 'was running' in repr(x) and 'was running' in repr(y)
        e.set()
        """,
        "lost",
    ),
    "pools": Case(
        """
        from concurrent.futures import ThreadPoolExecutor as P, ProcessPoolExecutor as Q
        p = P(3, 'mine')
        assert p.submit(len, 'ab').result() == 2
        c = P(1)
        c.shutdown()
        q = Q(2)
        del P, Q
        """,
        """
        assert p.submit(len, 'abc').result(10) == 3 and p._max_workers == 3
        import pytest
        with pytest.raises(RuntimeError):
            c.submit(len, '')
        assert q._max_workers == 2
        """,
        "rebuilt",
    ),
    "busy pool and futures": Case(
        """
        from concurrent.futures import ThreadPoolExecutor as P
        import threading
        e = threading.Event()
        p = P(1)
        f = p.submit(e.wait)
        g = p.submit(len, '')
        del P
        """,
        """
        assert 'running' in repr(f) and 'pending' in repr(g)
        assert p.submit(len, 'abc').result(10) == 3
        """,
        "lost",
        after="""
        e.set()
        """,
    ),
    "done futures": Case(
        """
        from concurrent.futures import ThreadPoolExecutor as P
        p = P(1)
        f = p.submit(len, 'ab')
        f.result()
        g = p.submit(int, 'x')
        g.exception()
        p.shutdown()
        del P, p
        """,
        """
        import pytest
        assert f.result(0) == 2
        with pytest.raises(ValueError):
            g.result(0)
        """,
    ),
    "queues": Case(
        """
        import queue
        q = queue.Queue(5)
        q.put([1])
        q.put(2)
        q.get()
        q.put(3)
        p = queue.PriorityQueue()
        p.put((2, 'b'))
        p.put((1, 'a'))
        s = queue.SimpleQueue()
        s.put(7)
        s.put(8)
        l = queue.LifoQueue()
        """,
        """
        assert [q.get(timeout=1), q.get(timeout=1)] == [2, 3] and q.maxsize == 5
        assert q.unfinished_tasks == 3 and p.get(timeout=1) == (1, 'a')
        assert [s.get(timeout=1), s.get(timeout=1)] == [7, 8] and l.empty()
        q.put(1)
        """,
        after="""
        assert s.qsize() == 2
        """,
    ),
    "processes": Case(
        """
        import subprocess as s
        r = s.Popen(['sleep', '100'])
        kept.append(r)
        e = s.Popen(['sh', '-c', 'exit 3'])
        e.wait()
        c = s.run(['true'])
        pid = r.pid
        """,
        """
        assert f'process {pid} was running' in repr(r) and 'return code 3' in repr(e)
        assert c.returncode == 0
        """,
        "lost",
        after="""
        r.kill()
        r.wait()
        """,
    ),
    "multiprocessing": Case(
        """
        import multiprocessing as m
        q = m.Queue()
        l = m.Lock()
        v = m.Value('i', 3)
        p = m.Process(target=print)
        a, b = m.Pipe()
        e = m.Event()
        from multiprocessing.shared_memory import SharedMemory as S
        h = S(create=True, size=10)
        del S
        """,
        """
        for it in (q, l, v, p, a, b, e, h):
            assert repr(it).startswith('<lost'), it
        """,
        "lost",
        after="""
        h.close()
        h.unlink()
        """,
    ),
    "connections": Case(
        """
        import selectors, ssl, http.client, socket
        s = selectors.DefaultSelector()
        c = http.client.HTTPConnection('localhost', 1)
        k = socket.socket()
        x = ssl.create_default_context()
        """,
        """
        for it in (s, c, k, x):
            assert repr(it).startswith('<lost'), it
        """,
        "lost",
    ),
    "random sources": Case(
        """
        import random, secrets
        s = random.SystemRandom()
        r = random.Random(5)
        r.random()
        c = secrets.choice
        n = r.getstate()
        """,
        """
        assert 0 <= s.random() < 1 and r.getstate() == n and (c([4]) == 4)
        """,
    ),
    "tasks": Case(
        """
        import asyncio
        loop = asyncio.new_event_loop()

        async def main():
            global done, failed, pending, lock, queue, event

            async def give():
                return [5]

            async def fail():
                raise ValueError('no')
            done = asyncio.create_task(give())
            failed = asyncio.create_task(fail())
            pending = asyncio.create_task(asyncio.sleep(1000))
            lock = asyncio.Lock()
            await asyncio.wait([done, failed])
            queue = asyncio.Queue()
            await queue.put(3)
            event = asyncio.Event()
            event.set()
            waiter = asyncio.create_task(asyncio.Queue.get(q2))
            await asyncio.sleep(0)
        q2 = asyncio.Queue()
        loop.run_until_complete(main())
        del main
        """,
        """
        import asyncio, pytest
        assert done.result() == [5] and 'not done' in repr(pending)
        with pytest.raises(ValueError, match='no'):
            failed.result()

        async def use():
            async with lock:
                pass
            q2.put_nowait(9)
            await event.wait()
            return (await queue.get(), await q2.get())
        assert asyncio.run(use()) == (3, 9)
        assert repr(loop).startswith('<lost')
        """,
        "lost",
    ),
    "the loop of the kernel": Case(
        """
        import asyncio
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        """,
        """
        assert loop is not None and (not isinstance(loop, type)) and (loop.is_running() is False)
        """,
    ),
    "loggers": Case(
        """
        import logging, sys
        log = logging.getLogger('cave.case')
        log.setLevel('DEBUG')
        h = logging.FileHandler('a.log', mode='w')
        h.setLevel('INFO')
        log.propagate = False
        h.setFormatter(logging.Formatter('%(levelname)s %(message)s'))
        log.addHandler(h)
        s = logging.StreamHandler(sys.stderr)
        other = logging.getLogger('cave.case.other')
        log.info('one')
        log.addHandler(s)
        loose = logging.Logger('loose', 10)
        from logging.handlers import RotatingFileHandler as R
        r = R('b.log', maxBytes=50)
        del R
        adapter = logging.LoggerAdapter(log, {'a': 1})
        """,
        r"""
        import logging, sys
        log.debug('no')
        log.info('two')
        h.flush()
        assert open('a.log').read() == 'INFO one\nINFO two\n'
        assert log.level == 10
        assert log is logging.getLogger('cave.case') and (not log.propagate)
        assert log.handlers == [h, s] and s.stream is sys.stderr and (other.parent is log)
        assert loose.level == 10 and loose is not logging.getLogger('loose')
        r.emit(logging.makeLogRecord({'msg': 'x'}))
        r.doRollover()
        assert adapter.logger is log
        """,
        "rebuilt",
    ),
    "a logger whose file is gone": Case(
        """
        import logging
        log = logging.getLogger('cave.gone')
        h = logging.FileHandler('c.log')
        log.addHandler(h)
        """,
        r"""
        log.warning('x')
        assert open('c.log').read() == 'x\n'
        """,
        "lost",
        after="""
        import os
        os.unlink('c.log')
        """,
    ),
    "libraries in C": Case(
        """
        import ctypes
        c = ctypes.CDLL(None)
        c.strlen.argtypes = [ctypes.c_char_p]
        c.strlen.restype = ctypes.c_size_t
        i = ctypes.c_int(7)
        """,
        """
        import ctypes
        assert c.strlen(b'abc') == 3 and c.strlen.restype is ctypes.c_size_t
        assert i.value == 7
        """,
        "rebuilt",
    ),
    "pointers": Case(
        """
        import ctypes
        i = ctypes.c_int(7)
        p = ctypes.pointer(i)
        f = ctypes.CDLL(None).strlen
        """,
        """
        assert i.value == 7 and repr(p).startswith('<lost') and repr(f).startswith('<lost')
        """,
        "lost",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _cases.run(CASES, Path(tmp_path_factory.mktemp("threads")))


@pytest.mark.parametrize("name", CASES)
def test_kinds_of_a_process(name: str, results: dict[str, Any]) -> None:
    """Each kind behaves as before, or says why it does not; nothing hangs."""
    _cases.check(results[name], CASES[name])
