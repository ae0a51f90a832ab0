"""Taking kernels over: after a host's death nothing of the gap is lost; old hosts are fenced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psutil
import pytest

from cave.errors import LeaseLost
from cave.events import Output
from cave.kernel import Kernel, adopt, left_behind
from cave.ports import Death, SpooledCell
from tests._hosts import Program
from tests.kernel._host import Host, alive, leftovers, text

SLOW = (
    "import time\nprint('begun', flush=True)\n"
    "for i in range(10): time.sleep(0.1); print('step', i, flush=True)\nresult = 'whole'"
)


@contextmanager
def cut_host(forks: ForkServerContext, root: Path, source: str) -> Iterator[Program]:
    """A host in a process of its own, which has told the number of its first cell's end."""
    script = Path(__file__).with_name("_cut_host.py")
    process = Program(forks, script, root, source)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: Program) -> str:
    return process.stdout.readline().strip()


def adopted(host: Host) -> Kernel:
    kernel = host(adopt(host.root / "session", 1))
    assert isinstance(kernel, Kernel)
    host.kernels.append(kernel)
    return kernel


def test_a_killed_hosts_running_cell_is_followed_to_its_end(
    make_host: Callable[..., Host], forks: ForkServerContext
) -> None:
    """After kill -9 of the host the next one gets all output of the cell, and the objects."""
    host = make_host()
    with cut_host(forks, host.root, SLOW) as process:
        after = int(line(process))
        assert line(process) == "begun"
        process.kill()
        process.wait()
    kernel = adopted(host)
    seen: list[Output] = []
    found = host(kernel.catch_up(lease=2, after=after, running=2, on_output=seen.append))
    (entry,) = found
    assert isinstance(entry, SpooledCell)
    assert entry.cell == 2
    assert entry.source == SLOW
    assert entry.executed is not None
    assert entry.executed.status == "ok"
    steps = "".join(f"step {i}\n" for i in range(10))
    assert text(entry.executed) == f"begun\n{steps}"
    assert [v.name for v in entry.executed.delta.added if v.name == "result"] == ["result"]
    assert seen
    host.lease = 2
    assert text(host.run("y, result", cell=3)) == "(41, 'whole')"


def test_what_comes_during_the_takeover_comes_once(
    make_host: Callable[..., Host], forks: ForkServerContext
) -> None:
    """Output that is both in the spool and on the wire while a host takes over is one output."""
    host = make_host()
    source = "import time\nfor i in range(1_500): print(i, flush=True); time.sleep(0.001)"
    with cut_host(forks, host.root, source) as process:
        after = int(line(process))
        assert line(process) == "0"
        process.kill()
        process.wait()
    kernel = adopted(host)
    (entry,) = host(kernel.catch_up(lease=2, after=after, running=2))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert text(entry.executed) == "".join(f"{i}\n" for i in range(1_500))


def test_a_cell_that_ended_in_the_gap_is_told_whole(
    make_host: Callable[..., Host], forks: ForkServerContext
) -> None:
    """A cell whose end no host saw is told with outputs, status and delta, once."""
    host = make_host()
    with cut_host(forks, host.root, SLOW) as process:
        after = int(line(process))
        assert line(process) == "begun"
        process.kill()
        process.wait()
    host(asyncio.sleep(2))
    kernel = adopted(host)
    (entry,) = host(kernel.catch_up(lease=2, after=after, running=2))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert entry.executed.status == "ok"
    assert text(entry.executed).endswith("step 9\n")
    assert host(kernel.catch_up(lease=2, after=entry.executed.spool, running=None)) == []


def test_two_hundred_megabytes_of_the_gap_come_with_flat_memory(
    make_host: Callable[..., Host],
    forks: ForkServerContext,
) -> None:
    """A flood that went to the spool alone is bounded in memory and readable in full."""
    host = make_host()
    source = "print('begun', flush=True)\nfor i in range(200): print('x' * 99_999)"
    with cut_host(forks, host.root, source) as process:
        after = int(line(process))
        assert line(process) == "begun"
        process.kill()
        process.wait()
    kernel = adopted(host)
    (entry,) = host(kernel.catch_up(lease=2, after=after, running=2))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert entry.executed.full_size == 20_000_006
    assert entry.executed.full_text is not None
    assert sum(map(len, entry.executed.full_text())) == 20_000_006


def test_a_stopped_and_resumed_host_is_fenced(
    make_host: Callable[..., Host], forks: ForkServerContext
) -> None:
    """A host that slept through its takeover gets LeaseLost; its cell does not run."""
    host = make_host()
    with cut_host(forks, host.root, SLOW) as process:
        after = int(line(process))
        assert line(process) == "begun"
        os.kill(process.pid, signal.SIGSTOP)
        kernel = adopted(host)
        found = host(kernel.catch_up(lease=2, after=after, running=2))
        assert [e.cell for e in found] == [2]
        host.lease = 2
        host.run("mine = 1", cell=3)
        os.kill(process.pid, signal.SIGCONT)
        words = [line(process)]
        while words[-1] not in {"LeaseLost", "ok", ""}:
            words.append(line(process))
        assert words[-1] == "LeaseLost"
    last = host.run("print(mine)", cell=4)
    assert text(last) == "1\n"
    assert "after" not in text(last)


