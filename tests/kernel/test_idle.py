"""Idle kernels end by themselves, and say why; busy ones do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cave.kernel import adopt
from cave.ports import Death
from tests.kernel._host import Host, alive, leftovers, text


def test_an_idle_kernel_ends_and_says_why(make_host: Callable[..., Host]) -> None:
    """After its idle time a kernel is gone, with reason idle, also for the next host."""
    host = make_host(idle_timeout=0.6)
    kernel = host.start()
    host.run("f = open('left.txt', 'w'); n = f.write('flushed')")
    host(asyncio.wait_for(kernel._gone.wait(), 10))
    assert kernel.death is not None
    assert kernel.death.reason == "idle"
    assert not alive(kernel.facts.pid)
    assert leftovers(host) == []
    assert (host.root / "work" / "left.txt").read_text() == "flushed"
    found = host(adopt(host.root / "session", 1))
    assert isinstance(found, Death)
    assert found.reason == "idle"


def test_helpers_that_only_wait_keep_no_kernel_alive(make_host: Callable[..., Host]) -> None:
    """Idle workers of a pool and the loop of script magics are no work."""
    host = make_host(idle_timeout=0.6)
    kernel = host.start()
    host.run("import concurrent.futures as cf; pool = cf.ThreadPoolExecutor(2)")
    host.run("n = pool.submit(print, 'x').result()")
    host.run("get_ipython().run_cell_magic('bash', '', 'echo script')")
    host(asyncio.wait_for(kernel._gone.wait(), 10))
    assert kernel.death is not None
    assert kernel.death.reason == "idle"


def test_work_keeps_a_kernel_alive(make_host: Callable[..., Host]) -> None:
    """Running cells, awaiting cells and threads of cells are no idleness."""
    host = make_host(idle_timeout=0.5)
    host.start()
    assert host.run("import time; time.sleep(1.2)").status == "ok"
    assert host.run("import asyncio; await asyncio.sleep(1.2)").status == "ok"
    host.run("import threading; t = threading.Thread(target=time.sleep, args=(1.2,)); t.start()")
    host(asyncio.sleep(1))
    assert host.kernel.death is None
    assert text(host.run("'alive'")) == "'alive'"
