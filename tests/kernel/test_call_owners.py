"""Calls while hosts come and go, come twice, or stand beside other clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

import cave
from cave.kernel import Kernel, adopt
from cave.ports import Caller, SkillAnswer, SkillCall, SpooledCell
from tests._hosts import Program
from tests.kernel._desk import Desk, until
from tests.kernel._host import Host, text

SECOND = 0.1


@cave.skill(runs="host")
def double(x: Any) -> Any:
    """Twice as much."""
    return x * 2


@pytest.fixture
def desk(host: Host) -> Desk:
    """A desk that answers the module's kernel."""
    return Desk(host, double).open()


def adopted(host: Host) -> Kernel:
    kernel = host(adopt(host.root / "session", 1))
    assert isinstance(kernel, Kernel)
    host.kernels.append(kernel)
    return kernel


@pytest.fixture
def cut(make_host: Callable[..., Host], forks: ForkServerContext) -> Host:
    """A host whose kernel was left by one that was killed while a call waited."""
    host = make_host()
    script = Path(__file__).with_name("_cut_call.py")
    process = Program(forks, script, host.root)
    assert process.stdout.readline().strip() == "called"
    process.kill()
    process.communicate()
    return host


def test_the_next_owner_gets_a_waiting_call_once(cut: Host) -> None:
    """A call that waited for a killed host comes to the next one, once, as it was; then the
    cell ends."""
    adopted(cut)
    cut.lease = 2
    desk = Desk(cut, double)
    desk.answer()
    (entry,) = cut(cut.kernel.catch_up(lease=2, after=0, running=1))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert text(entry.executed) == "42\n"
    assert [(c.cell, c.lane, c.ordinal, c.arguments) for c in desk.calls] == [(1, "", 1, {"x": 21})]
    assert text(cut.run("double(5)", cell=2)) == "10"


def test_calls_wait_until_somebody_answers(cut: Host) -> None:
    """Until `on_call` is set, calls wait at the host; taken over again, they come again."""
    adopted(cut)

    async def look() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cut.kernel.catch_up(lease=2, after=0, running=1), SECOND)

    cut(look())
    cut(cut.kernel.detach())
    adopted(cut)
    cut.lease = 3
    desk = Desk(cut, double)
    asked = cut.loop.create_task(cut.kernel.catch_up(lease=3, after=0, running=1))
    cut(asyncio.sleep(SECOND))
    desk.answer()
    (entry,) = cut(_awaited(asked))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert text(entry.executed) == "42\n"
    assert len(desk.calls) == 1


async def _awaited(task: Any) -> Any:
    return await task


def test_large_arguments_come_again(make_host: Callable[..., Host]) -> None:
    """What lies behind the door can be taken by the next owner too."""
    host = make_host()
    host.start()
    first = Desk(host, double).open()
    first.hold.clear()
    cell = host.loop.create_task(
        host.send("import numpy as np; int(double(np.arange(100_000)).sum())")
    )
    host(until(lambda: first.calls))
    host(host.kernel.detach())
    cell.cancel()
    adopted(host)
    host.lease = 2
    second = Desk(host, double)
    second.answer()
    (entry,) = host(host.kernel.catch_up(lease=2, after=0, running=1))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert text(entry.executed) == str(100_000 * 99_999)
    assert second.calls[0].digest == first.calls[0].digest


def test_an_effect_that_runs_is_told_to_the_next_owner(make_host: Callable[..., Host]) -> None:
    """A kernel skill that has leave when its host goes ends at the next one, with its key."""
    host = make_host()
    host.start()

    @cave.skill(effect="write")
    def paid(gate: str) -> int:
        import pathlib
        import time

        print("begun", flush=True)
        while not pathlib.Path(gate).exists():
            time.sleep(0.01)
        return 7

    gate = host.root / "gate"
    first = Desk(host, paid).open()
    said: list[Any] = []
    cell = host.loop.create_task(host.send(f"paid({str(gate)!r})", on_output=said.append))
    host(until(lambda: said))
    host(host.kernel.detach())
    cell.cancel()
    adopted(host)
    host.lease = 2
    second = Desk(host, paid)
    second.answer()
    gate.touch()
    (entry,) = host(host.kernel.catch_up(lease=2, after=0, running=1))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert text(entry.executed).endswith("7")
    assert [call.phase for call in first.calls] == ["begin"]
    (end,) = second.calls
    assert (end.phase, end.id, end.key) == ("end", first.calls[0].id, "key-1")