@pytest.mark.parametrize("verb", ["execute", "put", "get", "delete", "variables", "admit_foreign"])
def test_every_command_of_a_lower_lease_is_refused(host: Host, verb: str) -> None:
    """Commands under a lease that is over raise LeaseLost and change nothing."""
    host.lease += 5
    host.run("kept = 1")
    old = host.lease - 1
    kernel = host.kernel
    commands = {
        "execute": lambda: kernel.execute("kept = 2", cell=next(host.numbers), lease=old),
        "put": lambda: kernel.put({"kept": 3}, lease=old),
        "get": lambda: kernel.get("kept", lease=old),
        "delete": lambda: kernel.delete(["kept"], lease=old),
        "variables": lambda: kernel.variables(lease=old),
        "admit_foreign": lambda: kernel.admit_foreign(lease=old),
    }
    with pytest.raises(LeaseLost, match="is over"):
        host(commands[verb]())
    assert text(host.run("kept")) == "1"
    assert not host(kernel.status())["admitted"]


def test_a_refused_cell_that_was_queued_never_runs(host: Host) -> None:
    """A cell that waits when the fence goes up is refused when its turn comes."""

    async def queued() -> tuple[str, str]:
        low, high = host.lease, host.lease + 1
        running = asyncio.ensure_future(host.send("import time; time.sleep(0.5); ran = []"))
        waiting = asyncio.ensure_future(host.send("ran.append(1)", lease=low))
        await asyncio.sleep(0.2)
        host.lease = high
        await host.kernel.catch_up(lease=high, after=10**9, running=None)
        first = (await running).status
        with pytest.raises(LeaseLost):
            await waiting
        return first, text(await host.send("ran"))

    assert host(queued()) == ("ok", "[]")


def test_a_dead_kernel_is_told_by_how_it_ended(
    make_host: Callable[..., Host], forks: ForkServerContext
) -> None:
    """adopt gives the Death of a kernel that ended unseen; its spool holds the cut cell."""
    host = make_host()
    source = (
        "print('begun', flush=True)\nimport os, time; time.sleep(0.5)\n"
        "print('more')\nos.kill(os.getpid(), 9)"
    )
    with cut_host(forks, host.root, source) as process:
        after = int(line(process))
        assert line(process) == "begun"
        process.kill()
        process.wait()
    host(asyncio.sleep(1.5))
    death = host(adopt(host.root / "session", 1))
    assert isinstance(death, Death)
    assert (death.reason, death.signal) == ("died", 9)
    (entry,) = host(left_behind(host.root / "session", 1, after=after))
    assert isinstance(entry, SpooledCell)
    assert entry.executed is not None
    assert (entry.executed.status, text(entry.executed)) == ("died", "begun\nmore\n")
    assert leftovers(host) == []


def test_what_never_was_is_none(make_host: Callable[..., Host]) -> None:
    """Without a record adopt gives None and left_behind nothing."""
    host = make_host()
    assert host(adopt(host.root / "session", 1)) is None
    assert host(left_behind(host.root / "session", 1, after=0)) == []


def test_a_record_of_another_boot_or_process_is_not_believed(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pid that was used again is not taken for the kernel."""
    host = make_host()
    host.start()
    record = host.root / "session" / "kernels" / "1" / "kernel.json"
    honest = record.read_text()
    host(host.kernel.end(reason="closed"))
    record.write_text(honest.replace(f'"pid": {host.kernel.facts.pid}', f'"pid": {os.getpid()}'))
    assert isinstance(host(adopt(host.root / "session", 1)), Death)


def test_a_host_that_dies_while_starting_leaves_no_kernel(
    tmp_path: Path, forks: ForkServerContext
) -> None:
    """Kill -9 of a host before its kernel is recorded ends kernel and keeper."""
    import time

    script = Path(__file__).with_name("_cut_host.py")
    process = Program(forks, script, tmp_path, "1")
    ends = time.monotonic() + 60
    while not (found := children(process.pid)) and time.monotonic() < ends:
        time.sleep(0.002)
    time.sleep(0.1)  # the host knows the kernel now, and waits for its first answer
    process.kill()
    process.communicate()
    assert found
    while any(alive(pid) for pid in found) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not [pid for pid in found if alive(pid)]
    assert not list((tmp_path / "run").iterdir())


def children(pid: int) -> list[int]:
    """The keeper and the kernel below a host, once both are there."""
    try:
        keepers = psutil.Process(pid).children()
        below = [kernel.pid for keeper in keepers for kernel in keeper.children()]
    except psutil.NoSuchProcess:
        return []
    return [*(keeper.pid for keeper in keepers), *below] if below else []


def test_acknowledged_segments_are_deleted(host: Host) -> None:
    """After ack the spool holds only what is newer, and later cells are whole."""
    folder = host.root / "session" / "kernels" / "1" / "spool"
    done = host.run("for i in range(200): print('x' * 99_999)")
    assert len(list(folder.iterdir())) > 2
    host.kernel.ack(done.spool)
    assert len(list(folder.iterdir())) == 1
    again = host.run("for i in range(30): print('y' * 99_999)")
    assert again.full_size == 3_000_000