def test_an_old_owners_answer_is_refused(make_host: Callable[..., Host]) -> None:
    """After a takeover the kernel takes the new owner's answer, whatever the old one says."""
    host = make_host()
    host.start()
    old = Desk(host, double).open()
    old.hold.clear()
    cell = host.loop.create_task(host.send("print(double(21))"))

    host(until(lambda: old.calls))
    new_kernel = adopted(host)
    host.lease = 2

    async def other(call: SkillCall, _: Caller) -> SkillAnswer:
        from cave.kernel import values

        old.hold.set()
        await asyncio.sleep(SECOND)
        return SkillAnswer("ok", values.encode("of the new owner"))

    new_kernel.on_call = other
    (entry,) = host(new_kernel.catch_up(lease=2, after=0, running=1))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert text(entry.executed) == "of the new owner\n"
    host(_awaited(cell))
    assert len(old.calls) == 1


def test_a_call_that_is_sent_twice_runs_once(desk: Desk) -> None:
    """While a call is being answered, the same call again is the same call."""
    host = desk.host
    desk.hold.clear()

    async def twice() -> Any:
        cell = asyncio.ensure_future(host.send("print(double(2))"))
        await until(lambda: desk.calls)
        host.lease += 1
        host.kernel._calls.serve(host.lease)
        await asyncio.sleep(SECOND)
        desk.hold.set()
        return await cell

    assert text(host(twice())) == "4\n"
    assert len(desk.calls) == 1


def test_a_call_before_its_host_is_known_is_sent_once(make_host: Callable[..., Host]) -> None:
    """A first call, made before the kernel has read who serves it, comes once."""
    host = make_host()
    host.start()
    desk = Desk(host)
    desk.answer()
    host.run("import cave\n@cave.skill(effect='write')\ndef send(to: str): return to")
    busy = "get_ipython().kernel.shell_channel_thread.io_loop.asyncio_loop"
    source = f"{busy}.call_soon_threadsafe(__import__('time').sleep, {SECOND})\nprint(send('ann'))"
    assert text(host.run(source)) == "ann\n"
    assert [call.phase for call in desk.calls] == ["begin", "end"]


def test_a_cell_of_another_client_calls_the_host(make_host: Callable[..., Host]) -> None:
    """A cell that JupyterLab runs gets its answers from the host too, and can still ask its
    own user for input."""
    host = make_host()
    kernel = host.start()
    desk = Desk(host, double).open()
    host(kernel.admit_foreign(lease=1))
    client = BlockingKernelClient(connection_file=str(kernel.facts.connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=30)
        client.execute("print(double(4), input('how many? '), double(5))", allow_stdin=True)

        async def asked() -> Any:
            return await asyncio.to_thread(client.get_stdin_msg, timeout=30)

        assert host(asked())["content"]["prompt"] == "how many? "
        client.input("three")
        said = ""

        def listen() -> str:
            until = time.monotonic() + 30
            heard = ""
            while "10" not in heard and time.monotonic() < until:
                message = client.get_iopub_msg(timeout=30)
                heard += message["content"].get("text", "")
            return heard

        async def heard() -> str:
            return await asyncio.to_thread(listen)

        said = host(heard())
    finally:
        client.stop_channels()
        client.context.term()
    assert said == "8 three 10\n"
    assert [call.cell for call in desk.calls] == [None, None]
    assert desk.calls[0].lane.startswith("@")
    assert desk.calls[0].lane == desk.calls[1].lane


FORGED = """
k = get_ipython().kernel
def send(content, frames=()):
    k.calls._loop.call_soon_threadsafe(k.calls._send, "cave_call", content, frames)
place = {"skill": "double", "hash": "", "cell": 1, "lane": "", "ordinal": 1, "phase": "call"}
import pathlib, pickle
class Bomb:
    def __reduce__(self): return pathlib.Path(BOMB).touch, ()
send(content={**place, "call": "a", "kind": "pickle"}, frames=[b'["value"]', pickle.dumps(Bomb())])
send(content={**place, "call": "b", "kind": "safe"}, frames=[pickle.dumps(Bomb())])
send(content={**place, "call": "c", "kind": "safe", "layout": [[0, 10**12]]}, frames=[b"[]"])
send(content={**place, "call": "d", "kind": "safe", "token": "nothing", "layout": [[0, 5]]})
send(content={**place, "call": "e", "phase": "steal", "kind": "safe"})
send(content={**place, "call": ["f"], "kind": "safe"})
send(content={"call": "g"})
send(content={**place, "call": "h" * 10**6})
send(content={**place, "call": "i", "phase": "end", "status": "error", "error": ["x"]})
send(content={**place, "call": "j", "kind": "safe"}, frames=[b'["cave",1,["list",[1]]]'])
"""


def test_what_a_hostile_kernel_sends_harms_no_host(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    """Forged calls are errors of their own: nothing is unpickled, and calls go on."""
    host = make_host()
    host.start()
    desk = Desk(host, double).open()
    bomb = tmp_path / "bomb"
    assert host.run(f"BOMB = {str(bomb)!r}\n{FORGED}").status == "ok"
    assert text(host.run("double(21)")) == "42"
    assert not bomb.exists()
    assert [call.phase for call in desk.calls] == ["end", "call"]
